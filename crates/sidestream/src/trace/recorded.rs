//! Makes a [`Trace`] of a recorded run from its log, which contains the times.

#![deny(clippy::wildcard_enum_match_arm)]

use std::collections::HashMap;
use std::io::Read;

use super::{Call, Device, Place, Records, Span, Stream, Thread, Trace, Waits, What, Work};
use crate::log::{Error, Problem, Reader, Record};
use crate::op::{DeviceId, Kind, Op, OpId, SiteId, StreamId, StreamKind, ThreadId};
use crate::order::{Order, Steps};

/// The trace of a log.
#[derive(Debug)]
pub struct Recorded {
    /// The trace. Its `log` is `None`; a caller who has the bytes may set it.
    pub trace: Trace,
    /// The number of operations in the log.
    pub ops: u64,
    /// The number of operations with times; the others are not in the trace. Zero if the log was recorded without times
    /// ([`Recorder::with_times`](crate::log::Recorder::with_times)).
    pub timed: u64,
    /// If the log was cut off: the place, and the remedy. The trace then covers the records before that place.
    pub cut: Option<Error>,
}

/// Makes a trace from a log. Times are relative to the first one.
///
/// A kernel is named after its call site, since a log has no names of kernels. A named span ([`Record::Span`]) covers what
/// was called in it, on its thread and on each stream.
///
/// # Errors
/// Any error of [`Reader`], except that a log that was cut off gives a trace with [`Recorded::cut`] set. Also if a legacy
/// stream is declared after its first use, or if the trace would take more than about `memory_bytes`.
pub fn recorded<R: Read>(mut log: Reader<R>, memory_bytes: u64) -> Result<Recorded, Error> {
    let mut run = Run {
        room_bytes: memory_bytes,
        limit_bytes: memory_bytes,
        ..Run::default()
    };
    let mut record = Record::default();
    let cut = loop {
        match log.read_into(&mut record) {
            Ok(true) => {}
            Ok(false) => break None,
            Err(error) if error.is_cut() => break Some(error),
            Err(error) => return Err(error),
        }
        let taken = run.take(&record);
        taken.map_err(|problem| Error {
            offset: log.offset(),
            problem,
        })?;
    };
    let (ops, timed) = (run.ops.len() as u64, run.timed);
    let trace = run.trace().map_err(|problem| Error {
        offset: log.offset(),
        problem,
    })?;
    Ok(Recorded {
        trace,
        ops,
        timed,
        cut,
    })
}

/// The state of reading a log.
#[derive(Default)]
struct Run {
    order: Order,
    steps: Steps,
    streams: Vec<String>,
    threads: Vec<Caller>,
    sites: Vec<String>,
    records: Records,
    /// The operations, by number.
    ops: Vec<Held>,
    timed: u64,
    /// The spans that were entered, outer ones before inner ones.
    entered: Vec<Entered>,
    room_bytes: u64,
    limit_bytes: u64,
}

struct Caller {
    name: String,
    /// The spans that the thread is in, as indices in `entered`.
    spans: Vec<usize>,
}

/// A span that was entered.
struct Entered {
    name: String,
    /// The enclosing span.
    outer: Option<usize>,
}

/// The part of an operation that a trace needs.
struct Held {
    op: OpId,
    thread: ThreadId,
    site: SiteId,
    span: Option<usize>,
    kind: Kind,
    waits: Option<Waits>,
    work: Option<(DeviceId, StreamId, What)>,
    call_ns: Option<(u64, u64)>,
    work_ns: Option<(u64, u64)>,
}

// Approximate bytes for each object, here and in the trace.
const OP_BYTES: u64 = 500;
const SPAN_BYTES: u64 = 400;
const NAME_BYTES: u64 = 100;
const LANE_BYTES: u64 = 200;

