//! Cuts a log to the two calls of a race and the calls that determine the memory of their accesses.

use sidestream::check::Race;
use sidestream::log::{Error, Reader, Record};
use sidestream::op::{
    Access, Accesses, BufferId, DeviceId, EventId, Kind, Memory, Op, OpId, StreamId, StreamKind,
};

/// The part of a log that is kept.
pub struct Cut<'a> {
    /// Calls that may be needed, in order.
    pub context: Vec<Op>,
    /// Streams by id.
    pub streams: Vec<Stream>,
    /// Buffers by id.
    pub buffers: Vec<Buffer>,
    /// Whether events have timing, by id, if the race is about times.
    pub events: Vec<bool>,
    /// Threads by id.
    pub threads: Vec<String>,
    /// Names for streams that are better than the log's.
    pub called: &'a [(StreamId, String)],
    /// The later owner of the bytes, if the log has no call that hands them to it.
    pub unallocated: Option<BufferId>,
    first: Op,
    second: Op,
}

/// A stream of the log.
pub struct Stream {
    pub kind: StreamKind,
    pub device: DeviceId,
    pub name: String,
}

/// A buffer of the log.
pub struct Buffer {
    pub memory: Memory,
    /// The buffer with bytes of its own that contains this one (possibly itself), and the offset in it.
    pub root: BufferId,
    pub start: u64,
    pub name: String,
}

impl<'a> Cut<'a> {
    /// Reads the log up to the race.
    pub fn new(
        log: &[u8],
        race: &Race,
        called: &'a [(StreamId, String)],
    ) -> Result<Cut<'a>, Error> {
        let none = || Op {
            id: OpId(0),
            thread: sidestream::op::ThreadId(0),
            site: sidestream::op::SiteId(0),
            kind: Kind::HostAccess,
            accesses: Accesses::new(),
        };
        let mut cut = Cut {
            context: Vec::new(),
            streams: Vec::new(),
            buffers: Vec::new(),
            events: Vec::new(),
            threads: Vec::new(),
            called,
            unallocated: None,
            first: none(),
            second: none(),
        };
        each(log, race.second, |record| {
            cut.declared_or_one_of(record, race)
        })?;
        let of = Of::new(race, &cut.second.kind, [&cut.first, &cut.second]);
        let mut context = Vec::new();
        each(log, race.second, |record| match record {
            Record::Op(op) if of.needs(op) && op.id != race.first && op.id != race.second => {
                context.push(op.clone().into_owned());
            }
            _ => {}
        })?;
        let second = of.buffers.first().copied();
        let hands_on =
            |op: &Op| matches!(op.kind, Kind::Alloc { buffer, .. } if Some(buffer) == second);
        if of.buffers.len() > 1 && !context.iter().any(hands_on) {
            cut.unallocated = second;
        }
        cut.context = context;
        Ok(cut)
    }

    fn declared_or_one_of(&mut self, record: &mut Record, race: &Race) {
        match record {
            Record::Stream {
                kind, device, name, ..
            } => self.streams.push(Stream {
                kind: *kind,
                device: *device,
                name: std::mem::take(name).into_owned(),
            }),
            Record::Event { timing, .. } if race.buffer.is_none() => self.events.push(*timing),
            Record::Buffer {
                memory,
                within,
                name,
                ..
            } => {
                let id = BufferId(self.buffers.len() as u32);
                let (root, start) = match within {
                    None => (id, 0),
                    Some(within) => {
                        let below = self.buffers.get(within.buffer.0 as usize);
                        below.map_or((id, 0), |below| (below.root, below.start + within.start))
                    }
                };
                self.buffers.push(Buffer {
                    memory: *memory,
                    root,
                    start,
                    name: std::mem::take(name).into_owned(),
                });
            }
            Record::Thread { name, .. } => self.threads.push(std::mem::take(name).into_owned()),
            Record::Op(op) if op.id == race.first => self.first = op.clone().into_owned(),
            Record::Op(op) if op.id == race.second => self.second = op.clone().into_owned(),
            _ => {}
        }
    }

    /// Returns the two calls for every two of their accesses that conflict, each call with that one access. If the
    /// calls conflict without accesses, returns them once, without any.
    pub fn pairs(&self, race: &Race) -> impl Iterator<Item = (Op, Op)> {
        let with = |op: &Op, access: Option<Access>| Op {
            accesses: access.into_iter().collect(),
            ..op.clone()
        };
        let second_buffer = race.buffer;
        let first_buffer = race.handed_on.map(|on| on.from).or(second_buffer);
        let meet = move |a: &Access, b: &Access| {
            let (Some((root, low, high)), Some((other, start, end))) =
                (self.bytes(a), self.bytes(b))
            else {
                return false;
            };
            root == other && low < end && start < high && a.conflicts_with(b)
        };
        let is_of =
            |buffer: Option<BufferId>| move |access: &&Access| Some(access.buffer) == buffer;
        let (first, second) = (&self.first, &self.second);
        let is_of_times = race.buffer.is_none();
        let of_times = is_of_times.then(|| (with(first, None), with(second, None)));
        let these = second.accesses.iter().filter(is_of(second_buffer));
        let pairs = these.flat_map(move |b| {
            let those = first.accesses.iter().filter(is_of(first_buffer));
            let meeting = those.filter(move |a| meet(a, b));
            meeting.map(move |a| (with(first, Some(*a)), with(second, Some(*b))))
        });
        of_times.into_iter().chain(pairs)
    }

    /// Returns some of the context and the two calls, in order.
    pub fn with<'o>(&'o self, context: &[usize], first: &'o Op, second: &'o Op) -> Vec<&'o Op> {
        let mut ops: Vec<&Op> = context.iter().map(|&at| &self.context[at]).collect();
        let at = ops.partition_point(|op| op.id < first.id);
        ops.insert(at, first);
        ops.push(second);
        ops
    }

    /// Returns the bytes of an access: the buffer that owns them, and the range in it.
    pub fn bytes(&self, access: &Access) -> Option<(BufferId, u64, u64)> {
        let buffer = self.buffers.get(access.buffer.0 as usize)?;
        Some((
            buffer.root,
            buffer.start + access.start,
            buffer.start + access.end,
        ))
    }
}

