//! The kernel that is measured, for the driver by its text and for the runtime by its type.

use sidestream::kernel::{Kernel, Write};
use sidestream::ptx;

/// Does nothing. It has no parameter, and takes no notice of what it is given.
pub type Empty = Kernel<(Write<u32>,)>;

/// A kernel that says it writes a buffer, so that its launches are tracked, and does nothing.
pub fn empty() -> Empty {
    // SAFETY: the entry has no parameters, so that the driver reads none of those it is given, and
    // it touches no memory.
    let kernel = unsafe { Empty::from_ptx(&ptx::EMPTY, "empty") };
    kernel.and_on_host(|_, _| ())
}
