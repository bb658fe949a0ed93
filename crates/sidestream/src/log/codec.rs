//! The bytes of an operation, both ways. `docs/op-log.md` is the same in words.

#![deny(clippy::wildcard_enum_match_arm)]

use std::io::Read;

use super::declared::{Declared, too_many_accesses};
use super::error::{Error, Problem};
use super::input::Input;
use super::limits;
use crate::op::{
    Access, BufferId, DeviceId, EventId, FlagId, GraphId, Kind, Memory, Mode, Op, OpId, SiteId,
    StreamId, ThreadId,
};

// The first byte of records that are no operations.
pub(super) const END: u8 = 0;
pub(super) const STREAM: u8 = 1;
pub(super) const EVENT: u8 = 2;
pub(super) const BUFFER: u8 = 3;
pub(super) const THREAD: u8 = 4;
pub(super) const SITE: u8 = 5;
pub(super) const POOL: u8 = 6;
pub(super) const SPAN: u8 = 7;
pub(super) const DONE: u8 = 8;

/// In the first byte: an operation, whose kind is in the low six bits.
pub(super) const OP: u8 = 0x80;
/// In the first byte of an operation: number and thread follow. Without it, the number is the one
/// after the last and the thread is that of the last.
const HEAD: u8 = 0x40;

// ------------------------------------------------------------------ writing

/// A number in LEB128.
#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[inline]
fn put_id(out: &mut Vec<u8>, id: u32) {
    put(out, u64::from(id));
}

pub(super) fn memory_code(memory: Memory) -> u8 {
    match memory {
        Memory::Device => 0,
        Memory::Pinned => 1,
        Memory::Pageable => 2,
        Memory::Managed => 3,
    }
}

/// Appends an operation that was checked.
#[inline]
pub(super) fn put_op(out: &mut Vec<u8>, op: &Op, declared: &Declared) {
    let first = out.len();
    out.push(OP);
    let skipped = u64::from(op.id.0) - declared.next;
    let mut head = 0;
    if skipped > 0 || op.thread != declared.thread {
        head = HEAD;
        put(out, skipped);
        put_id(out, op.thread.0);
    }
    put_id(out, op.site.0);
    let newest = declared.newest();
    out[first] |= head | put_kind(out, &op.kind, newest);
    put(out, op.accesses.len() as u64);
    for access in &op.accesses {
        let bytes = declared.buffers[access.buffer.0 as usize];
        let partial = access.start != 0 || access.end != bytes;
        let writes = access.mode == Mode::Write;
        let back = u64::from(newest - 1 - access.buffer.0);
        put(out, back << 2 | u64::from(writes) << 1 | u64::from(partial));
        if partial {
            put(out, access.start);
            put(out, access.len_bytes());
        }
    }
}

