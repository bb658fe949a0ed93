//! The native call stack of the calling thread, cheap enough for every call of CUDA.
//!
//! `_Unwind_Backtrace` interprets the unwind table of each function anew, some 200 ns a frame. But how a caller's frame is found
//! from a return address is the same each time: so many bytes above the stack pointer, or above the frame pointer. This [`Rule`]
//! is worked out once for each return address and kept in a table without locks; after that, a frame is a lookup and one or two
//! reads of the stack, 8 ns. A frame that has no such rule (a signal handler's), and a stack that is not the thread's own (a
//! fiber's), are left to `_Unwind_Backtrace`.

mod rule;

use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

use rule::Rule;

/// How the names of NVIDIA's libraries begin, and that of the probe, which calls this one. A program's own line is where it calls them.
const SKIPPED: &str = "libcuda.so libcudart.so libcupti.so libcublas libcudnn libcufft libcurand libcusolver libcusparse libnccl.so \
                       libsanitizer-public.so libsidestream_exact.so";

/// Writes the return addresses of the calling thread into `into`, innermost first, and returns their number. Leaves out those of
/// this library and of NVIDIA's libraries at the start, since every call of CUDA has them.
#[inline(never)]
pub fn here(into: &mut [usize]) -> usize {
    let (pc, sp, fp): (usize, usize, usize);
    // SAFETY: reads three registers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) pc, out(reg) sp, out(reg) fp,
            options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("adr {}, 2f", "2:", "mov {}, sp", "mov {}, x29", out(reg) pc, out(reg) sp, out(reg) fp,
            options(nomem, nostack, preserves_flags));
    }
    let (low, high) = stack_bounds();
    let is_own = (low..high).contains(&sp);
    // From the stack pointer to the end of the stack all is mapped, whatever the rules say.
    let read = |at: usize| {
        if !is_own || at < sp || at > high.wrapping_sub(8) || !at.is_multiple_of(8) {
            return None;
        }
        // SAFETY: the word lies in the used part of this thread's stack.
        Some(unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() })
    };
    match follow(into, [pc, sp, fp], read) {
        (len, true) => len,
        _ => {
            forget_unloaded();
            here_slowly(into)
        }
    }
}

/// Like [`here`], from a program counter, a stack pointer and a frame pointer on, in a stack that was saved, as far as it was; and
/// whether that code is in NVIDIA's libraries.
pub fn saved(
    into: &mut [usize],
    [pc, sp, fp]: [usize; 3],
    read: impl Fn(usize) -> Option<usize>,
) -> (usize, bool) {
    // The code is not an address to return to.
    let first = pc.wrapping_add(1);
    let (len, _) = follow(into, [first, sp, fp], read);
    (len, rule_of(first).skipped())
}

/// Like [`here`], but by `_Unwind_Backtrace`.
pub fn here_slowly(into: &mut [usize]) -> usize {
    extern "C" fn frame(context: *mut c_void, found: *mut c_void) -> c_int {
        const END_OF_STACK: c_int = 5;
        // SAFETY: `_Unwind_Backtrace` passes a valid context, and the `found` below, which nothing else uses meanwhile.
        let (pc, (into, len)) = unsafe {
            (
                _Unwind_GetIP(context),
                &mut *found.cast::<(&mut [usize], usize)>(),
            )
        };
        if *len == 0 && pc != 0 && rule_of(pc).skipped() {
            return 0;
        }
        let Some(slot) = into.get_mut(*len).filter(|_| pc != 0) else {
            return END_OF_STACK;
        };
        *slot = pc;
        *len += 1;
        0
    }
    let mut found = (into, 0_usize);
    // SAFETY: `frame` has the type of such a function, and `found` lives until the call returns.
    unsafe { _Unwind_Backtrace(frame, (&raw mut found).cast()) };
    found.1
}

/// The module (the program or a library) whose code holds `pc`: how far it was moved when it was loaded, and its path. `pc` less
/// that distance is the address inside the file.
pub fn module_of(pc: usize) -> Option<(usize, PathBuf)> {
    let mut module = None;
    with_module(pc, &mut |info, name| {
        let path = if name.is_empty() {
            Path::new("/proc/self/exe")
        } else {
            Path::new(OsStr::from_bytes(name))
        };
        module = Some((
            info.bias,
            path.canonicalize().unwrap_or_else(|_| path.to_path_buf()),
        ));
    });
    module
}

