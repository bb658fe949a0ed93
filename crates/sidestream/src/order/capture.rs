//! Stream captures: which streams take part, and whether every fork was joined (R45 to R48).
//!
//! Captured work does not run, so a capture yields no edges. The rule book must know which streams belong to it and, at
//! its end, whether the work of every fork is ordered before the end of the origin stream. That is a vector clock
//! over a few streams: each member counts its nodes and stores how many nodes of every other member it is ordered after.

use super::{Code, Misuse, Order, Runs, Stream, misuse};
use crate::op::{StreamId, StreamKind, ThreadId};

/// A capture, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CaptureId(pub u32);

/// The content of a record inside a capture: by member, the number of nodes ordered before it.
pub(super) type Seen = Vec<u32>;

/// One capture, from its beginning to its end.
#[derive(Debug)]
pub(super) struct Capture {
    /// The origin stream, in which the capture began and must end.
    pub origin: StreamId,
    /// The thread that began the capture.
    pub thread: ThreadId,
    /// Whether the capture has not ended yet.
    pub open: bool,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    stream: StreamId,
    /// By member: the number of its nodes that are ordered before this stream's next node. The stream's own entry counts
    /// its own nodes.
    seen: Seen,
}

impl Capture {
    pub(super) fn begin(origin: StreamId, thread: ThreadId) -> Capture {
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

    /// Ends the capture, and returns the streams that took part.
    pub(super) fn end(&mut self) -> Vec<StreamId> {
        self.open = false;
        let members = std::mem::take(&mut self.members);
        members.into_iter().map(|member| member.stream).collect()
    }

    /// Adds a node in `stream`.
    pub(super) fn add_node(&mut self, stream: StreamId) {
        let at = self.member(stream);
        self.members[at].seen[at] += 1;
    }

    /// Returns the content of a record in `stream`: the nodes that are ordered before it.
    pub(super) fn record(&mut self, stream: StreamId) -> Seen {
        let at = self.member(stream);
        self.members[at].seen.clone()
    }

    /// Makes `stream` wait for a record of this capture, and thereby join the capture (R48).
    pub(super) fn wait(&mut self, stream: StreamId, record: &Seen) {
        let at = self.member(stream);
        let seen = &mut self.members[at].seen;
        if seen.len() < record.len() {
            seen.resize(record.len(), 0);
        }
        for (mine, theirs) in seen.iter_mut().zip(record) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Whether all captured work is ordered before the end of the origin stream. A fork without work need not be
    /// joined.
    pub(super) fn is_joined(&self) -> bool {
        let origin = &self.members[0].seen;
        self.members
            .iter()
            .enumerate()
            .all(|(i, m)| origin.get(i).copied().unwrap_or(0) >= m.seen[i])
    }

    /// Returns the index of a member, which is added if it is new.
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

impl Order {
    pub(super) fn begin_capture(
        &mut self,
        stream: StreamId,
        thread: ThreadId,
    ) -> Result<Runs, Misuse> {
        if self.kind_of(stream) == StreamKind::Legacy {
            return Err(misuse(
                Code::StreamCaptureUnsupported,
                45,
                "the legacy default stream cannot be captured; capture a stream of your own",
            ));
        }
        if self.capture_of(stream).is_some() {
            return Err(misuse(
                Code::IllegalState,
                45,
                "the stream is being captured already",
            ));
        }
        let id = CaptureId(self.captures.len() as u32);
        self.captures.push(Capture::begin(stream, thread));
        self.enter(stream, id);
        Ok(Runs::Now)
    }

    pub(super) fn end_capture(
        &mut self,
        stream: StreamId,
        thread: ThreadId,
    ) -> Result<Runs, Misuse> {
        let Some(id) = self.capture_of(stream) else {
            return Err(misuse(
                Code::IllegalState,
                48,
                "the stream is not being captured; begin a capture in it first",
            ));
        };
        if self.captures[id.0 as usize].origin != stream {
            return Err(misuse(
                Code::StreamCaptureUnmatched,
                48,
                "the capture began in another stream; end it where it began",
            ));
        }
        let capture = self.capture(id);
        if capture.thread != thread {
            return Err(misuse(
                Code::StreamCaptureWrongThread,
                48,
                "another thread began the capture; end it there",
            ));
        }
        if !capture.is_joined() {
            return Err(misuse(
                Code::StreamCaptureUnjoined,
                48,
                "a forked stream has captured work that was not joined; make the first stream wait for it",
            ));
        }
        for stream in capture.end() {
            self.leave(stream);
        }
        Ok(Runs::Now)
    }

    /// Adds a stream to the capture of an event that it waits for (R48).
    pub(super) fn join_capture(
        &mut self,
        stream: StreamId,
        capture: CaptureId,
        seen: &Seen,
    ) -> Result<(), Misuse> {
        self.refuse_ended(capture)?;
        if self.kind_of(stream) == StreamKind::Legacy {
            return Err(misuse(
                Code::StreamCaptureUnsupported,
                45,
                "the legacy default stream cannot take part in a capture",
            ));
        }
        self.capture(capture).wait(stream, seen);
        if self.capture_of(stream).is_none() {
            self.enter(stream, capture);
        }
        Ok(())
    }

    /// Refuses work in the legacy stream while a blocking stream is captured (R45).
    pub(super) fn refuse_legacy_beside_capture(&mut self, stream: StreamId) -> Result<(), Misuse> {
        let Stream { kind, device, .. } = self.streams[stream.0 as usize];
        if kind == StreamKind::Legacy && self.device(device).capturing_blocking > 0 {
            return Err(misuse(
                Code::StreamCaptureImplicit,
                45,
                "a blocking stream is being captured, and the legacy stream would wait for it",
            ));
        }
        Ok(())
    }

    /// Refuses an event that was last recorded in a capture that has ended: it is unusable until it is recorded again.
    pub(super) fn refuse_ended(&self, capture: CaptureId) -> Result<(), Misuse> {
        if self.captures[capture.0 as usize].open {
            return Ok(());
        }
        Err(misuse(
            Code::InvalidValue,
            46,
            "the event was last recorded in a capture that has ended; record it again",
        ))
    }

    /// Whether work enqueued in the stream now would become part of a capture, or be refused because of one.
    pub fn is_captured(&mut self, stream: StreamId) -> bool {
        self.capture_of(stream).is_some() || self.refuse_legacy_beside_capture(stream).is_err()
    }

    pub(super) fn capture_of(&self, stream: StreamId) -> Option<CaptureId> {
        self.streams[stream.0 as usize].capture
    }

    pub(super) fn capture(&mut self, id: CaptureId) -> &mut Capture {
        &mut self.captures[id.0 as usize]
    }

    fn enter(&mut self, stream: StreamId, capture: CaptureId) {
        let entered = self.present;
        let state = &mut self.streams[stream.0 as usize];
        (state.capture, state.entered) = (Some(capture), entered);
        self.count_capturing(stream, 1);
    }

    fn leave(&mut self, stream: StreamId) {
        self.streams[stream.0 as usize].capture = None;
        self.count_capturing(stream, -1);
    }

    fn count_capturing(&mut self, stream: StreamId, by: i32) {
        let Stream { kind, device, .. } = self.streams[stream.0 as usize];
        let device = self.device(device);
        device.capturing = device.capturing.saturating_add_signed(by);
        if kind.is_blocking() {
            device.capturing_blocking = device.capturing_blocking.saturating_add_signed(by);
        }
    }
}
