//! Converts operations back to ops, with readable names and sizes.

use std::collections::{BTreeSet, HashMap};

use sidestream::op::{
    Access, BufferId, Class, DeviceId, EventId, GraphId, Kind, Memory, Mode, Named, Op, StreamId,
    StreamKind, ThreadId,
};

use super::Recorded;
use super::cut::Cut;
use crate::names::{DEFAULT_BYTES, as_name, implicit_memory, is_implicit_stream};
use crate::program::{
    self, BufferDecl, BufferRef, EventDecl, Fields, Origin, Program, StreamDecl, StreamRef,
};
use crate::verbs::Verb;

/// A program and the origins of its ops.
pub struct Lifted {
    pub program: Program,
    pub origins: Vec<Option<Recorded>>,
}

/// Converts the operations to a program. Returns `None` if the format cannot express one of the operations, or how they
/// share memory.
pub fn lift(ops: &[&Op], cut: &Cut<'_>) -> Option<Lifted> {
    let mut lift = Lift {
        cut,
        program: Program {
            name: "reduced".to_owned(),
            threads: vec!["t0".to_owned()],
            ..Program::default()
        },
        origins: Vec::new(),
        bytes: Bytes::of(ops, cut)?,
        streams: HashMap::new(),
        buffers: HashMap::new(),
        events: HashMap::new(),
        threads: HashMap::new(),
        owners: HashMap::new(),
        freed: Vec::new(),
    };
    for op in ops {
        lift.op(op)?;
    }
    Some(Lifted {
        program: lift.program,
        origins: lift.origins,
    })
}

/// Maps the touched bytes to smaller offsets, so that accesses overlap exactly if they did before.
struct Bytes {
    /// By buffer with bytes of its own: the bounds of all accesses to it, ascending.
    bounds: HashMap<BufferId, Vec<u64>>,
}

/// Readable offsets, by the number of parts.
const PARTS: [&[u64]; 4] = [&[0], &[0, 1024], &[0, 512, 1024], &[0, 256, 768, 1024]];

impl Bytes {
    fn of(ops: &[&Op], cut: &Cut<'_>) -> Option<Bytes> {
        let mut bounds: HashMap<BufferId, BTreeSet<u64>> = HashMap::new();
        for access in ops.iter().flat_map(|op| &op.accesses) {
            let (root, low, high) = cut.bytes(access)?;
            bounds.entry(root).or_default().extend([low, high]);
        }
        let bounds = bounds.into_iter();
        let bounds = bounds.map(|(root, these)| (root, these.into_iter().collect()));
        Some(Bytes {
            bounds: bounds.collect(),
        })
    }

    /// Returns the new offset of a bound, and the new size of the buffer.
    fn place(&self, root: BufferId, bound: u64) -> Option<(u64, u64)> {
        let bounds = self.bounds.get(&root)?;
        let at = bounds.binary_search(&bound).ok()?;
        let last = bounds.len() - 1;
        Some(match PARTS.get(last) {
            Some(parts) => (parts[at], parts[last]),
            None => (at as u64 * 256, last as u64 * 256),
        })
    }

    fn size(&self, root: BufferId) -> u64 {
        let first = self.bounds.get(&root).and_then(|bounds| bounds.first());
        let place = first.and_then(|&first| self.place(root, first));
        place.map_or(DEFAULT_BYTES, |(_, size)| size.max(1))
    }
}

struct Lift<'a> {
    cut: &'a Cut<'a>,
    program: Program,
    origins: Vec<Option<Recorded>>,
    bytes: Bytes,
    streams: HashMap<StreamId, StreamRef>,
    buffers: HashMap<BufferId, BufferRef>,
    events: HashMap<EventId, EventId>,
    threads: HashMap<ThreadId, ThreadId>,
    /// For each buffer with bytes of its own: the current owner of the bytes.
    owners: HashMap<BufferId, BufferId>,
    freed: Vec<BufferId>,
}

