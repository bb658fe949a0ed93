//! Stream captures: calls that become the nodes of a graph instead of running.
//!
//! The rule book decides which call is captured, and refuses invalid ones. This module keeps only what the rule
//! book does not need: the captured work, and the nodes that each piece of it depends on.
//!
//! The next [`Create::Graph`](crate::backend::Create::Graph) without nodes on a device makes a graph of the
//! oldest capture that has ended there.

#![deny(clippy::wildcard_enum_match_arm)]

use std::collections::{HashMap, VecDeque};

use super::command::Command;
use crate::error::{Error, Result};
use crate::op::{Class, DeviceId, EventId, Kind, StreamId};

/// The work of a capture, each with the earlier nodes that it depends on.
pub(super) type Captured = Vec<(Command, Vec<u32>)>;

/// All captures of a machine.
#[derive(Default)]
pub(super) struct Captures {
    open: Vec<Capture>,
    begun: u64,
    /// By event recorded in a capture: the capture, and the nodes that a wait for the event depends on.
    events: HashMap<EventId, (u64, Vec<u32>)>,
    ended: VecDeque<(DeviceId, Captured)>,
}

struct Capture {
    number: u64,
    device: DeviceId,
    origin: StreamId,
    nodes: Captured,
    /// By captured stream: the nodes that its next node depends on.
    ends: HashMap<StreamId, Vec<u32>>,
}

impl Captures {
    /// Refuses calls that cannot be nodes: a host function that runs once, allocations, and graphs inside graphs.
    pub(super) fn refuse(&self, kind: &Kind) -> Result<()> {
        let cannot = matches!(
            kind.class(),
            Class::HostFunc | Class::Graph | Class::MallocAsync | Class::FreeAsync
        );
        match kind.stream() {
            Some(stream) if cannot && self.of(stream).is_some() => Err(Error::Refused {
                call: kind.name(),
                code: 801,
                why: "the simulated GPU captures kernels, copies and memsets only; make the call \
                      outside the capture"
                    .into(),
            }),
            _ => Ok(()),
        }
    }

    /// Processes a call that was executed: it may begin or end a capture.
    pub(super) fn ran(&mut self, kind: &Kind, device: DeviceId) {
        if let Kind::BeginCapture { stream } = *kind {
            self.begun += 1;
            self.open.push(Capture {
                number: self.begun,
                device,
                origin: stream,
                nodes: Vec::new(),
                ends: HashMap::from([(stream, Vec::new())]),
            });
        }
        if let Kind::EndCapture { stream } = *kind
            && let Some(at) = self.open.iter().position(|c| c.origin == stream)
        {
            let capture = self.open.swap_remove(at);
            self.ended.push_back((capture.device, capture.nodes));
            let number = capture.number;
            self.events.retain(|_, (of, _)| *of != number);
        }
    }

    /// Processes a call that became part of a capture.
    pub(super) fn took(&mut self, kind: &Kind, command: &mut Command) {
        if let Kind::Record { event, stream } = *kind {
            if let Some(capture) = self.of(stream) {
                let seen = (capture.number, capture.ends[&stream].clone());
                self.events.insert(event, seen);
            }
        } else if let Kind::Wait { stream, event } = *kind {
            if let Some((number, seen)) = self.events.get(&event).cloned() {
                self.join(stream, number, &seen);
            }
        } else if let Kind::WaitStream { stream, source } = *kind {
            if let Some(capture) = self.of(source) {
                let (number, seen) = (capture.number, capture.ends[&source].clone());
                self.join(stream, number, &seen);
            }
        } else if let Some(stream) = kind.stream()
            && let Some(capture) = self.open.iter_mut().find(|c| c.has(stream))
        {
            let command = Command {
                op: command.op.clone(),
                cost: command.cost,
                effect: std::mem::take(&mut command.effect),
            };
            let number = capture.nodes.len() as u32;
            let after = capture.ends.insert(stream, vec![number]);
            capture.nodes.push((command, after.unwrap_or_default()));
        }
    }

    /// Removes and returns the oldest ended capture of a device of which no graph was made yet.
    pub(super) fn take_ended(&mut self, device: DeviceId) -> Option<Captured> {
        let at = self.ended.iter().position(|(of, _)| *of == device)?;
        self.ended.remove(at).map(|(_, nodes)| nodes)
    }

    fn of(&self, stream: StreamId) -> Option<&Capture> {
        self.open.iter().find(|capture| capture.has(stream))
    }

    fn join(&mut self, stream: StreamId, number: u64, seen: &[u32]) {
        let Some(capture) = self.open.iter_mut().find(|c| c.number == number) else {
            return;
        };
        let ends = capture.ends.entry(stream).or_default();
        ends.extend_from_slice(seen);
        ends.sort_unstable();
        ends.dedup();
    }
}

impl Capture {
    fn has(&self, stream: StreamId) -> bool {
        self.ends.contains_key(&stream)
    }
}
