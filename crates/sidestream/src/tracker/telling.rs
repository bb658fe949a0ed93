//! What the log is told of a call: an operation, and where the program made it.

use std::panic::Location;

use crate::log::Pen;
use crate::op::{Accesses, Kind, Op, OpId, SiteId, ThreadId};

/// Where the user's code made the call.
pub(crate) type Place = &'static Location<'static>;

/// An operation without accesses.
#[inline]
pub(crate) fn plain(thread: ThreadId, kind: Kind, pen: &mut Option<Pen<'_>>, at: Place) -> Op {
    let (id, site) = match pen {
        Some(pen) => (pen.next_op(), pen.site(at)),
        None => (OpId(0), SiteId(0)),
    };
    Op {
        id,
        thread,
        site,
        kind,
        accesses: Accesses::new(),
    }
}

/// Tells the log, if anybody listens.
#[inline]
pub(crate) fn write(pen: &mut Option<Pen<'_>>, op: &Op) {
    if let Some(pen) = pen {
        pen.op(op);
    }
}
