//! What the handles of a machine share, and how it keeps their calls in order: the runtime with its threads, streams and
//! memory, what each block was used for and where those uses are over, and the one step by which anything gets into a
//! stream ([`stream::issue`]).
//!
//! Streams, events, buffers, kernels, graphs and the explicit style are faces of it: they check arguments and say what a
//! call touches. They name this module and it names none of them.

mod asking;
mod behind;
mod block;
mod cached;
mod captured;
mod elsewhere;
mod explicit;
mod gone;
mod mark;
mod memory;
mod pinning;
mod process;
mod recorded;
mod registered;
mod runtime;
mod stream;
mod streams;
mod telling;
mod threads;
mod undone;
mod uses;
mod vector;
mod wakes;

pub use stream::Stream;

pub(crate) use block::{Block, BlockState, Touch};
pub(crate) use cached::Grant;
pub(crate) use captured::{Capture, Kept, Untracked};
pub(crate) use elsewhere::{
    as_host_func, as_kernel, drop_elsewhere, is_host_func, outside_callbacks,
};
pub(crate) use explicit::Freed;
pub(crate) use mark::Mark;
pub(crate) use recorded::{OwnEvent, Recorded};
pub(crate) use runtime::{Runtime, Settings};
pub(crate) use stream::{Bare, Call, Source, belong, is_of, is_priority};
pub(crate) use streams::{Core, Ended, Made};
pub(crate) use telling::{Place, plain, write};
pub(crate) use threads::as_thread;
pub(crate) use uses::{Conflicts, UseMark, Uses};
pub(crate) use vector::Vector;
pub(crate) use wakes::wake_when_over;
