//! The encoding of records: each field is listed once, for both the writer and the reader. `docs/reference/op-log.md` describes
//! it.

#![deny(clippy::wildcard_enum_match_arm)]

use std::borrow::Cow;
use std::convert::Infallible;
use std::io::Read;

use super::declared::{Declared, too_many_accesses};
use super::error::{Error, Problem};
use super::input::Input;
use super::{Record, Within, limits};
use crate::backend::Done;
use crate::op::{
    Access, BufferId, Compare, DeviceId, EventId, Field, FlagId, GraphId, Kind, Memory, Mode, Op,
    OpId, SiteId, SourceOrder, StreamId, StreamKind, ThreadId,
};

/// The first byte of the end record, the last one of a log.
pub(super) const END: u8 = 0;
/// The bit of the first byte that marks an operation, whose kind is in the low six bits.
pub(super) const OP: u8 = 0x80;
/// The bit of the first byte of an operation which says that number and thread follow. Without it, the number is one
/// more than that of the previous operation, and the thread is that of the previous operation.
const HEAD: u8 = 0x40;

/// The kinds of memory, by their code.
const MEMORIES: [Memory; 4] = [
    Memory::Device,
    Memory::Pinned,
    Memory::Pageable,
    Memory::Managed,
];
const STREAM_KINDS: [StreamKind; 4] = [
    StreamKind::NonBlocking,
    StreamKind::Blocking,
    StreamKind::PerThread,
    StreamKind::Legacy,
];

/// The orders of a source, by their code.
const SOURCES: [SourceOrder; 3] = [
    SourceOrder::Stream,
    SourceOrder::DuringCall,
    SourceOrder::Any,
];
/// The comparisons, by their code.
const COMPARES: [Compare; 4] = [Compare::AtLeast, Compare::Equal, Compare::And, Compare::Nor];
/// The modes of access, by their code.
const MODES: [Mode; 4] = [Mode::Read, Mode::Write, Mode::MayWrite, Mode::Atomic];

/// Returns the code of a value: its index in the list.
#[inline]
fn code_of<T: PartialEq, const N: usize>(list: &[T; N], value: T) -> u8 {
    list.iter().position(|listed| *listed == value).unwrap_or(0) as u8
}

/// The bytes of a log, to be written or read. Each method takes the value of a field and returns it: a writer encodes and
/// returns the argument; a reader ignores the argument and returns the value decoded.
pub(super) trait Wire {
    /// The error for an invalid field.
    type Error;

    fn number(&mut self, number: u64) -> Result<u64, Self::Error>;
    /// Codes an id or a count.
    fn small(&mut self, number: u32) -> Result<u32, Self::Error>;
    /// Codes a byte of which only the lowest bits may be set.
    fn bits(&mut self, bits: u8, count: u32, expected: &'static str) -> Result<u8, Self::Error>;
    /// Codes a byte of at most this value.
    fn code(&mut self, code: u8, most: u8, expected: &'static str) -> Result<u8, Self::Error>;
    fn text<'a>(&mut self, text: Cow<'a, str>) -> Result<Cow<'a, str>, Self::Error>;
    /// Codes an optional id: zero for `None`, else one more than the id.
    fn option(&mut self, id: Option<u32>) -> Result<Option<u32>, Self::Error>;
    /// Codes a buffer, as the distance back from the newest one.
    fn buffer(&mut self, id: BufferId, newest: u32) -> Result<BufferId, Self::Error>;
    /// Codes an optional buffer: zero for `None`, else one more than its distance.
    fn some_buffer(
        &mut self,
        id: Option<BufferId>,
        newest: u32,
    ) -> Result<Option<BufferId>, Self::Error>;
    /// Codes an operation, as the distance back from the last one.
    fn op(&mut self, id: OpId, next: u64) -> Result<OpId, Self::Error>;

    #[inline]
    fn flag(&mut self, yes: bool, expected: &'static str) -> Result<bool, Self::Error> {
        Ok(self.bits(u8::from(yes), 1, expected)? == 1)
    }

    /// Codes a time span, as its start and its duration.
    fn times(&mut self, (start, end): (u64, u64)) -> Result<(u64, u64), Self::Error> {
        let start = self.number(start)?;
        let lasts = self.number(end.wrapping_sub(start))?;
        Ok((start, start.saturating_add(lasts)))
    }
}

/// Appends a number in LEB128.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes the fields. A record that does not fit the declarations is never encoded for a file, so its bytes may be
/// anything.
impl Wire for Vec<u8> {
    type Error = Infallible;

    #[inline]
    fn number(&mut self, number: u64) -> Result<u64, Infallible> {
        put(self, number);
        Ok(number)
    }

