//! Redirects library calls to the stand-ins. A library calls another one through a table of addresses that the loader
//! filled in. While memory is watched, the entries for functions with a stand-in point to the stand-in, in all
//! libraries but the C library, the driver's and this one: Python's own, numpy's, PyTorch's, C++'s. Libraries that
//! are loaded later are found before one of their functions is looked up by name, and before anything else is
//! protected.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{ends, sys, table};

/// The number of loads and unloads of libraries when their entries were last scanned.
static LOADED: AtomicU64 = AtomicU64::new(u64::MAX);
/// The changed entries: where each is, its original value, and its value since then.
static CHANGED: Mutex<Vec<(usize, usize, usize)>> = Mutex::new(Vec::new());

/// A function that replaces another one.
#[derive(Clone, Copy)]
pub struct StandIn {
    /// The name of the real function.
    pub name: &'static CStr,
    pub address: usize,
    pub real: Real,
}

/// Which function a stand-in calls.
#[derive(Clone, Copy)]
pub enum Real {
    /// The C library's, by its name.
    Itself,
    /// The one that the entry held, whose address is to be stored here.
    Replaced(&'static AtomicUsize),
    /// The process's, whose address is here. Zero if it has none; an entry that holds another function stays.
    Allocator(&'static AtomicUsize),
}

impl StandIn {
    /// Stores the address of the function that this one is about to replace.
    pub fn stands_for(self, real: usize) {
        if let Real::Replaced(at) = self.real {
            at.store(real, Ordering::Release);
        }
    }

    /// Whether the function is replaced now.
    pub fn is_used(&self) -> bool {
        match self.real {
            Real::Allocator(at) => ends::hears() && at.load(Ordering::Relaxed) != 0,
            _ => true,
        }
    }
}

/// The address of the function that a program finds by this name; zero if there is none.
pub fn found(name: &CStr) -> usize {
    // SAFETY: the name ends with a zero byte.
    unsafe { sys::dlsym(sys::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Returns the stand-in for a function with this name.
pub type Named = fn(&[u8]) -> Option<StandIn>;

/// Redirects the calls of libraries that were loaded since the last scan.
pub fn look_again(named: Named) {
    if loaded() != LOADED.load(Ordering::Relaxed) {
        look(named);
    }
}

/// Restores all changed entries.
pub fn restore() {
    let changed = std::mem::take(&mut *CHANGED.lock().unwrap_or_else(PoisonError::into_inner));
    change(|entries| {
        for (entry, before, now) in &changed {
            entries.set(*entry, *now, *before);
        }
    });
}

/// The number of libraries that were ever loaded and unloaded.
fn loaded() -> u64 {
    unsafe extern "C" fn first(info: *mut sys::dl_phdr_info, _: usize, into: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid `info`, and `into` points to `count` below.
        unsafe { *into.cast::<u64>() = (*info).dlpi_adds.wrapping_add((*info).dlpi_subs << 32) };
        1
    }
    let mut count = 0_u64;
    // SAFETY: the function has the required signature.
    unsafe { sys::dl_iterate_phdr(first, (&raw mut count).cast()) };
    count
}

/// The process's memory mappings as they were just now, with whether each is writable.
struct Entries {
    maps: Vec<(usize, usize, bool)>,
}

/// Runs a function that changes entries, while no library is loaded or unloaded.
fn change(mut what: impl FnMut(&Entries)) {
    unsafe extern "C" fn once(_: *mut sys::dl_phdr_info, _: usize, run: *mut c_void) -> c_int {
        // SAFETY: `run` points to the closure below.
        unsafe { (*run.cast::<&mut dyn FnMut()>())() };
        1
    }
    let entries = Entries::now();
    let mut run = || what(&entries);
    let mut run: &mut dyn FnMut() = &mut run;
    // SAFETY: the function has the required signature, and the closure outlives the call.
    unsafe { sys::dl_iterate_phdr(once, (&raw mut run).cast()) };
}

impl Entries {
    fn now() -> Entries {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let map = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (from, to) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            let writable = rest.as_bytes().get(1) == Some(&b'w');
            Some((number(from)?, number(to)?, writable))
        };
        let maps = text.lines().filter_map(map).collect();
        Entries { maps }
    }

    /// Sets an entry, if its page is still mapped and it holds this value.
    fn set(&self, entry: usize, from: usize, to: usize) -> bool {
        let at = self.maps.partition_point(|map| map.1 <= entry);
        let Some(&(first, _, writable)) = self.maps.get(at) else {
            return false;
        };
        // SAFETY: the entry is mapped, since it was a moment ago and nothing is unloaded meanwhile.
        let holds = |entry| unsafe { (*(entry as *const AtomicUsize)).load(Ordering::SeqCst) };
        if entry < first || holds(entry) != from {
            return false;
        }
        let page = table::page();
        let start = (entry / page * page) as *mut c_void;
        // SAFETY: as above. The loader makes entries read-only once it has filled them in, which is undone for this one and then restored; a word is
        // stored atomically.
        unsafe {
            if !writable && sys::mprotect(start, page, sys::PROT_READ | sys::PROT_WRITE) != 0 {
                return false;
            }
            (*(entry as *const AtomicUsize)).store(to, Ordering::SeqCst);
            if !writable {
                sys::mprotect(start, page, sys::PROT_READ);
            }
        }
        true
    }
}

/// Scans the entries of all libraries.
pub fn look(named: Named) {
    let count = loaded();
    let mut look = Look {
        named,
        calls: Vec::new(),
    };
    // SAFETY: the function has the required signature, and its argument outlives the call.
    unsafe { sys::dl_iterate_phdr(library, (&raw mut look).cast()) };
    // Names are looked up here, where the loader has no lock.
    look.calls.retain_mut(Call::finds_real);
    let mut changed = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    change(|entries| {
        for Call {
            entry, before, to, ..
        } in &look.calls
        {
            if entries.set(*entry, *before, to.address) {
                changed.push((*entry, *before, to.address));
            }
        }
    });
    LOADED.store(count, Ordering::Relaxed);
}

struct Look {
    named: Named,
    calls: Vec<Call>,
}

/// An entry to be redirected.
struct Call {
    entry: usize,
    before: usize,
    to: StandIn,
    /// Whether the loader has not filled the entry in: the first call through it does.
    is_open: bool,
    /// Whether the process takes this library's way to the function for the function itself, as that of a program
    /// that is not position-independent.
    is_address: bool,
}

impl Call {
    /// Determines the real function. Returns whether the entry is redirected. A stand-in must not call the real
    /// function through an entry that is redirected to itself, or that the loader fills in at the call.
    fn finds_real(&mut self) -> bool {
        match self.to.real {
            Real::Itself => !self.is_address,
            Real::Replaced(_) if self.is_address => false,
            Real::Replaced(_) => {
                let real = if self.is_open { found(self.to.name) } else { 0 };
                self.to
                    .stands_for(if real == 0 { self.before } else { real });
                true
            }
            Real::Allocator(real) if self.is_address => {
                if self.is_open {
                    let call = found(self.to.name);
                    type Words = unsafe extern "C" fn(usize, usize, usize);
                    // SAFETY: the function frees nothing for a null pointer, and the loader fills the entry in.
                    unsafe { std::mem::transmute::<usize, Words>(call)(0, 0, 0) };
                    let entry = self.entry as *const AtomicUsize;
                    // SAFETY: a program is never unloaded.
                    let now = unsafe { (*entry).load(Ordering::SeqCst) };
                    if now == self.before {
                        return false;
                    }
                    self.before = now;
                }
                real.store(self.before, Ordering::Release);
                true
            }
            Real::Allocator(real) => {
                let known = [real.load(Ordering::Acquire), found(self.to.name)];
                self.is_open || known.contains(&self.before)
            }
        }
    }
}

/// Whether a library's calls are not redirected: the C library, the loader, and the driver's libraries with CUPTI.
fn is_left_alone(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let starts = [
        "libc.so",
        "libc-",
        "ld-",
        "libpthread",
        "libcuda.so",
        "libcupti.so",
        "libnvidia",
        "linux-vdso",
    ];
    starts.iter().any(|start| name.starts_with(start))
}

#[cfg(target_arch = "aarch64")]
const FILLED_IN: [u32; 2] = [1025, 1026];
#[cfg(not(target_arch = "aarch64"))]
const FILLED_IN: [u32; 2] = [6, 7];

/// The tags of the dynamic section that are read.
const SIZE_OF_CALLS: i64 = 2;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const RELOCATIONS: i64 = 7;
const SIZE_OF_RELOCATIONS: i64 = 8;
const CALLS: i64 = 23;

#[repr(C)]
struct Tagged {
    tag: i64,
    value: usize,
}

unsafe extern "C" fn library(info: *mut sys::dl_phdr_info, _: usize, look: *mut c_void) -> c_int {
    // SAFETY: the loader passes a loaded library with its headers. What they point to has the layout of the ELF
    // format, which the loader itself has read already. `look` is the argument that the function `look` passed.
    unsafe {
        let info = &*info;
        let look = &mut *look.cast::<Look>();
        let base = info.dlpi_addr;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
        let own = library as *const () as usize;
        let has = |address: usize| {
            let mut parts = headers
                .iter()
                .filter(|header| header.p_type == sys::PT_LOAD);
            parts.any(|part| {
                let start = base + part.p_vaddr as usize;
                (start..start + part.p_memsz as usize).contains(&address)
            })
        };
        let path = CStr::from_ptr(info.dlpi_name).to_string_lossy();
        if is_left_alone(&path) || has(own) {
            return 0;
        }
        let mut lists = headers
            .iter()
            .filter(|header| header.p_type == sys::PT_DYNAMIC);
        let Some(list) = lists.next() else {
            return 0;
        };
        let mut list = (base + list.p_vaddr as usize) as *const Tagged;
        let mut tags = [0_usize; 24];
        while (*list).tag != 0 {
            if let Some(tag) = tags.get_mut((*list).tag.clamp(0, 1 << 20) as usize) {
                *tag = (*list).value;
            }
            list = list.add(1);
        }
        // Some loaders do not relocate these addresses.
        let place = |tag: i64| match tags[tag as usize] {
            0 => None,
            value if value < base => Some(base + value),
            value => Some(value),
        };
        let (Some(strings), Some(symbols)) = (place(STRINGS), place(SYMBOLS)) else {
            return 0;
        };
        for (at, size) in [(RELOCATIONS, SIZE_OF_RELOCATIONS), (CALLS, SIZE_OF_CALLS)] {
            let Some(start) = place(at) else { continue };
            let count = tags[size as usize] / size_of::<sys::Elf64_Rela>();
            let all = std::slice::from_raw_parts(start as *const sys::Elf64_Rela, count);
            for one in all
                .iter()
                .filter(|one| FILLED_IN.contains(&(one.r_info as u32)))
            {
                let symbol = &*(symbols as *const sys::Elf64_Sym).add((one.r_info >> 32) as usize);
                let name = CStr::from_ptr((strings + symbol.st_name as usize) as *const c_char);
                // A symbol that the library defines itself is not the C library's.
                if symbol.st_shndx != 0 {
                    continue;
                }
                if let Some(to) = (look.named)(name.to_bytes()) {
                    let entry = base + one.r_offset as usize;
                    let before = (*(entry as *const AtomicUsize)).load(Ordering::SeqCst);
                    if before != to.address && before != 0 {
                        look.calls.push(Call {
                            entry,
                            before,
                            to,
                            is_open: has(before),
                            is_address: symbol.st_value != 0,
                        });
                    }
                }
            }
        }
    }
    0
}
