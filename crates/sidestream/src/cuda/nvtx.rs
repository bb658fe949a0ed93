//! NVTX: names for sections of a thread's work, which NVIDIA's profilers show next to the device's work.
//!
//! Ranges go to the installed library, or nowhere if there is none. Without a profiler a call of the library returns
//! at once.

#![expect(
    non_snake_case,
    reason = "functions have the names that `nvToolsExt.h` gives them"
)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

use super::library::{self, NotLoaded};

/// The return type of the functions; the value is ignored.
type Code = c_int;

/// The files that are tried for the library, in this order. CUDA 13 has only the library with the new name.
const FILES: &[&str] = &[
    "libnvToolsExt.so.1",
    "libnvToolsExt.so",
    "libnvtx3interop.so.1",
    "libnvtx3interop.so",
];

library::functions! {
    /// Ranges of the calling thread. They nest: the one that was pushed last is popped first.
    #[expect(missing_docs, reason = "as in `nvToolsExt.h`")]
    pub Ranges:
    nvtxRangePushA: fn(*const c_char);
    nvtxRangePop: fn();
}

impl Ranges {
    /// Loads the library.
    ///
    /// # Safety
    /// As for [`Driver::load`](super::driver::Driver::load), with NVTX in place of the driver.
    ///
    /// # Errors
    /// If there is no such library, or it lacks a function.
    pub unsafe fn load(files: &[&str]) -> Result<Ranges, NotLoaded> {
        // SAFETY: the caller's promise.
        Ranges::of(unsafe { library::open(files)? })
    }

    /// Returns the process's library, which is searched for once; `None` if there is none.
    pub fn of_process() -> Option<&'static Ranges> {
        static RANGES: OnceLock<Option<Ranges>> = OnceLock::new();
        // SAFETY: a library that the system has under NVTX's name is assumed to be NVTX.
        let load = || unsafe { Ranges::load(FILES).ok() };
        RANGES.get_or_init(load).as_ref()
    }

    /// Begins a range.
    pub fn push(&self, name: &CStr) {
        // SAFETY: the name ends with a zero; the library copies it.
        unsafe { (self.nvtxRangePushA)(name.as_ptr()) };
    }

    /// Ends the innermost range. Without an open range, nothing happens.
    pub fn pop(&self) {
        // SAFETY: takes no arguments.
        unsafe { (self.nvtxRangePop)() };
    }
}

/// Begins a range of this name; `None` ends the innermost range.
#[inline]
pub(super) fn range(name: Option<&str>) {
    if let Some(ranges) = Ranges::of_process() {
        match name {
            // A name is cut at a zero byte, so that every range that ends has also begun.
            Some(name) => {
                let name = name.split('\0').next().unwrap_or_default();
                ranges.push(&CString::new(name).unwrap_or_default());
            }
            None => ranges.pop(),
        }
    }
}
