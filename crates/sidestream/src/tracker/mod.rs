//! State that the handles of a machine share, and how it keeps their calls in order: the runtime with its threads,
//! streams and memory, the uses of each block and the points at which they are complete, and the one step by which
//! any call enters a stream ([`stream::issue`]).
//!
//! Streams, events, buffers, kernels, graphs and the explicit style are built on it: they check arguments and state
//! what a call touches. They use this module; it uses none of them.
//!
//! # Words
//!
//! - **epoch**: a step of a stream, as the stream's chain and a number on that chain. Of two steps of one stream, the
//!   one with the higher number is ordered after the other; between streams, a clock knows which steps come before
//!   what is next.
//! - **point** ([`Point`](crate::order::live::Point)): an epoch with everything that is ordered before it. A wait for
//!   a point is ordered after all of that.
//! - **recorded** ([`recorded::Recorded`]): a point at which a driver event was recorded, with that event. Such an
//!   event belongs to the runtime, and is reused when nothing refers to it.
//! - **unrecorded** ([`mark::Unrecorded`]): a point without an event. When a wait for it is requested an event is
//!   recorded, after all work submitted to the stream meanwhile: later than needed, never too early.
//! - **mark** ([`mark::Mark`]): the point at which a use of memory is complete, recorded or unrecorded. Uses, pending
//!   values and events of the safe API contain marks.
//! - **end**: the mark of all work submitted to the stream so far. It is recorded while `is_marked` is set; every call
//!   that enters the stream clears that flag.
//! - **link**: what a single call that makes a stream wait for another needs: an event of the other stream, recorded
//!   again for each call, and its point, which the calling thread keeps until the wait is placed. Nothing refers to a
//!   link later, so it costs less than a mark.
//! - **before**: the event recorded when a stream joins a capture, for waits for memory that was noted on the stream:
//!   inside the capture no event can be recorded for them.
//! - **behind**: a point that a call is ordered after without a wait, as a launch of a graph is ordered after the
//!   graph's previous launch.

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