/// Follows the stack by the rules. Returns the number of frames, and whether they are all: not if a frame has no rule.
fn follow(
    into: &mut [usize],
    [mut pc, mut sp, mut fp]: [usize; 3],
    read: impl Fn(usize) -> Option<usize>,
) -> (usize, bool) {
    let unloaded = UNLOADED.load(Acquire);
    let mut len = 0;
    let mut outer = |len: &mut usize| {
        while *len < into.len() {
            let rule = rule_of(pc);
            if *len > 0 || !rule.skipped() {
                into[*len] = pc;
                *len += 1;
            }
            let cfa = match rule.kind() {
                Rule::FROM_SP => sp.wrapping_add_signed(rule.offset(Rule::CFA)),
                Rule::FROM_FP => fp.wrapping_add_signed(rule.offset(Rule::CFA)),
                Rule::SAVED => read(fp.wrapping_add_signed(rule.offset(Rule::CFA)))?,
                Rule::END => break,
                _ => return None,
            };
            pc = without_signature(read(cfa.wrapping_add_signed(rule.offset(Rule::RA)))?);
            fp = match rule.offset(Rule::FP) {
                Rule::KEPT => fp,
                _ if rule.kind() == Rule::SAVED => read(fp)?,
                offset => read(cfa.wrapping_add_signed(offset))?,
            };
            if cfa <= sp || pc == 0 {
                return None;
            }
            sp = cfa;
        }
        Some(())
    };
    let are_all = outer(&mut len).is_some();
    // Otherwise the first rules may have been those of an unloaded module.
    (len, are_all && UNLOADED.load(Acquire) == unloaded)
}

/// Whether a return address is in this library or one of NVIDIA's.
pub fn is_skipped(pc: usize) -> bool {
    rule_of(pc).skipped()
}

/// `pc` without the signature that some arm64 processors add to a saved return address.
fn without_signature(pc: usize) -> usize {
    #[cfg(target_arch = "aarch64")]
    {
        let mut pc = pc;
        // SAFETY: the instruction, a hint that older processors ignore, changes this register alone.
        unsafe {
            std::arch::asm!("mov x30, {0}", "hint #7", "mov {0}, x30", inout(reg) pc, out("x30") _)
        };
        return pc;
    }
    #[cfg(not(target_arch = "aarch64"))]
    pc
}

/// A return address and its rule; zeros for none.
struct Entry(AtomicUsize, AtomicU64);

/// Of 256 KiB. A program calls CUDA below some thousands of return addresses.
static TABLE: [Entry; 1 << 14] = [const { Entry(AtomicUsize::new(0), AtomicU64::new(0)) }; 1 << 14];
/// How many modules had been unloaded when a rule was last worked out.
static UNLOADED: AtomicU64 = AtomicU64::new(0);

/// The entries that may be `pc`'s.
fn entries(pc: usize) -> impl Iterator<Item = &'static Entry> {
    let first = pc ^ pc >> 14;
    (first..first.wrapping_add(16)).map(|at| &TABLE[at % TABLE.len()])
}

#[inline]
fn rule_of(pc: usize) -> Rule {
    for Entry(key, rule) in entries(pc) {
        let found = key.load(Acquire);
        if found == pc {
            let rule = rule.load(Acquire);
            // The table may have been emptied in between.
            if rule != 0 && key.load(Relaxed) == pc {
                return Rule(rule);
            }
        }
        if found == pc || found == 0 {
            break;
        }
    }
    learn(pc)
}

/// Empties the table if modules have been unloaded: what is loaded in their place has other rules.
fn forget_unloaded() {
    extern "C" fn first(info: &ModuleInfo, _size: usize, unloaded: *mut c_void) -> c_int {
        // SAFETY: the linker passes the `unloaded` below.
        unsafe { *unloaded.cast() = info.unloaded };
        1
    }
    let mut unloaded = 0_u64;
    // SAFETY: `first` has the type of such a function, and `unloaded` lives until the call returns.
    unsafe { dl_iterate_phdr(first, (&raw mut unloaded).cast()) };
    if UNLOADED.swap(unloaded, AcqRel) != unloaded {
        for Entry(key, rule) in &TABLE {
            rule.store(0, Release);
            key.store(0, Release);
        }
    }
}