/// Appends the fields of a kind and gives its code.
#[inline]
fn put_kind(out: &mut Vec<u8>, kind: &Kind, newest: u32) -> u8 {
    let back = |buffer: BufferId| newest - 1 - buffer.0;
    match *kind {
        Kind::Kernel { stream, launches } => {
            put_id(out, stream.0);
            put_id(out, launches);
            0
        }
        Kind::Copy { stream, from, to } => {
            put_id(out, stream.0);
            out.push(memory_code(from) | memory_code(to) << 2);
            1
        }
        Kind::Memset { stream } => one(out, stream.0, 2),
        Kind::CopyBlocking { from, to } => {
            out.push(memory_code(from) | memory_code(to) << 2);
            3
        }
        Kind::MemsetBlocking { to } => {
            out.push(memory_code(to));
            4
        }
        Kind::HostFunc { stream, raises } => {
            put_id(out, stream.0);
            put_option(out, raises.map(|flag| flag.0));
            5
        }
        Kind::GraphLaunch { stream, graph } => two(out, stream.0, graph.0, 6),
        Kind::MallocAsync { stream } => one(out, stream.0, 7),
        Kind::FreeAsync { stream } => one(out, stream.0, 8),
        Kind::Record { event, stream } => two(out, stream.0, event.0, 9),
        Kind::Wait { stream, event } => two(out, stream.0, event.0, 10),
        Kind::WaitStream { stream, source } => two(out, stream.0, source.0, 11),
        Kind::SyncStream { stream } => one(out, stream.0, 12),
        Kind::SyncEvent { event } => one(out, event.0, 13),
        Kind::SyncDevice { device } => {
            put_option(out, device.map(|device| device.0));
            14
        }
        Kind::QueryStream { stream, done } => two(out, stream.0, u32::from(done), 15),
        Kind::QueryEvent { event, done } => two(out, event.0, u32::from(done), 16),
        Kind::SetFlag { flag } => one(out, flag.0, 17),
        Kind::WaitFlag { flag } => one(out, flag.0, 18),
        Kind::HostAccess => 19,
        Kind::Alloc {
            buffer,
            stream,
            saw_events_of,
        } => {
            put_id(out, back(buffer));
            put_option(out, stream.map(|stream| stream.0));
            put_option(out, saw_events_of.map(back));
            20
        }
        Kind::RecordStream { buffer, stream } => two(out, back(buffer), stream.0, 21),
        Kind::Free { buffer } => one(out, back(buffer), 22),
        Kind::CudaMalloc => 23,
        Kind::CudaFree { stream_ordered } => one(out, u32::from(stream_ordered), 24),
        Kind::FreePinned => 25,
        Kind::Elapsed { from, to } => two(out, from.0, to.0, 26),
        Kind::CreateEvent { event } => one(out, event.0, 27),
        Kind::DestroyEvent { event } => one(out, event.0, 28),
        Kind::CreateStream { stream } => one(out, stream.0, 29),
        Kind::DestroyStream { stream } => one(out, stream.0, 30),
        Kind::SetDevice { device } => one(out, device.0, 31),
        Kind::BeginCapture { stream } => one(out, stream.0, 32),
        Kind::EndCapture { stream } => one(out, stream.0, 33),
    }
}

#[inline]
fn one(out: &mut Vec<u8>, id: u32, code: u8) -> u8 {
    put_id(out, id);
    code
}

#[inline]
fn two(out: &mut Vec<u8>, first: u32, second: u32, code: u8) -> u8 {
    put_id(out, first);
    put_id(out, second);
    code
}

/// Zero for nothing, else one more than the id.
#[inline]
fn put_option(out: &mut Vec<u8>, id: Option<u32>) {
    put(out, id.map_or(0, |id| u64::from(id) + 1));
}

// ------------------------------------------------------------------ reading

/// Fills `op` with the operation that starts with the byte `tag`, which was read already.
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
    op.kind = read_kind(tag & 0x3f, input, declared)?;
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
    let buffer = buffer_at(word >> 2, input, declared)?;
    let mode = if word & 2 != 0 {
        Mode::Write
    } else {
        Mode::Read
    };
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

/// The declared buffer this far back from the newest.
#[inline]
pub(super) fn buffer_at<R: Read>(
    back: u64,
    input: &Input<R>,
    declared: &Declared,
) -> Result<BufferId, Error> {
    let newest = declared.newest();
    match u64::from(newest).checked_sub(back.saturating_add(1)) {
        Some(id) => Ok(BufferId(id as u32)),
        None => Err(input.error(Problem::Malformed {
            expected: "the distance from the newest buffer back to a declared one",
        })),
    }
}

