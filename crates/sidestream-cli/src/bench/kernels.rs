//! The kernels that are measured, for the driver by their text and for the runtime by their type.

use sidestream::kernel::library::{self, OverlapStep};
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

/// The kernel of the overlap job: input, output, elements, work.
pub fn step() -> Kernel<OverlapStep> {
    // SAFETY: the pipelines pass the rows of their buffers, or fewer.
    unsafe { library::overlap_step() }
}
