//! The named spans that each host thread is in.

use std::collections::HashMap;

use crate::op::ThreadId;

/// A span, identified by its name: all spans of one name are one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpanId(pub u32);

/// The largest number of span names. A program that makes a new name for each step would otherwise use more
/// memory with each; its later spans are not distinguished from those around them.
const NAMES: usize = 1 << 16;

/// The spans that threads are in, and the names of all spans so far.
#[derive(Debug, Default)]
pub(super) struct Spans {
    names: Vec<String>,
    known: HashMap<String, SpanId>,
    /// By thread: its open spans, the innermost last.
    open: Vec<Vec<Option<SpanId>>>,
}

impl Spans {
    pub(super) fn enter(&mut self, thread: ThreadId, name: &str) {
        let around = self.innermost(thread);
        let span = self.id_of(name).or(around);
        let at = thread.0 as usize;
        if self.open.len() <= at {
            self.open.resize_with(at + 1, Vec::new);
        }
        self.open[at].push(span);
    }

    pub(super) fn leave(&mut self, thread: ThreadId) {
        if let Some(open) = self.open.get_mut(thread.0 as usize) {
            open.pop();
        }
    }

    #[inline]
    pub(super) fn innermost(&self, thread: ThreadId) -> Option<SpanId> {
        let open = self.open.get(thread.0 as usize)?;
        open.last().copied().flatten()
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    fn id_of(&mut self, name: &str) -> Option<SpanId> {
        if let Some(&known) = self.known.get(name) {
            return Some(known);
        }
        if self.names.len() == NAMES {
            return None;
        }
        let id = SpanId(self.names.len() as u32);
        self.names.push(name.to_owned());
        self.known.insert(name.to_owned(), id);
        Some(id)
    }
}
