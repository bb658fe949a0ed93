//! What a library calls in another one goes by a table of addresses that the loader filled in. While memory is watched, the entries
//! for functions that have a stand-in lead there, in all libraries but the C library, the driver's and this one: Python's own, numpy's,
//! PyTorch's, C++'s. Libraries that are loaded later are found before a function of theirs is looked up by name, and before anything else
//! is protected.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::size_t;
use parking_lot::Mutex;

use crate::table;

/// How many libraries had been loaded when their entries were looked at last.
static LOADED: AtomicU64 = AtomicU64::new(u64::MAX);
/// Entries that were changed, and what they were.
static CHANGED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// A function that stands in for another.
#[derive(Clone, Copy)]
pub struct StandIn {
    pub address: usize,
    /// Where to keep the address of the real one, where that is not known otherwise.
    pub real: Option<&'static AtomicUsize>,
}

impl StandIn {
    /// It is about to take the place of a function at this address.
    pub fn stands_for(self, real: usize) {
        if let Some(at) = self.real {
            at.store(real, Ordering::Release);
        }
    }
}

/// What stands in for a function of this name.
pub type Named = fn(&[u8]) -> Option<StandIn>;

/// Leads the calls of libraries that were loaded since the last look.
pub fn look_again(named: Named) {
    if loaded() != LOADED.load(Ordering::Relaxed) {
        look(named);
    }
}

/// Everything is as it was.
pub fn restore() {
    let changed = std::mem::take(&mut *CHANGED.lock());
    change(|entries| {
        for (entry, before) in &changed {
            entries.set(*entry, *before);
        }
    });
}

/// How many libraries were ever loaded and unloaded.
fn loaded() -> u64 {
    unsafe extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _: size_t,
        into: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader gives what it says, and `into` is the number below.
        unsafe { *into.cast::<u64>() = (*info).dlpi_adds.wrapping_add((*info).dlpi_subs << 32) };
        1
    }
    let mut count = 0_u64;
    // SAFETY: the function has the signature that is asked for.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut count).cast()) };
    count
}

/// Where memory can be written, as it was just now.
struct Entries {
    maps: Vec<(usize, usize, bool)>,
}

/// Runs something that changes entries, while nothing is loaded or unloaded.
fn change(mut what: impl FnMut(&Entries)) {
    unsafe extern "C" fn once(_: *mut libc::dl_phdr_info, _: size_t, run: *mut c_void) -> c_int {
        // SAFETY: it is the closure below.
        unsafe { (*run.cast::<&mut dyn FnMut()>())() };
        1
    }
    let entries = Entries::now();
    let mut run = || what(&entries);
    let mut run: &mut dyn FnMut() = &mut run;
    // SAFETY: the function has the signature that is asked for, and the closure outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(once), (&raw mut run).cast()) };
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

    /// Sets an entry, if it is where entries were.
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
        // SAFETY: the entry is mapped, since it was a moment ago and nothing is unloaded meanwhile. The loader closes entries to
        // stores once it has filled them in, which is undone for this one and then done again; a word is stored at once.
        unsafe {
            if !writable && libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                return false;
            }
            (*(entry as *const AtomicUsize)).store(to, Ordering::SeqCst);
            if !writable {
                libc::mprotect(start, page, libc::PROT_READ);
            }
        }
        true
    }
}

/// Looks at the entries of all libraries.
pub fn look(named: Named) {
    let count = loaded();
    let entries = Entries::now();
    let mut changed = CHANGED.lock();
    let mut look = Look {
        named,
        entries: &entries,
        changed: &mut changed,
    };
    // SAFETY: the function has the signature that is asked for, and what it is given outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(library), (&raw mut look).cast()) };
    LOADED.store(count, Ordering::Relaxed);
}

struct Look<'a> {
    named: Named,
    entries: &'a Entries,
    changed: &'a mut Vec<(usize, usize)>,
}

/// Libraries whose calls stay as they are: the C library and the loader, and the driver's.
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

/// What the loader keeps of a library for itself, as far as it is asked for: the tags of the list.
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

unsafe extern "C" fn library(info: *mut libc::dl_phdr_info, _: size_t, look: *mut c_void) -> c_int {
    // SAFETY: the loader gives what it says: a library that is loaded, with its headers. What they lead to is laid out by the format
    // of such files, in which it was read already by the loader. `look` is what `look` gave.
    unsafe {
        let info = &*info;
        let look = &mut *look.cast::<Look<'_>>();
        let base = info.dlpi_addr as usize;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
        let own = library as *const () as usize;
        let has = |address: usize| {
            let mut parts = headers
                .iter()
                .filter(|header| header.p_type == libc::PT_LOAD);
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
            .filter(|header| header.p_type == libc::PT_DYNAMIC);
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
        // Some loaders leave the addresses as they are in the file.
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
            let count = tags[size as usize] / size_of::<libc::Elf64_Rela>();
            let all = std::slice::from_raw_parts(start as *const libc::Elf64_Rela, count);
            for one in all
                .iter()
                .filter(|one| FILLED_IN.contains(&(one.r_info as u32)))
            {
                let symbol = &*(symbols as *const libc::Elf64_Sym).add((one.r_info >> 32) as usize);
                let name = CStr::from_ptr((strings + symbol.st_name as usize) as *const c_char);
                // What is defined in the library itself is none of the C library's.
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
    /// Makes an entry lead to where it should.
    fn lead(&mut self, entry: usize, to: StandIn) {
        // SAFETY: an entry of a library that is loaded: a word that is read by every call.
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
