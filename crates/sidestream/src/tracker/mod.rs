//! What the handles of a machine share, and how it keeps their calls in order: the runtime with its threads, streams and
//! memory, what each block was used for and where those uses are over, and the one step by which anything gets into a
//! stream ([`stream::issue`]).
//!
//! Streams, events, buffers, kernels, graphs and the explicit style are faces of it: they check arguments and say what a
//! call touches. They name this module and it names none of them.

mod block;
mod elsewhere;
mod explicit;
mod gone;
mod mark;
mod memory;
mod process;
mod registered;
mod runtime;
mod stream;
mod threads;
mod uses;
mod vector;

pub use stream::Stream;

pub(crate) use block::{Block, BlockState};
pub(crate) use elsewhere::{
    as_host_func, as_kernel, drop_elsewhere, is_host_func, outside_callbacks, wake_when_over,
};
pub(crate) use explicit::{Capture, Freed, Kept, Untracked};
pub(crate) use mark::{Mark, OwnEvent, Recorded};
pub(crate) use memory::Grant;
pub(crate) use runtime::{Place, Runtime, Settings, plain, write};
pub(crate) use stream::{Bare, Call, Core, Ended, Made, Source, Touch, belong, is_of, is_priority};
pub(crate) use threads::as_thread;
pub(crate) use uses::{Conflicts, UseMark, Uses};
pub(crate) use vector::Vector;