#[inline]
fn read_kind<R: Read>(code: u8, input: &mut Input<R>, declared: &Declared) -> Result<Kind, Error> {
    Ok(match code {
        0 => Kind::Kernel {
            stream: stream(input)?,
            launches: input.small()?,
        },
        1 => {
            let stream = stream(input)?;
            let (from, to) = memories(input)?;
            Kind::Copy { stream, from, to }
        }
        2 => Kind::Memset {
            stream: stream(input)?,
        },
        3 => {
            let (from, to) = memories(input)?;
            Kind::CopyBlocking { from, to }
        }
        4 => Kind::MemsetBlocking {
            to: memory(input.bits(2, "a kind of memory, 0 to 3")?),
        },
        5 => Kind::HostFunc {
            stream: stream(input)?,
            raises: option(input)?.map(FlagId),
        },
        6 => Kind::GraphLaunch {
            stream: stream(input)?,
            graph: GraphId(input.small()?),
        },
        7 => Kind::MallocAsync {
            stream: stream(input)?,
        },
        8 => Kind::FreeAsync {
            stream: stream(input)?,
        },
        9 => Kind::Record {
            stream: stream(input)?,
            event: event(input)?,
        },
        10 => Kind::Wait {
            stream: stream(input)?,
            event: event(input)?,
        },
        11 => Kind::WaitStream {
            stream: stream(input)?,
            source: stream(input)?,
        },
        12 => Kind::SyncStream {
            stream: stream(input)?,
        },
        13 => Kind::SyncEvent {
            event: event(input)?,
        },
        14 => Kind::SyncDevice {
            device: option(input)?.map(DeviceId),
        },
        15 => Kind::QueryStream {
            stream: stream(input)?,
            done: flag(input)?,
        },
        16 => Kind::QueryEvent {
            event: event(input)?,
            done: flag(input)?,
        },
        17 => Kind::SetFlag {
            flag: FlagId(input.small()?),
        },
        18 => Kind::WaitFlag {
            flag: FlagId(input.small()?),
        },
        19 => Kind::HostAccess,
        20 => Kind::Alloc {
            buffer: buffer(input, declared)?,
            stream: option(input)?.map(StreamId),
            saw_events_of: match input.number()? {
                0 => None,
                back => Some(buffer_at(back - 1, input, declared)?),
            },
        },
        21 => Kind::RecordStream {
            buffer: buffer(input, declared)?,
            stream: stream(input)?,
        },
        22 => Kind::Free {
            buffer: buffer(input, declared)?,
        },
        23 => Kind::CudaMalloc,
        24 => Kind::CudaFree {
            stream_ordered: flag(input)?,
        },
        25 => Kind::FreePinned,
        26 => Kind::Elapsed {
            from: event(input)?,
            to: event(input)?,
        },
        27 => Kind::CreateEvent {
            event: event(input)?,
        },
        28 => Kind::DestroyEvent {
            event: event(input)?,
        },
        29 => Kind::CreateStream {
            stream: stream(input)?,
        },
        30 => Kind::DestroyStream {
            stream: stream(input)?,
        },
        31 => Kind::SetDevice {
            device: DeviceId(input.small()?),
        },
        32 => Kind::BeginCapture {
            stream: stream(input)?,
        },
        33 => Kind::EndCapture {
            stream: stream(input)?,
        },
        _ => return Err(input.malformed("a kind of operation, 0 to 33")),
    })
}

#[inline]
fn stream<R: Read>(input: &mut Input<R>) -> Result<StreamId, Error> {
    input.small().map(StreamId)
}

#[inline]
fn event<R: Read>(input: &mut Input<R>) -> Result<EventId, Error> {
    input.small().map(EventId)
}

#[inline]
fn buffer<R: Read>(input: &mut Input<R>, declared: &Declared) -> Result<BufferId, Error> {
    let back = input.number()?;
    buffer_at(back, input, declared)
}

#[inline]
fn flag<R: Read>(input: &mut Input<R>) -> Result<bool, Error> {
    Ok(input.bits(1, "yes or no, 1 or 0")? == 1)
}

/// Zero is nothing, else it is one more than the id.
#[inline]
fn option<R: Read>(input: &mut Input<R>) -> Result<Option<u32>, Error> {
    let number = input.number()?;
    let id = number.checked_sub(1).map(u32::try_from).transpose();
    id.map_err(|_| input.malformed("an id of at most 32 bits"))
}

#[inline]
fn memories<R: Read>(input: &mut Input<R>) -> Result<(Memory, Memory), Error> {
    let both = input.bits(4, "two kinds of memory, 0 to 15")?;
    Ok((memory(both & 3), memory(both >> 2)))
}

/// The kind of memory in two bits.
pub(super) fn memory(bits: u8) -> Memory {
    match bits & 3 {
        0 => Memory::Device,
        1 => Memory::Pinned,
        2 => Memory::Pageable,
        _ => Memory::Managed,
    }
}
