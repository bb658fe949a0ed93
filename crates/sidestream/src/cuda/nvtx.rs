//! NVTX: names for parts of what a thread does, which NVIDIA's profilers show beside the device's work.
//!
//! Ranges go to the library that is there, and nowhere if there is none. Without a profiler a call of the
//! library returns at once.

#![expect(
    non_snake_case,
    reason = "functions have the names that `nvToolsExt.h` gives them"
)]

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::Library;

use super::library::{self, NotLoaded};

/// Where the library is looked for, in this order. CUDA 13 has it under its new name only.
const FILES: &[&str] = &[
    "libnvToolsExt.so.1",
    "libnvToolsExt.so",
    "libnvtx3interop.so.1",
    "libnvtx3interop.so",
];

/// Ranges of the calling thread. They lie within each other: what was pushed last is popped first.
pub struct Ranges {
    nvtxRangePushA: unsafe extern "C" fn(*const c_char) -> c_int,
    nvtxRangePop: unsafe extern "C" fn() -> c_int,
    // What the functions point into; never unloaded, because a profiler may be hooked into it.
    _library: ManuallyDrop<Library>,
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
        let (library, file) = unsafe { library::open(files)? };
        // SAFETY: the caller promises that it is NVTX, which exports these functions with the types that
        // `nvToolsExt.h` gives them.
        let (push, pop) = unsafe {
            (
                *library::function(&library, &file, "nvtxRangePushA")?,
                *library::function(&library, &file, "nvtxRangePop")?,
            )
        };
        Ok(Ranges {
            nvtxRangePushA: push,
            nvtxRangePop: pop,
            _library: ManuallyDrop::new(library),
        })
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