impl Run {
    fn take(&mut self, record: &Record<'_>) -> Result<(), Problem> {
        match record {
            Record::Op(op) => {
                // The operation's work is named after its call site, in two fields.
                let site = &self.sites[op.site.0 as usize];
                self.spend(OP_BYTES + 2 * site.len() as u64)?;
                self.op(op);
            }
            Record::Done(done) => {
                let at = self.ops.partition_point(|held| held.op < done.op);
                if let Some(held) = self.ops.get_mut(at).filter(|held| held.op == done.op) {
                    self.timed += u64::from(held.call_ns.is_none() && held.work_ns.is_none());
                    (held.call_ns, held.work_ns) = (done.call_ns, done.work_ns);
                }
            }
            Record::Span { thread, enters } => match enters {
                Some(name) => {
                    self.spend(SPAN_BYTES + 2 * name.len() as u64)?;
                    self.enter(*thread, name.to_string());
                }
                None => _ = self.threads[thread.0 as usize].spans.pop(),
            },
            Record::Stream { kind, device, name } => {
                self.spend(NAME_BYTES + name.len() as u64)?;
                let id = self.order.add_stream(*kind, *device);
                if id.0 as usize != self.streams.len() {
                    return Err(Problem::LateLegacy);
                }
                self.streams.push(name.to_string());
            }
            Record::Thread { name } => {
                self.spend(NAME_BYTES + name.len() as u64)?;
                self.threads.push(Caller {
                    name: name.to_string(),
                    spans: Vec::new(),
                });
            }
            Record::Site { text } => {
                self.spend(NAME_BYTES + text.len() as u64)?;
                self.sites.push(text.to_string());
            }
            Record::Event { .. } | Record::Buffer { .. } | Record::Pool { .. } => {}
        }
        Ok(())
    }

    fn op(&mut self, op: &Op) {
        let present = self.order.current_device(op.thread);
        let recorded_by = self.records.take(op);
        if let Kind::SetDevice { .. } = op.kind {
            // From the rule book a trace needs only the current device of each thread.
            let _ = self.order.push(op, &mut self.steps);
        }
        let what = What::of(op, recorded_by);
        let stream = what.and_then(|_| self.order.work_stream(op));
        let work = what.zip(stream);
        self.ops.push(Held {
            op: op.id,
            thread: op.thread,
            site: op.site,
            span: self.threads[op.thread.0 as usize].spans.last().copied(),
            kind: op.kind,
            waits: Waits::of(op, present, recorded_by),
            work: work.map(|(what, stream)| (self.order.device_of(stream), stream, what)),
            call_ns: None,
            work_ns: None,
        });
    }

    fn enter(&mut self, thread: ThreadId, name: String) {
        let spans = &mut self.threads[thread.0 as usize].spans;
        self.entered.push(Entered {
            name,
            outer: spans.last().copied(),
        });
        spans.push(self.entered.len() - 1);
    }

    /// Deducts from the memory limit.
    fn spend(&mut self, bytes: u64) -> Result<(), Problem> {
        let limit_bytes = self.limit_bytes;
        let left = self.room_bytes.checked_sub(bytes);
        self.room_bytes = left.ok_or(Problem::Memory { limit_bytes })?;
        Ok(())
    }
}

// ------------------------------------------------------------------ the trace

impl Run {
    fn trace(mut self) -> Result<Trace, Problem> {
        let times = self
            .ops
            .iter()
            .flat_map(|held| [held.call_ns, held.work_ns]);
        let start_ns = times.flatten().map(|(start, _)| start).min().unwrap_or(0);
        for held in &mut self.ops {
            for (start, end) in [&mut held.call_ns, &mut held.work_ns].into_iter().flatten() {
                (*start, *end) = (*start - start_ns, *end - start_ns);
            }
        }
        let mut trace = Trace {
            devices: self.devices(),
            streams: self.named_streams(),
            threads: self.named_threads(),
            spans: self.spans()?,
            ..Trace::default()
        };
        for held in &self.ops {
            if let Some((start_ns, end_ns)) = held.call_ns {
                trace.calls.push(Call {
                    op: held.op,
                    thread: held.thread,
                    name: held.kind.function(),
                    start_ns,
                    end_ns,
                    is_host_work: matches!(held.kind, Kind::HostAccess),
                    waits: held.waits,
                });
            }
            if let (Some((device, stream, what)), Some((start_ns, end_ns))) =
                (held.work, held.work_ns)
            {
                let name = self.name_of(held);
                trace.work.push(Work {
                    op: held.op,
                    device,
                    stream,
                    what,
                    label: format!("{} {name}", held.op.0),
                    name,
                    start_ns,
                    end_ns,
                });
            }
        }
        Ok(trace)
    }

