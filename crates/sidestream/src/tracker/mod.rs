//! What the handles of a machine share, and how it keeps their calls in order: the runtime with its threads, streams and
//! memory, what each block was used for and where those uses are over, and the one step by which anything gets into a
//! stream ([`stream::issue`]).
//!
//! Streams, events, buffers, kernels, graphs and the explicit style are faces of it: they check arguments and say what a
//! call touches. They name this module and it names none of them.
//!
//! # Words
//!
//! - **epoch**: a step of a stream, as its chain and its number there. Of two steps of one stream the later number
//!   is ordered after the other; between streams a clock knows which steps come before what is next.
//! - **point** ([`Point`](crate::order::live::Point)): an epoch with all that is ordered before it. Who waits for a point learns all of that.
//! - **recorded** ([`recorded::Recorded`]): a point where an event of the driver's was recorded, with that event. Such an event
//!   is the runtime's own, and is used again when nothing holds it.
//! - **unrecorded** ([`mark::Unrecorded`]): a point without an event. To wait for it, one is recorded when it is asked for,
//!   after all that the stream was given since: later than needed, never too early.
//! - **mark** ([`mark::Mark`]): where a use of memory is complete, one or the other. Uses, pending values and events of the
//!   safe API keep marks.
//! - **end**: the mark of all that the stream was given so far. It is recorded while `is_marked` is set, which every
//!   call that puts something into the stream takes away.
//! - **link**: what one call needs that makes a stream wait for another: an event of the other stream, recorded
//!   anew each time, and the point where it was, which the calling thread keeps until the wait is placed. Nothing
//!   holds a link later, so that it costs less than a mark.
//! - **before**: what is recorded when a stream joins a capture, for those who wait for memory that was noted on it:
//!   inside the capture no event can be recorded for them.
//! - **behind**: of a call, a point that it is ordered after without a wait, as a graph's launch is after its last.

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