    #[inline]
    fn small(&mut self, number: u32) -> Result<u32, Infallible> {
        put(self, u64::from(number));
        Ok(number)
    }

    #[inline]
    fn bits(&mut self, bits: u8, _: u32, _: &'static str) -> Result<u8, Infallible> {
        self.push(bits);
        Ok(bits)
    }

    fn code(&mut self, code: u8, _: u8, _: &'static str) -> Result<u8, Infallible> {
        self.push(code);
        Ok(code)
    }

    fn text<'a>(&mut self, text: Cow<'a, str>) -> Result<Cow<'a, str>, Infallible> {
        let short = &text[..text.floor_char_boundary(limits::TEXT_BYTES)];
        put(self, short.len() as u64);
        self.extend_from_slice(short.as_bytes());
        Ok(text)
    }

    #[inline]
    fn option(&mut self, id: Option<u32>) -> Result<Option<u32>, Infallible> {
        put(self, id.map_or(0, |id| u64::from(id) + 1));
        Ok(id)
    }

    #[inline]
    fn buffer(&mut self, id: BufferId, newest: u32) -> Result<BufferId, Infallible> {
        put(self, u64::from(newest.wrapping_sub(1).wrapping_sub(id.0)));
        Ok(id)
    }

    #[inline]
    fn some_buffer(
        &mut self,
        id: Option<BufferId>,
        newest: u32,
    ) -> Result<Option<BufferId>, Infallible> {
        put(
            self,
            id.map_or(0, |id| u64::from(newest.wrapping_sub(id.0))),
        );
        Ok(id)
    }

    fn op(&mut self, id: OpId, next: u64) -> Result<OpId, Infallible> {
        put(self, next.wrapping_sub(1).wrapping_sub(u64::from(id.0)));
        Ok(id)
    }
}

/// Reads.
impl<R: Read> Wire for Input<R> {
    type Error = Error;

    #[inline]
    fn number(&mut self, _: u64) -> Result<u64, Error> {
        Input::number(self)
    }

    #[inline]
    fn small(&mut self, _: u32) -> Result<u32, Error> {
        Input::small(self)
    }

    #[inline]
    fn bits(&mut self, _: u8, count: u32, expected: &'static str) -> Result<u8, Error> {
        Input::bits(self, count, expected)
    }

    fn code(&mut self, _: u8, most: u8, expected: &'static str) -> Result<u8, Error> {
        let code = self.byte()?;
        Some(code)
            .filter(|&code| code <= most)
            .ok_or_else(|| self.malformed(expected))
    }

    fn text<'a>(&mut self, _: Cow<'a, str>) -> Result<Cow<'a, str>, Error> {
        Input::text(self).map(Cow::Owned)
    }

    #[inline]
    fn option(&mut self, _: Option<u32>) -> Result<Option<u32>, Error> {
        let id = Input::number(self)?.checked_sub(1).map(u32::try_from);
        let id = id.transpose();
        id.map_err(|_| self.malformed("an id of at most 32 bits"))
    }

    #[inline]
    fn buffer(&mut self, _: BufferId, newest: u32) -> Result<BufferId, Error> {
        let back = Input::number(self)?;
        buffer_at(back, self, newest)
    }

    #[inline]
    fn some_buffer(&mut self, _: Option<BufferId>, newest: u32) -> Result<Option<BufferId>, Error> {
        let back = Input::number(self)?.checked_sub(1);
        back.map(|back| buffer_at(back, self, newest)).transpose()
    }

    fn op(&mut self, _: OpId, next: u64) -> Result<OpId, Error> {
        let back = Input::number(self)?;
        let id = next.checked_sub(back.saturating_add(1));
        let id = id.and_then(|id| u32::try_from(id).ok());
        id.map(OpId).ok_or_else(|| {
            self.malformed("the distance from the newest operation back to an earlier one")
        })
    }
}

/// Returns the declared buffer at this distance back from the newest.
#[inline]
fn buffer_at<R: Read>(back: u64, input: &Input<R>, newest: u32) -> Result<BufferId, Error> {
    match u64::from(newest).checked_sub(back.saturating_add(1)) {
        Some(id) => Ok(BufferId(id as u32)),
        None => Err(input.error(Problem::Malformed {
            expected: "the distance from the newest buffer back to a declared one",
        })),
    }
}

// ------------------------------------------------------------------ records other than operations

/// Returns the first byte of a record.
pub(super) fn tag_of(record: &Record<'_>) -> u8 {
    match record {
        Record::Stream { .. } => 1,
        Record::Event { .. } => 2,
        Record::Buffer { .. } => 3,
        Record::Thread { .. } => 4,
        Record::Site { .. } => 5,
        Record::Pool { .. } => 6,
        Record::Span { .. } => 7,
        Record::Done(_) => 8,
        Record::Op(_) => OP,
    }
}