    /// Returns the devices of the streams, named by number, since a log does not name devices.
    fn devices(&self) -> Vec<Device> {
        let mut ids: Vec<DeviceId> = self.order.streams().map(|(_, _, at)| at).collect();
        ids.sort();
        ids.dedup();
        let device = |id| Device {
            id,
            name: String::new(),
            sms: 0,
            memory_bytes: 0,
        };
        ids.into_iter().map(device).collect()
    }

    fn named_streams(&self) -> Vec<Stream> {
        let streams = self.order.streams().map(|(id, kind, device)| {
            let is_legacy = kind == StreamKind::Legacy;
            let name = match self.streams.get(id.0 as usize) {
                Some(given) if !given.is_empty() => given.clone(),
                _ if is_legacy => "legacy".to_owned(),
                _ => format!("stream{}", id.0),
            };
            Stream {
                id,
                device,
                name,
                is_legacy,
            }
        });
        streams.collect()
    }

    fn named_threads(&self) -> Vec<Thread> {
        let threads = (0..).map(ThreadId).zip(&self.threads);
        let threads = threads.map(|(id, caller)| Thread {
            id,
            name: if caller.name.is_empty() {
                format!("t{}", id.0)
            } else {
                caller.name.clone()
            },
        });
        threads.collect()
    }

    /// Returns the name of all work called at one site.
    fn name_of(&self, held: &Held) -> String {
        let site = &self.sites[held.site.0 as usize];
        if site.is_empty() {
            held.kind.function().to_owned()
        } else {
            site.clone()
        }
    }

    /// Returns the spans: each covers its own calls and work and those of its inner spans.
    fn spans(&mut self) -> Result<Vec<Span>, Problem> {
        let mut lanes: Vec<HashMap<Place, (u64, u64)>> = Vec::new();
        lanes.resize_with(self.entered.len(), HashMap::new);
        let mut count = 0;
        for held in &self.ops {
            let Some(lanes) = held.span.map(|span| &mut lanes[span]) else {
                continue;
            };
            if let Some(times) = held.call_ns {
                count += u64::from(extend(lanes, Place::Thread(held.thread), times));
            }
            // A wait is not work, and a host function is not device work.
            let on_device = held
                .work
                .filter(|(_, _, what)| what.engine().is_some() && !matches!(what, What::HostFunc));
            if let (Some((device, stream, _)), Some(times)) = (on_device, held.work_ns) {
                count += u64::from(extend(lanes, Place::Stream(device, stream), times));
            }
        }
        self.spend(count * LANE_BYTES)?;
        // Inner spans were entered later, so each is complete when it is added to the enclosing one.
        for at in (0..lanes.len()).rev() {
            let Some(outer) = self.entered[at].outer else {
                continue;
            };
            let (before, rest) = lanes.split_at_mut(at);
            let fresh = rest[0]
                .iter()
                .map(|(&place, &times)| u64::from(extend(&mut before[outer], place, times)));
            let fresh: u64 = fresh.sum();
            self.spend(fresh * LANE_BYTES)?;
        }
        let mut names_bytes = 0;
        let mut spans = Vec::new();
        for ((number, lanes), entered) in (0..).zip(lanes).zip(&self.entered) {
            let mut lanes: Vec<_> = lanes.into_iter().collect();
            lanes.sort();
            names_bytes += (lanes.len() * entered.name.len()) as u64;
            spans.extend(lanes.into_iter().map(|(place, (start_ns, end_ns))| Span {
                name: entered.name.clone(),
                number,
                place,
                start_ns,
                end_ns,
            }));
            if names_bytes > self.room_bytes {
                break;
            }
        }
        self.spend(names_bytes)?;
        Ok(spans)
    }
}

/// Extends a lane to cover these times; returns whether the lane is new.
fn extend(lanes: &mut HashMap<Place, (u64, u64)>, place: Place, times: (u64, u64)) -> bool {
    let before = lanes.len();
    let lane = lanes.entry(place).or_insert(times);
    *lane = (lane.0.min(times.0), lane.1.max(times.1));
    lanes.len() > before
}