/// Passes all records up to and including the operation `last` to `take`.
fn each(log: &[u8], last: OpId, mut take: impl FnMut(&mut Record)) -> Result<(), Error> {
    let mut reader = Reader::new(log)?;
    let mut record = Record::default();
    while reader.read_into(&mut record)? {
        take(&mut record);
        if matches!(&record, Record::Op(op) if op.id == last) {
            break;
        }
    }
    Ok(())
}

/// What the two calls of a race refer to.
struct Of {
    /// The buffer of the second call, and then that of the first if it differs.
    buffers: Vec<BufferId>,
    events: Vec<EventId>,
    threads: [sidestream::op::ThreadId; 2],
    /// Whether the kind of allocation matters.
    from: bool,
}

impl Of {
    fn new(race: &Race, second: &Kind, both: [&Op; 2]) -> Of {
        let mut buffers: Vec<BufferId> = race.buffer.into_iter().collect();
        let from = race.handed_on.map(|on| on.from);
        buffers.extend(from.filter(|from| !buffers.contains(from)));
        let events = match *second {
            Kind::Elapsed { from, to } => vec![from, to],
            _ => Vec::new(),
        };
        let stream_ordered = true;
        let ends = |op: &&Op| op.kind == Kind::CudaFree { stream_ordered };
        Of {
            buffers,
            events,
            threads: both.map(|op| op.thread),
            from: both.iter().any(ends),
        }
    }

    /// Returns whether a call may affect the memory, the events or the devices of the two calls.
    fn needs(&self, op: &Op) -> bool {
        let is_ours = |buffer: BufferId| self.buffers.contains(&buffer);
        match op.kind {
            Kind::Alloc {
                buffer,
                saw_events_of,
                ..
            } => is_ours(buffer) || saw_events_of.is_some_and(is_ours),
            Kind::Free { buffer } | Kind::RecordStream { buffer, .. } => is_ours(buffer),
            Kind::Record { event, .. } | Kind::CreateEvent { event } => {
                self.events.contains(&event)
            }
            // An elapsed time has two events, one of which may be known to be complete.
            Kind::SyncEvent { event } | Kind::QueryEvent { event, done: true } => {
                self.events.contains(&event)
            }
            Kind::SyncStream { .. }
            | Kind::SyncDevice { .. }
            | Kind::QueryStream { done: true, .. } => !self.events.is_empty(),
            Kind::SetDevice { .. } => self.threads.contains(&op.thread),
            Kind::MallocAsync { .. } => {
                self.from && op.accesses.iter().any(|access| is_ours(access.buffer))
            }
            _ => false,
        }
    }
}