#[cold]
fn learn(pc: usize) -> Rule {
    let mut module = None;
    forget_unloaded();
    with_module(pc, &mut |info, name| {
        let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let is_nvidia = SKIPPED
            .split(' ')
            .any(|start| file.starts_with(start.as_bytes()));
        module = Some(is_nvidia || info.holds(here as *const () as usize));
    });
    // Code that a compiler has made in memory often has no table; `_Unwind_Backtrace` would find none either.
    let without_table = if module.is_some() {
        Rule::UNKNOWN
    } else {
        Rule::END
    };
    let Rule(rule) = Rule::at(pc).unwrap_or(Rule(without_table));
    let learnt = Rule(rule | u64::from(module == Some(true)) << 3);
    for Entry(key, rule) in entries(pc) {
        let found = key
            .compare_exchange(0, pc, AcqRel, Acquire)
            .unwrap_or_else(|found| found);
        if found == 0 || found == pc {
            rule.store(learnt.0, Release);
            break;
        }
    }
    learnt
}

/// What the dynamic linker says of a loaded module (`struct dl_phdr_info`).
#[repr(C)]
struct ModuleInfo {
    bias: usize,
    name: *const c_char,
    segments: *const Segment,
    segment_count: u16,
    loaded: u64,
    unloaded: u64,
}

/// A part of a module's file (`Elf64_Phdr`): its type and flags, and then offset, address, physical address, size in the file, size in
/// memory, alignment.
#[repr(C)]
struct Segment(u32, u32, [u64; 6]);

impl ModuleInfo {
    fn holds(&self, pc: usize) -> bool {
        const LOADED: u32 = 1;
        // SAFETY: the linker gives the array and its length.
        let segments =
            unsafe { std::slice::from_raw_parts(self.segments, self.segment_count.into()) };
        let at = pc.wrapping_sub(self.bias) as u64;
        let holds = |&Segment(kind, _, [_, address, _, _, size, _]): &_| {
            kind == LOADED && at.wrapping_sub(address) < size
        };
        segments.iter().any(holds)
    }
}

/// Calls `found` with the module that holds `pc` and its name, if there is one.
fn with_module(pc: usize, found: &mut dyn FnMut(&ModuleInfo, &[u8])) {
    struct Search<'a>(usize, &'a mut dyn FnMut(&ModuleInfo, &[u8]));
    extern "C" fn module(info: &ModuleInfo, _size: usize, search: *mut c_void) -> c_int {
        // SAFETY: the linker passes the `Search` below, which nothing else uses meanwhile.
        let Search(pc, found) = unsafe { &mut *search.cast() };
        let holds = info.holds(*pc);
        if holds {
            // SAFETY: the linker ends the name with a zero.
            found(info, unsafe { CStr::from_ptr(info.name) }.to_bytes());
        }
        holds.into()
    }
    let mut search = Search(pc, found);
    // SAFETY: `module` has the type of such a function, and `search` lives until the call returns.
    unsafe { dl_iterate_phdr(module, (&raw mut search).cast()) };
}

/// The lowest address of this thread's stack and the end of the highest; an empty range if they are not known.
fn stack_bounds() -> (usize, usize) {
    thread_local!(static BOUNDS: Cell<Option<(usize, usize)>> = const { Cell::new(None) });
    BOUNDS.get().unwrap_or_else(|| {
        // `pthread_attr_t` has 56 bytes, and 64 on arm64.
        let (mut attributes, mut low, mut size) = ([0; 8], 0, 0);
        // SAFETY: the calls write variables of these types.
        unsafe {
            if pthread_getattr_np(pthread_self(), &mut attributes) == 0 {
                pthread_attr_getstack(&attributes, &mut low, &mut size);
                pthread_attr_destroy(&mut attributes);
            }
        }
        BOUNDS.set(Some((low, low.saturating_add(size))));
        (low, low.saturating_add(size))
    })
}

unsafe extern "C" {
    fn _Unwind_Backtrace(
        frame: extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        found: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn dl_iterate_phdr(
        module: extern "C" fn(&ModuleInfo, usize, *mut c_void) -> c_int,
        search: *mut c_void,
    ) -> c_int;
    fn pthread_self() -> usize;
    fn pthread_getattr_np(thread: usize, attributes: &mut [u64; 8]) -> c_int;
    fn pthread_attr_getstack(attributes: &[u64; 8], low: &mut usize, size: &mut usize) -> c_int;
    fn pthread_attr_destroy(attributes: &mut [u64; 8]) -> c_int;
}
