//! Arguments of the driver's functions: places for results, lists, and the parameters of kernels.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use crate::codes::{Answer, INVALID_VALUE};
use crate::ptx::Param;

/// The place of a function's result; none if it is null.
pub type Out<'a, T> = Option<&'a Cell<MaybeUninit<T>>>;

/// Writes a result. Does nothing if there is no place for it.
pub fn give<T>(place: Out<T>, answer: impl FnOnce() -> Answer<T>) -> Answer<()> {
    let place = place.ok_or(INVALID_VALUE)?;
    place.set(MaybeUninit::new(answer()?));
    Ok(())
}

/// # Safety
/// If `at` is not null, `count` values can be read from it.
pub unsafe fn list<'a, T>(at: *const T, count: usize) -> Answer<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() || count > MOST_NODES {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller promises it.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// The maximum number of dependencies of a node.
pub const MOST_NODES: usize = 1 << 20;

/// Returns the values of a kernel's parameters, in words of eight bytes: a structure has
/// several.
///
/// # Safety
/// If `params` is not null, it points to as many pointers as there are places, and each pointer that is not null
/// points to as many bytes as its place has.
pub unsafe fn values(params: *mut *mut c_void, places: &[Param]) -> Answer<Vec<u64>> {
    if params.is_null() && !places.is_empty() {
        return Err(INVALID_VALUE);
    }
    let mut words = Vec::new();
    for (at, &Param { bytes: len, .. }) in places.iter().enumerate() {
        // SAFETY: the caller promises it.
        let from = unsafe { *params.add(at) }.cast::<u8>();
        if from.is_null() {
            return Err(INVALID_VALUE);
        }
        for start in (0..len as usize).step_by(8) {
            let mut word = [0; 8];
            let left = (len as usize - start).min(8);
            // SAFETY: the caller promises that `len` bytes are there, and there is room for eight.
            unsafe {
                let from = from.add(start);
                from.copy_to_nonoverlapping(word.as_mut_ptr(), left);
            }
            words.push(u64::from_le_bytes(word));
        }
    }
    Ok(words)
}

/// Returns a text of the caller.
///
/// # Safety
/// If `at` is not null, it points to a text that ends with a zero byte.
pub unsafe fn text<'a>(at: *const c_char) -> Answer<&'a CStr> {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller promises it.
    Ok(unsafe { CStr::from_ptr(at) })
}

/// Writes a constant text, or null for an unknown code.
pub fn word(place: Out<*const c_char>, text: Option<&'static CStr>) -> Answer<()> {
    let at = text.map_or(std::ptr::null(), CStr::as_ptr);
    give(place, || Ok(at))?;
    text.map(|_| ()).ok_or(INVALID_VALUE)
}
