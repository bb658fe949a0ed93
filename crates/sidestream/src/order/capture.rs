//! Stream captures: who takes part, and whether every fork was joined (R45 to R48).
//!
//! Captured work does not run, so a capture yields no edges. What has to be known is which streams
//! belong to it and, at its end, whether the work of every fork lies in the past of the stream
//! where it began. That is the same question as everywhere else, asked of a few streams: each
//! member counts its nodes and remembers how many nodes of every other member it has seen.

use crate::op::{StreamId, ThreadId};

/// A capture, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CaptureId(pub u32);

/// What a record inside a capture takes: how many nodes of each member came before it.
pub(super) type Seen = Vec<u32>;

/// One capture, from its begin to its end.
#[derive(Debug)]
pub(super) struct Capture {
    /// Where it began and has to end.
    pub origin: StreamId,
    /// The thread that began it.
    pub thread: ThreadId,
    /// Whether it still runs.
    pub open: bool,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    stream: StreamId,
    /// By member: the nodes known to come before this stream's next one. Its own entry counts
    /// its own nodes.
    seen: Seen,
}

impl Capture {
    pub fn begin(origin: StreamId, thread: ThreadId) -> Capture {
        let members = vec![Member {
            stream: origin,
            seen: vec![0],
        }];
        Capture {
            origin,
            thread,
            open: true,
            members,
        }
    }

    /// The streams that take part.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.members.iter().map(|m| m.stream)
    }

    /// `stream` adds a node.
    pub fn add_node(&mut self, stream: StreamId) {
        let at = self.member(stream);
        self.members[at].seen[at] += 1;
    }

    /// What an event recorded in `stream` takes.
    pub fn record(&mut self, stream: StreamId) -> Seen {
        let at = self.member(stream);
        self.members[at].seen.clone()
    }

    /// `stream` waits for a record of this capture, and joins the capture by it (R48).
    pub fn wait(&mut self, stream: StreamId, record: &Seen) {
        let at = self.member(stream);
        let seen = &mut self.members[at].seen;
        if seen.len() < record.len() {
            seen.resize(record.len(), 0);
        }
        for (mine, theirs) in seen.iter_mut().zip(record) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Whether all captured work lies before the end of the origin stream. A fork without work
    /// need not be joined.
    pub fn is_joined(&self) -> bool {
        let origin = &self.members[0].seen;
        self.members
            .iter()
            .enumerate()
            .all(|(i, m)| origin.get(i).copied().unwrap_or(0) >= m.seen[i])
    }

    /// The index of a member, which is added if it is new.
    fn member(&mut self, stream: StreamId) -> usize {
        let known = self.members.iter().position(|m| m.stream == stream);
        known.unwrap_or_else(|| {
            let at = self.members.len();
            self.members.push(Member {
                stream,
                seen: vec![0; at + 1],
            });
            at
        })
    }
}
