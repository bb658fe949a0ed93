//! Stand-ins for the calls that free memory of the heap, so that the end of watched memory is heard ([`ends`]). They run
//! at each call of the whole program: while nothing is watched or protected, they are two loads and a jump.
//!
//! A library may call an allocator of its own; its entries are left alone, since they hold another address than the
//! process's function of that name. The extent of a block is what `malloc_usable_size` says, if it is of the same
//! allocator.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::entries::{self, Real, StandIn};
use super::{ends, library_at, table};

type ThreeWords = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;

/// Defines the stand-ins, by index: symbol, and the name of the call that is recorded.
macro_rules! stand_ins {
    ($($stand_in:ident $number:literal $symbol:literal $name:literal)+) => {
        const NAMES: &[(&CStr, &str)] = &[$(($symbol, $name)),+];
        const STAND_INS: &[ThreeWords] = &[$($stand_in::<$number>),+];
    };
}

stand_ins! {
    free 0 c"free" "free"
    realloc 1 c"realloc" "realloc" realloc 2 c"reallocarray" "reallocarray"
    free 3 c"_ZdlPv" "operator delete" free 4 c"_ZdaPv" "operator delete[]"
    free 5 c"_ZdlPvm" "operator delete" free 6 c"_ZdaPvm" "operator delete[]"
    free 7 c"_ZdlPvSt11align_val_t" "operator delete" free 8 c"_ZdaPvSt11align_val_t" "operator delete[]"
    free 9 c"_ZdlPvmSt11align_val_t" "operator delete" free 10 c"_ZdaPvmSt11align_val_t" "operator delete[]"
    free 11 c"_ZdlPvRKSt9nothrow_t" "operator delete" free 12 c"_ZdaPvRKSt9nothrow_t" "operator delete[]"
    free 13 c"_ZdlPvSt11align_val_tRKSt9nothrow_t" "operator delete"
    free 14 c"_ZdaPvSt11align_val_tRKSt9nothrow_t" "operator delete[]"
}

const REALLOC: usize = 1;
const FIRST_DELETE: usize = 3;

/// The addresses of the real functions; zero for one that has no stand-in.
static REAL: [AtomicUsize; NAMES.len()] = [const { AtomicUsize::new(0) }; NAMES.len()];
/// The address of `malloc_usable_size`; zero if it is not of the same allocator as `free`.
static USABLE: AtomicUsize = AtomicUsize::new(0);

/// Looks the real functions up.
pub fn begin() {
    let usable = entries::found(c"malloc_usable_size");
    let allocator = library_at(entries::found(NAMES[0].0)).map(|library| library.0);
    let is_of_it = |at: usize| {
        let library = library_at(at).map(|library| library.0);
        library.is_some() && library == allocator
    };
    if is_of_it(usable) {
        USABLE.store(usable, Ordering::Release);
    }
    for (at, ((symbol, _), real)) in NAMES.iter().zip(&REAL).enumerate() {
        let address = entries::found(symbol);
        // C++'s own `operator delete` frees what the allocator returned; a program's need not.
        let is_plain = || {
            let library = library_at(address);
            library.is_some_and(|(_, name)| {
                name.starts_with("libstdc++.") || name.starts_with("libc++")
            })
        };
        if real.load(Ordering::Relaxed) == 0
            && (at < FIRST_DELETE || is_of_it(address) || is_plain())
        {
            real.store(address, Ordering::Release);
        }
    }
}

pub fn all() -> impl Iterator<Item = StandIn> {
    let all = NAMES.iter().zip(STAND_INS).zip(&REAL);
    all.map(|(((name, _), to), real)| StandIn {
        name,
        address: *to as *const () as usize,
        real: Real::Allocator(real),
    })
}

#[inline]
fn real(at: usize) -> ThreeWords {
    let address = REAL[at].load(Ordering::Acquire);
    // SAFETY: a stand-in is used only once the address of its function is known; it takes at most three words, and
    // ignores the others.
    unsafe { std::mem::transmute::<usize, ThreeWords>(address) }
}

#[inline]
fn is_any_watched() -> bool {
    ends::has_any() || table::has_any()
}

/// `free`, and each `operator delete`: what it passes on besides the address differs.
unsafe extern "C" fn free<const N: usize>(at: *mut c_void, a: usize, b: usize) -> *mut c_void {
    if is_any_watched() {
        before_free(at, NAMES[N].1);
    }
    // SAFETY: the arguments are those of the replaced call.
    unsafe { real(N)(at, a, b) }
}

#[inline(never)]
fn before_free(at: *mut c_void, call: &'static str) {
    let (start, end) = extent(at);
    table::forget(start, end);
    ends::ended(start, end, call, usize::MAX);
}

/// `realloc` and `reallocarray`.
unsafe extern "C" fn realloc<const N: usize>(at: *mut c_void, a: usize, b: usize) -> *mut c_void {
    if !is_any_watched() {
        // SAFETY: the arguments are those of the replaced call.
        return unsafe { real(N)(at, a, b) };
    }
    let (start, end) = extent(at);
    table::forget(start, end);
    let first = ends::so_far();
    // SAFETY: as above.
    let new = unsafe { real(N)(at, a, b) };
    let is_empty = a == 0 || (N != REALLOC && b == 0);
    if new == at {
        ends::ended(extent(new).1, end, NAMES[N].1, first);
    } else if !new.is_null() || is_empty {
        ends::ended(start, end, NAMES[N].1, first);
    }
    new
}

/// The bounds of a block: of one byte, if its size is unknown.
fn extent(at: *mut c_void) -> (usize, usize) {
    let start = at as usize;
    let usable = USABLE.load(Ordering::Acquire);
    if start == 0 || usable == 0 {
        return (start, start + usize::from(start != 0));
    }
    type Usable = unsafe extern "C" fn(*mut c_void) -> usize;
    // SAFETY: the function has this signature, and the block is one of its allocator, since it is passed to its `free`.
    let bytes = unsafe { std::mem::transmute::<usize, Usable>(usable)(at) };
    (start, start.saturating_add(bytes))
}
