//! The op that the log observes for a call, and the source location of the call.

use std::panic::Location;

use crate::log::Pen;
use crate::op::{Accesses, Kind, Op, OpId, SiteId, ThreadId};

/// The source location of the call in the user's code.
pub(crate) type Place = &'static Location<'static>;

/// Returns an operation without accesses.
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

/// Writes the op to the log, if a sink is attached.
#[inline]
pub(crate) fn write(pen: &mut Option<Pen<'_>>, op: &Op) {
    if let Some(pen) = pen {
        pen.op(op);
    }
}