/// Returns the name of the kind of record that begins with byte `tag`, and a record to read into. Returns `None` for an
/// operation or an unknown kind.
pub(super) fn of_tag(tag: u8) -> Option<(&'static str, Record<'static>)> {
    let op = OpId(0);
    Some(match tag {
        1 => {
            let kind = StreamKind::NonBlocking;
            ("a stream", Record::stream(kind, DeviceId(0), ""))
        }
        2 => ("an event", Record::event(false, None, "")),
        3 => ("a buffer", Record::buffer(Memory::Device, 0, None, "")),
        4 => ("a thread", Record::thread("")),
        5 => ("a call site", Record::site("")),
        6 => {
            let (asked, size) = (0, 0);
            ("a pool note", Record::Pool { op, asked, size })
        }
        7 => ("a span", Record::span(ThreadId(0), None)),
        8 => {
            let (call_ns, work_ns) = (None, None);
            let done = Done {
                op,
                call_ns,
                work_ns,
            };
            ("the times of an operation", Record::Done(done))
        }
        _ => return None,
    })
}

/// Codes the fields of a record other than an operation, after its first byte.
pub(super) fn fields<'a, W: Wire>(
    wire: &mut W,
    record: Record<'a>,
    declared: &Declared,
) -> Result<Record<'a>, W::Error> {
    Ok(match record {
        Record::Stream { kind, device, name } => {
            let code = code_of(&STREAM_KINDS, kind);
            let code = wire.bits(code, 2, "a kind of stream, 0 to 3")?;
            Record::Stream {
                kind: STREAM_KINDS[usize::from(code & 3)],
                device: DeviceId(wire.small(device.0)?),
                name: wire.text(name)?,
            }
        }
        Record::Event {
            timing,
            device,
            name,
        } => {
            let flags = u8::from(timing) | u8::from(device.is_some()) << 1;
            let flags = wire.bits(flags, 2, "the flags of an event, 0 to 3")?;
            let device = device.unwrap_or(DeviceId(0));
            Record::Event {
                timing: flags & 1 != 0,
                device: match flags & 2 {
                    0 => None,
                    _ => Some(DeviceId(wire.small(device.0)?)),
                },
                name: wire.text(name)?,
            }
        }
        Record::Buffer {
            memory,
            bytes,
            within,
            name,
        } => {
            let flags = code_of(&MEMORIES, memory) | u8::from(within.is_some()) << 2;
            let flags = wire.bits(flags, 3, "the flags of a buffer, 0 to 7")?;
            let (buffer, start) = within.map_or((BufferId(0), 0), |w| (w.buffer, w.start));
            Record::Buffer {
                memory: MEMORIES[usize::from(flags & 3)],
                bytes: wire.number(bytes)?,
                within: match flags & 4 {
                    0 => None,
                    _ => Some(Within {
                        buffer: wire.buffer(buffer, declared.newest())?,
                        start: wire.number(start)?,
                    }),
                },
                name: wire.text(name)?,
            }
        }
        Record::Thread { name } => Record::thread(wire.text(name)?),
        Record::Site { text } => Record::site(wire.text(text)?),
        Record::Pool { op, asked, size } => Record::Pool {
            op: OpId(wire.small(op.0)?),
            asked: wire.small(asked)?,
            size: wire.small(size)?,
        },
        Record::Span { thread, enters } => {
            let does_enter = wire.flag(enters.is_some(), "1 to enter a span, 0 to leave one")?;
            Record::Span {
                thread: ThreadId(wire.small(thread.0)?),
                enters: if does_enter {
                    Some(wire.text(enters.unwrap_or_default())?)
                } else {
                    None
                },
            }
        }
        Record::Done(done) => {
            let flags = u8::from(done.call_ns.is_some()) | u8::from(done.work_ns.is_some()) << 1;
            let flags = wire.bits(flags, 2, "which times are known, 0 to 3")?;
            let op = wire.op(done.op, declared.next)?;
            let mut times = |flag, times: Option<(u64, u64)>| match flags & flag {
                0 => Ok(None),
                _ => wire.times(times.unwrap_or_default()).map(Some),
            };
            Record::Done(Done {
                op,
                call_ns: times(1, done.call_ns)?,
                work_ns: times(2, done.work_ns)?,
            })
        }
        // Operations are coded below.
        Record::Op(op) => Record::Op(op),
    })
}

// ------------------------------------------------------------------ operations

