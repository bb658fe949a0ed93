//! Converts a run to a [`Trace`].

#![deny(clippy::wildcard_enum_match_arm)]

use super::{Part, Sim};
use crate::op::{Class, Kind, Op, OpId, StreamId, StreamKind};
use crate::order::Performs;
use crate::trace::{Call, Device, Records, Stream, Thread, Trace, Waits, What, Work};

/// The names of operations, streams and threads, which only the program knows.
pub trait Names {
    /// Returns the name of an operation's work; equal work has equal names.
    fn work(&self, op: &Op) -> String;
    /// Returns the label of this operation's work in a timeline.
    fn label(&self, op: &Op) -> String;
    /// Returns the name of a stream.
    fn stream(&self, stream: StreamId) -> String;
    /// Returns the name of a host thread.
    fn thread(&self, thread: crate::op::ThreadId) -> String;
}

impl Sim {
    /// Returns the trace of everything that has run so far.
    pub fn trace(&self, names: &impl Names) -> Trace {
        let mut trace = Trace::default();
        for (at, profile) in self.devices.iter().enumerate() {
            trace.devices.push(Device {
                id: crate::op::DeviceId(at as u32),
                name: profile.name.clone(),
                sms: profile.sms as u32,
                memory_bytes: profile.memory_bytes(),
            });
        }
        for (id, kind, device) in self.core.order.streams() {
            trace.streams.push(Stream {
                id,
                device,
                name: names.stream(id),
                is_legacy: kind == StreamKind::Legacy,
            });
        }
        for thread in (0..self.core.threads()).map(crate::op::ThreadId) {
            let name = names.thread(thread);
            trace.threads.push(Thread { id: thread, name });
        }
        let mut records = Records::default();
        let recorded_by: Vec<_> = self.ops.iter().map(|s| records.take(&s.op)).collect();
        let mut ended = vec![0; trace.streams.len()];
        for (task, part) in self.core.parts() {
            let Some(span) = self.core.engine.scheduled(task).filter(|_| !part.is_turn) else {
                continue;
            };
            let submitted = &self.ops[part.op as usize];
            let (op, recorded_by) = (&submitted.op, recorded_by[part.op as usize]);
            match part.stream {
                // A call lasts until the last of its waits has ended.
                None if part.is_call => trace.calls.push(Call {
                    op: op.id,
                    thread: op.thread,
                    name: op.kind.function(),
                    start_ns: span.start_ns,
                    end_ns: span.end_ns,
                    is_host_work: matches!(op.kind, Kind::HostAccess),
                    waits: Waits::of(op, submitted.device, recorded_by),
                }),
                None => {
                    let call = trace.calls.last_mut().filter(|call| call.op == op.id);
                    if let Some(call) = call {
                        call.end_ns = span.end_ns;
                    }
                }
                Some(stream) => {
                    let last_ns = std::mem::replace(&mut ended[stream.0 as usize], span.end_ns);
                    let Some(what) = what(op, part, recorded_by) else {
                        continue;
                    };
                    let before = trace.work.last_mut();
                    let before = before.filter(|w| w.op == op.id && w.what == what);
                    if let (Some(bar), None) = (before, super::work::launches(op)) {
                        bar.end_ns = span.end_ns;
                        continue;
                    }
                    let called_ns = trace.calls.last().map_or(0, |call| call.end_ns);
                    trace.work.push(Work {
                        op: op.id,
                        device: self.core.order.device_of(stream),
                        stream,
                        what,
                        name: names.work(op),
                        label: names.label(op),
                        start_ns: if matches!(what, What::Wait { .. }) {
                            last_ns.max(called_ns).min(span.end_ns)
                        } else {
                            span.start_ns
                        },
                        end_ns: span.end_ns,
                    });
                }
            }
        }
        trace
    }
}

/// Returns how a task of a stream is shown; `None` for a record, which is not shown.
fn what(op: &Op, part: &Part, recorded_by: Option<OpId>) -> Option<What> {
    let shows = if op.kind.class() == Class::Wait {
        part.stream == op.kind.stream()
    } else {
        part.performs != Performs::Nothing
    };
    shows.then(|| What::of(op, recorded_by)).flatten()
}
