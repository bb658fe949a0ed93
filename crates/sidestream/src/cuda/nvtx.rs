//! NVTX: names for parts of what a thread does, which NVIDIA's profilers show beside the device's work.
//!
//! Ranges go to the library that is there, and nowhere if there is none. Without a profiler a call of the
//! library returns at once.

#![expect(
    non_snake_case,
    reason = "functions have the names that `nvToolsExt.h` gives them"
)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

use super::library::{self, NotLoaded};

/// What a function answers, which nobody asks about.
type Code = c_int;

/// Where the library is looked for, in this order. CUDA 13 has it under its new name only.
const FILES: &[&str] = &[
    "libnvToolsExt.so.1",
    "libnvToolsExt.so",
    "libnvtx3interop.so.1",
    "libnvtx3interop.so",
];

library::functions! {
    /// Ranges of the calling thread. They lie within each other: what was pushed last is popped first.
    #[expect(missing_docs, reason = "as in `nvToolsExt.h`")]
    pub Ranges:
    nvtxRangePushA: fn(*const c_char);
    nvtxRangePop: fn();
}

impl Ranges {
    /// Loads the library.
    ///
    /// # Safety
    /// As for [`Driver::load`](super::driver::Driver::load), of NVTX.
    ///
    /// # Errors
    /// If there is none, or it lacks a function.
    pub unsafe fn load(files: &[&str]) -> Result<Ranges, NotLoaded> {
        // SAFETY: the caller's promise.
        Ranges::of(unsafe { library::open(files)? })
    }

    /// Those of this process: the library is looked for once. None where there is none.
    pub fn of_process() -> Option<&'static Ranges> {
        static RANGES: OnceLock<Option<Ranges>> = OnceLock::new();
        // SAFETY: what the system has under NVTX's name is taken to be NVTX.
        let load = || unsafe { Ranges::load(FILES).ok() };
        RANGES.get_or_init(load).as_ref()
    }

    /// A range begins.
    pub fn push(&self, name: &CStr) {
        // SAFETY: the name ends with a zero; the library copies it.
        unsafe { (self.nvtxRangePushA)(name.as_ptr()) };
    }

    /// The range that began last ends. Without one, nothing happens.
    pub fn pop(&self) {
        // SAFETY: takes nothing.
        unsafe { (self.nvtxRangePop)() };
    }
}

/// Begins a range of this name, or ends the one that began last.
#[inline]
pub(super) fn range(name: Option<&str>) {
    if let Some(ranges) = Ranges::of_process() {
        match name {
            // A name is cut at a zero, so that each range that ends has begun.
            Some(name) => {
                let name = name.split('\0').next().unwrap_or_default();
                ranges.push(&CString::new(name).unwrap_or_default());
            }
            None => ranges.pop(),
        }
    }
}
