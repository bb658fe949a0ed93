//! Redirects library calls to the stand-ins. A library calls another one through a table of addresses that the loader
//! filled in. While memory is watched, the entries for functions with a stand-in point to the stand-in, in all
//! libraries but the C library, the driver's and this one: Python's own, numpy's, PyTorch's, C++'s. Libraries that
//! are loaded later are found before one of their functions is looked up by name, and before anything else is
//! protected.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{sys, table};

/// The number of loads and unloads of libraries when their entries were last scanned.
static LOADED: AtomicU64 = AtomicU64::new(u64::MAX);
/// The changed entries, with their original values.
static CHANGED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// A function that replaces another one.
#[derive(Clone, Copy)]
pub struct StandIn {
    pub address: usize,
    /// Where to store the address of the real function, if it is not known otherwise.
    pub real: Option<&'static AtomicUsize>,
}

impl StandIn {
    /// Stores the address of the function that this one is about to replace.
    pub fn stands_for(self, real: usize) {
        if let Some(at) = self.real {
            at.store(real, Ordering::Release);
        }
    }
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
        for (entry, before) in &changed {
            entries.set(*entry, *before);
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

    /// Sets an entry, if its page is still mapped.
    fn set(&self, entry: usize, to: usize) -> bool {
        let at = self.maps.partition_point(|map| map.1 <= entry);
        let Some(&(from, _, writable)) = self.maps.get(at) else {
            return false;
        };
        if entry < from {
            return false;
        }
        let page = table::page();
        let start = (entry / page * page) as *mut c_void;
        // SAFETY: the entry is mapped, since it was a moment ago and nothing is unloaded meanwhile. The loader makes
        // entries read-only once it has filled them in, which is undone for this one and then restored; a word is
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
    let entries = Entries::now();
    let mut changed = CHANGED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut look = Look {
        named,
        entries: &entries,
        changed: &mut changed,
    };
    // SAFETY: the function has the required signature, and its argument outlives the call.
    unsafe { sys::dl_iterate_phdr(library, (&raw mut look).cast()) };
    LOADED.store(count, Ordering::Relaxed);
}

struct Look<'a> {
    named: Named,
    entries: &'a Entries,
    changed: &'a mut Vec<(usize, usize)>,
}

/// Whether a library's calls are not redirected: the C library, the loader, and the driver's libraries.
fn is_left_alone(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let starts = [
        "libc.so",
        "libc-",
        "ld-",
        "libpthread",
        "libcuda.so",
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
        let look = &mut *look.cast::<Look<'_>>();
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
                    look.lead(base + one.r_offset as usize, to);
                }
            }
        }
    }
    0
}

impl Look<'_> {
    /// Redirects an entry to a stand-in.
    fn lead(&mut self, entry: usize, to: StandIn) {
        // SAFETY: `entry` is in a loaded library: a word that every call reads.
        let before = unsafe { (*(entry as *const AtomicUsize)).load(Ordering::SeqCst) };
        if before == to.address || before == 0 {
            return;
        }
        to.stands_for(before);
        if self.entries.set(entry, to.address) {
            self.changed.push((entry, before));
        }
    }
}
