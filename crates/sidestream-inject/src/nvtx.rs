//! Ranges that a program names with NVTX: each library that uses NVTX loads the one that `NVTX_INJECTION64_PATH` names.
//!
//! That could be CUPTI, which then records ranges. But it would have to be the file that the program loads, it tells of a
//! range late, and the one of CUDA 13.0.0 crashes if a program names its threads.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};

use crate::activity::{range_begins, range_ends};
use crate::system::text;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
pub struct Exported {
    bytes: usize,
    functions:
        Option<unsafe extern "C" fn(c_int, *mut *const *mut *const c_void, *mut u32) -> c_int>,
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
struct Attributes {
    others: [u64; 4],
    message_kind: u32,
    message: *const c_char,
}

thread_local! {
    /// The ranges of a thread that are open: their starts and names.
    static OPEN: RefCell<Vec<(u64, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
}

/// The entry point that NVTX calls in a library that uses it. Replaces the functions by which a thread begins and ends a
/// range.
///
/// # Safety
/// NVTX calls it, with the function that returns its tables.
#[cfg_attr(injected, unsafe(no_mangle))]
#[allow(non_snake_case, reason = "NVTX looks for this name")]
pub unsafe extern "C" fn InitializeInjectionNvtx2(
    table: unsafe extern "C" fn(u32) -> *const Exported,
) -> c_int {
    // The numbers are those of `NvtxCallbackModule`, `NvtxCallbackIdCore` and `NvtxCallbackIdCore2`.
    const FUNCTIONS: [(c_int, usize, *const c_void); 6] = [
        (1, 8, push_attributes as *const c_void),
        (1, 9, push as *const c_void),
        (1, 11, pop as *const c_void),
        (5, 4, push_in_domain as *const c_void),
        (5, 5, pop_in_domain as *const c_void),
        (5, 10, register as *const c_void),
    ];
    // SAFETY: the caller promises it; 1 is the table of functions.
    let Some(functions) = (unsafe { table(1).as_ref() }).and_then(|table| table.functions) else {
        return 0;
    };
    for (module, at, function) in FUNCTIONS {
        let (mut places, mut count) = (std::ptr::null(), 0);
        // SAFETY: NVTX returns an array of pointers to functions and its length; the functions may be replaced now.
        unsafe {
            if functions(module, &mut places, &mut count) == 1 && at < count as usize {
                **places.add(at) = function;
            }
        }
    }
    1
}

/// Uses the open ranges of the thread, unless it is about to end.
fn with_open<T: Default>(f: impl FnOnce(&mut Vec<(u64, Vec<u8>)>) -> T) -> T {
    OPEN.try_with(|open| f(&mut open.borrow_mut()))
        .unwrap_or_default()
}

fn begins(name: &[u8]) -> c_int {
    let range = (range_begins(name), name.to_owned());
    with_open(|open| {
        open.push(range);
        open.len() as c_int - 1
    })
}

extern "C" fn push(name: *const c_char) -> c_int {
    // SAFETY: the program passes a text.
    begins(unsafe { text(name) })
}

/// A name of wide characters counts as none.
extern "C" fn push_attributes(attributes: *const Attributes) -> c_int {
    // SAFETY: the program passes attributes as NVTX requires. A message of kind 1 is a text, one of kind 3 a registered one.
    begins(unsafe {
        match attributes.as_ref() {
            Some(attributes) if [1, 3].contains(&attributes.message_kind) => {
                text(attributes.message)
            }
            _ => &[],
        }
    })
}

extern "C" fn push_in_domain(_: *const c_void, attributes: *const Attributes) -> c_int {
    push_attributes(attributes)
}

extern "C" fn pop() -> c_int {
    let (range, left) = with_open(|open| (open.pop(), open.len()));
    if let Some((start, name)) = range {
        range_ends(start, &name);
    }
    left as c_int
}

extern "C" fn pop_in_domain(_: *const c_void) -> c_int {
    pop()
}

/// Returns a copy of a text, by whose address the program names it from now on.
extern "C" fn register(_: *const c_void, name: *const c_char) -> *const c_char {
    // SAFETY: the program passes a text.
    let name = unsafe { text(name) };
    let copy = name.iter().chain(&[0]).copied().collect::<Vec<u8>>();
    copy.leak().as_ptr().cast()
}