impl Lift<'_> {
    fn op(&mut self, op: &Op) -> Option<()> {
        for access in &op.accesses {
            self.owned(op, access.buffer)?;
        }
        let (verb, fields) = self.call(op)?;
        let bytes = op.accesses.first().map(Access::len_bytes);
        let origin = Recorded {
            op: op.id,
            site: op.site,
            bytes,
        };
        self.put(op, verb, fields, Some(origin));
        Some(())
    }

    fn put(&mut self, op: &Op, verb: Verb, fields: Fields, origin: Option<Recorded>) {
        let thread = self.thread(op.thread);
        self.program.ops.push(program::Op {
            line: 0,
            thread,
            site: None,
            verb,
            fields,
        });
        self.origins.push(origin);
    }

    /// Makes sure that a buffer owns its bytes: it is their first owner, or an `alloc` handed them to it.
    fn owned(&mut self, op: &Op, buffer: BufferId) -> Option<()> {
        let root = self.cut.buffers.get(buffer.0 as usize)?.root;
        let owner = *self.owners.entry(root).or_insert(buffer);
        if owner == buffer {
            return Some(());
        }
        if self.cut.unallocated != Some(buffer) {
            return None;
        }
        let fields = self.alloc(buffer, op.kind.stream(), Some(owner), false)?;
        self.put(op, Verb::Alloc, fields, None);
        Some(())
    }

    /// Returns the fields of an allocation, on the bytes of an earlier buffer if there is one.
    fn alloc(
        &mut self,
        buffer: BufferId,
        stream: Option<StreamId>,
        over: Option<BufferId>,
        saw_events: bool,
    ) -> Option<Fields> {
        let root = self.cut.buffers.get(buffer.0 as usize)?.root;
        let stream = match stream {
            Some(stream) => Some(self.stream(stream)?),
            None => None,
        };
        let below = match over {
            Some(over) => Some(self.buffer(over)?),
            None => None,
        };
        let named = self.buffer(buffer)?;
        self.owners.insert(root, buffer);
        // The cache checks the events of the free before it hands out the memory again.
        let looked = saw_events || over.is_some_and(|over| self.freed.contains(&over));
        Some(Fields {
            buffer: Some(named),
            stream,
            over: below.map(program::Access::whole),
            yes: looked && below.is_some(),
            ..Fields::default()
        })
    }

    fn call(&mut self, op: &Op) -> Option<(Verb, Fields)> {
        let verb = Verb::of(op)?;
        if let Kind::Alloc {
            buffer,
            stream,
            saw_events_of,
        } = op.kind
        {
            let root = self.cut.buffers.get(buffer.0 as usize)?.root;
            let known = saw_events_of.filter(|of| self.buffers.contains_key(of));
            let over = known.or(self.owners.get(&root).copied());
            let saw = saw_events_of.is_some() && saw_events_of == over;
            return Some((verb, self.alloc(buffer, stream, over, saw)?));
        }
        let mut fields = self.named(op.kind)?;
        match op.kind.class() {
            Class::Copy { from, to, .. } => self.both_sides(op, from, to, &mut fields)?,
            // The call allocates or frees a whole buffer.
            Class::MallocAsync | Class::FreeAsync | Class::Free => {
                fields.buffer = Some(self.buffer(op.accesses.first()?.buffer)?);
            }
            _ => {
                for access in &op.accesses {
                    let used = self.access(access)?;
                    match access.mode {
                        Mode::Read => fields.reads.push(used),
                        Mode::Write => fields.writes.push(used),
                        Mode::MayWrite => fields.may_write.push(used),
                        Mode::Atomic => fields.atomic.push(used),
                    }
                }
            }
        }
        if let Kind::Free { buffer } = op.kind {
            self.freed.push(buffer);
        }
        Some((verb, fields))
    }

    /// Returns the fields for the names and results of a call.
    fn named(&mut self, mut kind: Kind) -> Option<Fields> {
        let mut fields = Fields {
            yes: match kind {
                Kind::QueryEvent { done, .. } | Kind::QueryStream { done, .. } => done,
                Kind::DependentKernel { .. } => true,
                _ => false,
            },
            source_order: match kind {
                Kind::CopyBatch { source, .. } => Some(source),
                _ => None,
            },
            ..Fields::default()
        };
        let mut name = |named: Named<'_>| {
            match named {
                Named::Stream(id) => fields.stream = Some(self.stream(*id)?),
                Named::Event(id) if fields.event.is_some() => fields.later = Some(self.event(*id)?),
                Named::Event(id) => fields.event = Some(self.event(*id)?),
                Named::Buffer(id) => fields.buffer = Some(self.buffer(*id)?),
                Named::Graph(id) => fields.graph = Some(self.graph(*id)),
                Named::Device(id) => fields.device = Some(*id),
                // No race needs a flag.
                Named::Flag(_) => {}
            }
            Some(())
        };
        kind.each_named(|named| name(named).ok_or(())).ok()?;
        Some(fields)
    }

    /// Fills in both sides of a copy, of which the race has only one.
    fn both_sides(&mut self, op: &Op, from: Memory, to: Memory, fields: &mut Fields) -> Option<()> {
        let known = op.accesses.first()?;
        let used = self.access(known)?;
        let (low, high) = self.program.range(used);
        let other = match known.mode {
            Mode::Read => to,
            Mode::Write | Mode::MayWrite | Mode::Atomic => from,
        };
        let name = self.free_letter(other);
        let beside = self.declare_buffer(name, other, DEFAULT_BYTES.max(high - low));
        let size = self.program.buffers[beside.0 as usize].size_bytes;
        let beside = program::Access {
            buffer: beside,
            range: (high - low != size).then_some((0, high - low)),
        };
        let (read, write) = match known.mode {
            Mode::Read => (used, beside),
            Mode::Write | Mode::MayWrite | Mode::Atomic => (beside, used),
        };
        fields.reads.push(read);
        fields.writes.push(write);
        Some(())
    }

    fn access(&mut self, access: &Access) -> Option<program::Access> {
        let (root, low, high) = self.cut.bytes(access)?;
        let buffer = self.buffer(access.buffer)?;
        let (start, size) = self.bytes.place(root, low)?;
        let (end, _) = self.bytes.place(root, high)?;
        Some(program::Access {
            buffer,
            range: ((start, end) != (0, size)).then_some((start, end)),
        })
    }

    // -------------------------------------------------------------- names

    fn stream(&mut self, id: StreamId) -> Option<StreamRef> {
        if let Some(&known) = self.streams.get(&id) {
            return Some(known);
        }
        let stream = self.cut.streams.get(id.0 as usize)?;
        let called = self.cut.called.iter().find(|(of, _)| *of == id);
        let given = called.map_or(&stream.name, |(_, name)| name);
        let is_plain = stream.kind == StreamKind::NonBlocking && stream.device == DeviceId(0);
        let start = if is_plain { "s" } else { "stream" };
        let is_free = |name: &str| self.program.stream(name).is_none();
        let name = free_name(as_name(given), start, is_free);
        let origin = if is_plain && is_implicit_stream(&name) {
            Origin::Implicit
        } else {
            Origin::Declared
        };
        self.program.streams.push(StreamDecl {
            name,
            kind: stream.kind,
            device: stream.device,
            priority: 0,
            origin,
        });
        let new = StreamRef(self.program.streams.len() as u32 - 1);
        self.streams.insert(id, new);
        Some(new)
    }

    fn buffer(&mut self, id: BufferId) -> Option<BufferRef> {
        if let Some(&known) = self.buffers.get(&id) {
            return Some(known);
        }
        let buffer = self.cut.buffers.get(id.0 as usize)?;
        let (memory, size) = (buffer.memory, self.bytes.size(buffer.root));
        let given = as_name(&buffer.name).filter(|name| self.is_free(name));
        let name = given.unwrap_or_else(|| self.free_letter(memory));
        let new = self.declare_buffer(name, memory, size);
        self.buffers.insert(id, new);
        Some(new)
    }

    fn declare_buffer(&mut self, name: String, memory: Memory, size_bytes: u64) -> BufferRef {
        let implicit = implicit_memory(&name) == Some(memory) && size_bytes == DEFAULT_BYTES;
        self.program.buffers.push(BufferDecl {
            name,
            memory,
            size_bytes,
            implicit,
        });
        BufferRef(self.program.buffers.len() as u32 - 1)
    }

    /// Returns a name of one letter, with which a buffer needs no declaration.
    fn free_letter(&self, memory: Memory) -> String {
        let letters: &[&str] = match memory {
            Memory::Pinned => &["H"],
            Memory::Pageable => &["P"],
            Memory::Managed => &["M"],
            Memory::Device => &["A", "B", "C", "D", "E", "F"],
        };
        let free = letters.iter().find(|letter| self.is_free(letter));
        let free = free.map(|&letter| letter.to_owned());
        free_name(free, letters[0], |name| self.is_free(name))
    }

    fn is_free(&self, name: &str) -> bool {
        self.program.buffer(name).is_none()
    }

    fn event(&mut self, id: EventId) -> Option<EventId> {
        if let Some(&known) = self.events.get(&id) {
            return Some(known);
        }
        let timing = *self.cut.events.get(id.0 as usize)?;
        let count = self.program.events.len() as u32;
        self.program.events.push(EventDecl {
            name: format!("e{count}"),
            timing,
            device: None,
            implicit: timing,
        });
        self.events.insert(id, EventId(count));
        Some(EventId(count))
    }

    fn graph(&mut self, id: GraphId) -> GraphId {
        let name = format!("g{}", id.0);
        let known = self.program.graphs.iter().position(|known| *known == name);
        let at = known.unwrap_or_else(|| {
            self.program.graphs.push(name);
            self.program.graphs.len() - 1
        });
        GraphId(at as u32)
    }

    fn thread(&mut self, id: ThreadId) -> ThreadId {
        if let Some(&known) = self.threads.get(&id) {
            return known;
        }
        // The thread that calls first is the one without a name.
        let new = ThreadId(self.threads.len() as u32);
        if new.0 > 0 {
            let threads = &mut self.program.threads;
            let given = self.cut.threads.get(id.0 as usize);
            let given = given.and_then(|name| as_name(name));
            let name = free_name(given, "t", |name| threads.iter().all(|t| t != name));
            threads.push(name);
        }
        self.threads.insert(id, new);
        new
    }
}

/// Returns the given name if it is free, or else the first free one of `s1`, `s2`, ….
fn free_name(given: Option<String>, start: &str, is_free: impl Fn(&str) -> bool) -> String {
    let numbered = (1..).map(|n: u32| format!("{start}{n}"));
    let mut names = given.into_iter().chain(numbered);
    names.find(|name| is_free(name)).unwrap_or_default()
}
