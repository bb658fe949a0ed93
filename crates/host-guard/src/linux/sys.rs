//! What the guard uses of the C library and of Linux, declared here: the crate is also compiled by plain rustc, without
//! any dependency, into the library that `sidestream check -- PROGRAM` loads into programs. The names and the layouts
//! are those of the C library on 64-bit x86 and ARM.

#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    reason = "the C library's names"
)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

unsafe extern "C" {
    pub fn __errno_location() -> *mut c_int;
    pub fn dl_iterate_phdr(each: PhdrCallback, data: *mut c_void) -> c_int;
    pub fn dladdr(address: *const c_void, into: *mut Dl_info) -> c_int;
    pub fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    pub fn getpid() -> c_int;
    pub fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int;
    pub fn mprotect(at: *mut c_void, bytes: usize, protection: c_int) -> c_int;
    pub fn mremap(at: *mut c_void, bytes: usize, new: usize, flags: c_int, ...) -> *mut c_void;
    pub fn munmap(at: *mut c_void, bytes: usize) -> c_int;
    pub fn pthread_create(
        thread: *mut c_void,
        attributes: *const c_void,
        start: *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
    pub fn pthread_atfork(before: ForkHook, parent: ForkHook, child: ForkHook) -> c_int;
    pub fn pthread_sigmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int;
    pub fn raise(signal: c_int) -> c_int;
    pub fn sigaction(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int;
    pub fn sigaddset(set: *mut sigset_t, signal: c_int) -> c_int;
    pub fn sigdelset(set: *mut sigset_t, signal: c_int) -> c_int;
    pub fn sigfillset(set: *mut sigset_t) -> c_int;
    pub fn sigprocmask(how: c_int, new: *const sigset_t, old: *mut sigset_t) -> c_int;
    pub fn signal(signal: c_int, handler: usize) -> usize;
    pub fn syscall(number: c_long, ...) -> c_long;
    pub fn sysconf(name: c_int) -> c_long;

    pub fn preadv(file: c_int, pieces: *const iovec, count: c_int, from: i64) -> isize;
    pub fn pwritev(file: c_int, pieces: *const iovec, count: c_int, to: i64) -> isize;
    pub fn readv(file: c_int, pieces: *const iovec, count: c_int) -> isize;
    pub fn writev(file: c_int, pieces: *const iovec, count: c_int) -> isize;
    pub fn recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize;
    pub fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize;
    pub fn recvmmsg(s: c_int, all: *mut mmsghdr, n: c_uint, how: c_int, t: *mut c_void) -> c_int;
    pub fn sendmmsg(s: c_int, all: *mut mmsghdr, n: c_uint, how: c_int) -> c_int;
}

pub type PhdrCallback = unsafe extern "C" fn(*mut dl_phdr_info, usize, *mut c_void) -> c_int;
pub type ForkHook = Option<unsafe extern "C" fn()>;

pub const EFAULT: c_int = 14;
pub const PROT_NONE: c_int = 0;
pub const PROT_READ: c_int = 1;
pub const PROT_WRITE: c_int = 2;
pub const RTLD_DEFAULT: *mut c_void = std::ptr::null_mut();
pub const RTLD_NEXT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
pub const SIGSEGV: c_int = 11;
pub const SIG_BLOCK: c_int = 0;
pub const SIG_UNBLOCK: c_int = 1;
pub const SIG_SETMASK: c_int = 2;
pub const SIG_DFL: usize = 0;
pub const SIG_IGN: usize = 1;
pub const SIG_ERR: usize = usize::MAX;
pub const SA_SIGINFO: c_int = 4;
pub const SA_ONSTACK: c_int = 0x0800_0000;
pub const SA_NODEFER: c_int = 0x4000_0000;
pub const _SC_PAGESIZE: c_int = 30;
pub const PT_LOAD: u32 = 1;
pub const PT_DYNAMIC: u32 = 2;

/// Defines the numbers of system calls: on x86, and on ARM.
macro_rules! numbers {
    ($($name:ident $x86:literal $arm:literal;)+) => {
        $(pub const $name: c_long = if cfg!(target_arch = "x86_64") { $x86 } else { $arm };)+
    };
}

numbers! {
    SYS_getrandom 318 278;
    SYS_gettid 186 178;
    SYS_io_setup 206 0;
    SYS_io_uring_setup 425 425;
    SYS_pread64 17 67;
    SYS_preadv 295 69;
    SYS_preadv2 327 286;
    SYS_process_vm_readv 310 270;
    SYS_pwrite64 18 68;
    SYS_pwritev 296 70;
    SYS_pwritev2 328 287;
    SYS_read 0 63;
    SYS_readv 19 65;
    SYS_recvfrom 45 207;
    SYS_recvmmsg 299 243;
    SYS_recvmsg 47 212;
    SYS_sendmsg 46 211;
    SYS_sendto 44 206;
    SYS_write 1 64;
    SYS_writev 20 66;
}

/// The C library's set, of which the kernel sets only the first word: the others are what was in memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sigset_t(pub u64, [u64; 15]);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sigaction {
    pub sa_sigaction: usize,
    pub sa_mask: sigset_t,
    pub sa_flags: c_int,
    pub sa_restorer: usize,
}

/// What the kernel says of a signal; its beginning, as it is for a fault.
#[repr(C)]
pub struct siginfo_t {
    pub si_signo: c_int,
    pub si_errno: c_int,
    pub si_code: c_int,
    pub si_addr: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct iovec {
    pub iov_base: *mut c_void,
    pub iov_len: usize,
}

#[repr(C)]
pub struct msghdr {
    pub msg_name: *mut c_void,
    pub msg_namelen: u32,
    pub msg_iov: *mut iovec,
    pub msg_iovlen: usize,
    pub msg_control: *mut c_void,
    pub msg_controllen: usize,
    pub msg_flags: c_int,
}

#[repr(C)]
pub struct mmsghdr {
    pub msg_hdr: msghdr,
    pub msg_len: c_uint,
}

#[repr(C)]
pub struct Dl_info {
    pub dli_fname: *const c_char,
    pub dli_fbase: *mut c_void,
    pub dli_sname: *const c_char,
    pub dli_saddr: *mut c_void,
}

/// A loaded library; its beginning, as older C libraries pass it too.
#[repr(C)]
pub struct dl_phdr_info {
    pub dlpi_addr: usize,
    pub dlpi_name: *const c_char,
    pub dlpi_phdr: *const Elf64_Phdr,
    pub dlpi_phnum: u16,
    pub dlpi_adds: u64,
    pub dlpi_subs: u64,
}

#[repr(C)]
pub struct Elf64_Phdr {
    pub p_type: u32,
    pub p_flags: u32,
    pub p_offset: u64,
    pub p_vaddr: u64,
    pub p_paddr: u64,
    pub p_filesz: u64,
    pub p_memsz: u64,
    pub p_align: u64,
}

#[repr(C)]
pub struct Elf64_Rela {
    pub r_offset: u64,
    pub r_info: u64,
    pub r_addend: i64,
}

#[repr(C)]
pub struct Elf64_Sym {
    pub st_name: u32,
    pub st_info: u8,
    pub st_other: u8,
    pub st_shndx: u16,
    pub st_value: u64,
    pub st_size: u64,
}