/// Appends an operation that was checked.
#[inline]
pub(super) fn put_op(out: &mut Vec<u8>, op: &Op, declared: &Declared) {
    let skipped = u64::from(op.id.0) - declared.next;
    let head = if skipped > 0 || op.thread != declared.thread {
        HEAD
    } else {
        0
    };
    out.push(OP | head | op.kind.code());
    if head != 0 {
        put(out, skipped);
        put(out, u64::from(op.thread.0));
    }
    put(out, u64::from(op.site.0));
    let newest = declared.newest();
    let mut kind = op.kind;
    let Ok(()) = of_kind(out, &mut kind, newest);
    put(out, op.accesses.len() as u64);
    for access in &op.accesses {
        let bytes = declared.buffers[access.buffer.0 as usize];
        let partial = access.start != 0 || access.end != bytes;
        let mode = code_of(&MODES, access.mode);
        let back = u64::from(newest - 1 - access.buffer.0);
        put(out, back << 3 | u64::from(mode) << 1 | u64::from(partial));
        if partial {
            put(out, access.start);
            put(out, access.len_bytes());
        }
    }
}

/// Reads into `op` the operation that starts with the byte `tag`, which was already read.
#[inline]
pub(super) fn read_op<R: Read>(
    tag: u8,
    op: &mut Op,
    input: &mut Input<R>,
    declared: &Declared,
) -> Result<(), Error> {
    let (mut id, mut thread) = (declared.next, declared.thread);
    if tag & HEAD != 0 {
        id = id.saturating_add(input.number()?);
        thread = ThreadId(input.small()?);
    }
    let id = u32::try_from(id)
        .map_err(|_| input.malformed("operations numbered with at most 32 bits"))?;
    op.id = OpId(id);
    op.thread = thread;
    op.site = SiteId(input.small()?);
    let kind = Kind::of_code(tag & 0x3f);
    op.kind = kind.ok_or_else(|| input.malformed("the code of a kind of operation"))?;
    of_kind(input, &mut op.kind, declared.newest())?;
    let count = input.small()?;
    if count > limits::ACCESSES {
        return Err(input.error(too_many_accesses()));
    }
    op.accesses.clear();
    for _ in 0..count {
        op.accesses.push(read_access(input, declared)?);
    }
    Ok(())
}

#[inline]
fn read_access<R: Read>(input: &mut Input<R>, declared: &Declared) -> Result<Access, Error> {
    let word = input.number()?;
    let buffer = buffer_at(word >> 3, input, declared.newest())?;
    let mode = MODES[(word >> 1 & 3) as usize];
    let (start, end) = if word & 1 != 0 {
        let start = input.number()?;
        (start, start.saturating_add(input.number()?))
    } else {
        (0, declared.buffers[buffer.0 as usize])
    };
    Ok(Access {
        buffer,
        start,
        end,
        mode,
    })
}

/// Codes the fields of a kind of operation.
#[inline]
fn of_kind<W: Wire>(wire: &mut W, kind: &mut Kind, newest: u32) -> Result<(), W::Error> {
    kind.each_field(|field| {
        match field {
            Field::Buffer(id) => *id = wire.buffer(*id, newest)?,
            Field::Stream(StreamId(id))
            | Field::Event(EventId(id))
            | Field::Flag(FlagId(id))
            | Field::Graph(GraphId(id))
            | Field::Device(DeviceId(id))
            | Field::Count(id) => *id = wire.small(*id)?,
            Field::SomeStream(id) => *id = wire.option(id.map(|id| id.0))?.map(StreamId),
            Field::SomeFlag(id) => *id = wire.option(id.map(|id| id.0))?.map(FlagId),
            Field::SomeDevice(id) => *id = wire.option(id.map(|id| id.0))?.map(DeviceId),
            Field::SomeBuffer(id) => *id = wire.some_buffer(*id, newest)?,
            Field::Memory(memory) => {
                let code = code_of(&MEMORIES, *memory);
                let code = wire.bits(code, 2, "a kind of memory, 0 to 3")?;
                *memory = MEMORIES[usize::from(code & 3)];
            }
            Field::Memories(from, to) => {
                let both = code_of(&MEMORIES, *from) | code_of(&MEMORIES, *to) << 2;
                let both = wire.bits(both, 4, "two kinds of memory, 0 to 15")?;
                *from = MEMORIES[usize::from(both & 3)];
                *to = MEMORIES[usize::from(both >> 2 & 3)];
            }
            Field::Compare(compare) => {
                let code = wire.code(code_of(&COMPARES, *compare), 3, "a comparison, 0 to 3")?;
                *compare = COMPARES[usize::from(code)];
            }
            Field::SourceOrder(source) => {
                let code = wire.code(code_of(&SOURCES, *source), 2, "an order, 0 to 2")?;
                *source = SOURCES[usize::from(code)];
            }
            Field::Yes(yes) => *yes = wire.flag(*yes, "yes or no, 1 or 0")?,
        }
        Ok(())
    })
}
