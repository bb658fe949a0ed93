//! One event of the file, before anyone knows what it means.

use memchr::memmem;

use super::cursor::{Cursor, Stop, Text, Value};
use super::decimal::scaled;

/// An event's own fields, as they stand in the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row<'a> {
    /// What shape of event it is: `X` has a duration, `M` names something.
    pub phase: u8,
    /// Its category; empty if it has none.
    pub category: &'a [u8],
    /// Its name.
    pub name: Text<'a>,
    /// The process, or the device.
    pub pid: Option<Value<'a>>,
    /// The thread, or the stream.
    pub tid: Option<Value<'a>>,
    start: &'a [u8],
    duration: &'a [u8],
    /// Its further fields, whole.
    args: &'a [u8],
}

/// The further fields that matter, of any kind of event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Args<'a> {
    /// The device.
    pub device: Option<i64>,
    /// The context.
    pub context: Option<i64>,
    /// The stream.
    pub stream: Option<i64>,
    /// The number that a call and its work share; 0 for none.
    pub correlation: u32,
    /// How much was copied or set.
    pub bytes: u64,
    /// How many blocks, in three dimensions.
    pub grid: [u32; 3],
    /// How many threads in each, in three dimensions.
    pub block: [u32; 3],
    /// How much of the warps that fit were there, in percent.
    pub occupancy: Option<u8>,
    /// How many registers each thread takes.
    pub registers: u16,
    /// How much shared memory each block takes.
    pub shared_bytes: u32,
    /// The graph; 0 for none.
    pub graph: u32,
    /// The call that recorded the event that is waited for; 0 for none.
    pub record_correlation: u32,
    /// What is named, in an event that names something.
    pub name: Option<Text<'a>>,
    /// What is exchanged with other ranks, where it is said.
    pub exchanged: Exchanged<'a>,
    /// The number that an operator and its kernels share.
    pub external: Option<i64>,
    /// Whether Sidestream wrote the number of its operation here.
    pub has_op: bool,
}

/// What PyTorch says of an exchange of data with other ranks, on `record_param_comms` and on its kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchanged<'a> {
    /// `Collective name`.
    pub operation: Option<Text<'a>>,
    /// `Process Group Name`.
    pub group: Option<Text<'a>>,
    /// `Process Group Description`.
    pub description: Option<Text<'a>>,
    /// `Process Group Ranks`, cut behind thirty of them.
    pub ranks: Option<Text<'a>>,
    /// `Group size`.
    pub size: Option<i64>,
    /// `Seq`.
    pub seq: Option<i64>,
    /// `In msg nelems`.
    pub elements: Option<i64>,
    /// `dtype`.
    pub dtype: Option<Text<'a>>,
    /// `Src Rank` or `Dst Rank`: a number among all ranks.
    pub peer: Option<i64>,
}

impl<'a> Row<'a> {
    /// Reads an event. Its opening brace comes next.
    pub fn read(cursor: &mut Cursor<'a>) -> Result<Row<'a>, Stop> {
        cursor.expect(b'{')?;
        let mut row = Row::default();
        while let Some(key) = cursor.key()? {
            let value = cursor.value()?;
            match (key, value) {
                (b"ph", Value::Text(text)) => {
                    row.phase = text.bytes().first().copied().unwrap_or(0);
                }
                (b"cat", Value::Text(text)) => row.category = text.bytes(),
                (b"name", Value::Text(text)) => row.name = text,
                (b"pid", value) => row.pid = Some(value),
                (b"tid", value) => row.tid = Some(value),
                (b"ts", value) => row.start = digits(value),
                (b"dur", value) => row.duration = digits(value),
                (b"args", Value::Object(whole)) => row.args = whole,
                _ => {}
            }
        }
        Ok(row)
    }

    /// Whether it has anything that events have. An empty object has not.
    pub fn is_event(&self) -> bool {
        self.phase != 0
    }

    /// When it began.
    pub fn start_ns(&self) -> Option<i64> {
        scaled(self.start, 3)
    }

    /// How long it lasted; nothing where it does not say.
    pub fn duration_ns(&self) -> Option<u64> {
        match self.duration {
            b"" => Some(0),
            text => u64::try_from(scaled(text, 3)?).ok(),
        }
    }

    /// Its further fields.
    pub fn args(&self) -> Args<'a> {
        let mut args = Args::default();
        if self.args.is_empty() {
            return args;
        }
        let mut cursor = Cursor::new(self.args);
        // They were passed over once: what is wrong with them was found then.
        let _ = read_args(&mut cursor, &mut args);
        args
    }
}

impl<'a> Row<'a> {
    /// The shapes of an operator's inputs, as they stand in the file.
    pub fn shapes(&self) -> Option<&'a [u8]> {
        let at = memmem::find(self.args, b"\"Input Dims\"")?;
        let mut cursor = Cursor::new(&self.args[at..]);
        match (cursor.key(), cursor.value()) {
            (Ok(Some(_)), Ok(Value::Array(whole))) => Some(whole),
            _ => None,
        }
    }

    /// Memory that was taken or given back; none where the event does not say how much.
    pub fn memory(&self) -> Option<MemoryArgs> {
        let mut cursor = Cursor::new(self.args);
        let (mut memory, mut bytes) = (MemoryArgs::default(), None);
        cursor.expect(b'{').ok()?;
        while let Ok(Some(key)) = cursor.key() {
            let value = cursor.value().ok()?;
            match key {
                b"Bytes" => bytes = number(value),
                b"Addr" => memory.address = number(value).map_or(0, |n| n as u64),
                b"Total Allocated" => {
                    memory.total_bytes = number(value).and_then(|n| n.try_into().ok());
                }
                b"Device Id" => memory.device = number(value),
                // 0 stands for the processor.
                b"Device Type" => memory.is_host = number(value) == Some(0),
                _ => {}
            }
        }
        memory.bytes = bytes?;
        Some(memory)
    }
}

/// The further fields of an event of memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryArgs {
    /// Where.
    pub address: u64,
    /// How much; less than nothing where it was given back.
    pub bytes: i64,
    /// What the allocator has handed out then.
    pub total_bytes: Option<u64>,
    /// The device.
    pub device: Option<i64>,
    /// Whether it is memory of the host.
    pub is_host: bool,
}

fn read_args<'a>(cursor: &mut Cursor<'a>, args: &mut Args<'a>) -> Result<(), Stop> {
    cursor.expect(b'{')?;
    while let Some(key) = cursor.key()? {
        let value = cursor.value()?;
        match key {
            b"device" => args.device = number(value),
            b"context" => args.context = number(value),
            b"stream" => args.stream = number(value),
            b"correlation" => args.correlation = correlation(value),
            b"bytes" | b"size" => args.bytes = unsigned(value),
            b"grid" => args.grid = dimensions(value),
            b"block" => args.block = dimensions(value),
            b"est. achieved occupancy %" => {
                let percent = number(value).and_then(|n| u8::try_from(n).ok());
                // Of what ran there was more than nothing: 0 stands for what the profiler cannot say.
                args.occupancy = percent.filter(|n| (1..=100).contains(n));
            }
            b"registers per thread" => args.registers = smaller(unsigned(value)),
            b"shared memory" => args.shared_bytes = small(unsigned(value)),
            b"graph id" => args.graph = correlation(value),
            b"wait_on_cuda_event_record_corr_id" => args.record_correlation = correlation(value),
            b"name" => {
                if let Value::Text(text) = value {
                    args.name = Some(text);
                }
            }
            b"op" => args.has_op = true,
            b"External id" => args.external = number(value),
            b"Collective name" => args.exchanged.operation = text(value),
            b"Process Group Name" => args.exchanged.group = text(value),
            b"Process Group Description" => args.exchanged.description = text(value),
            b"Process Group Ranks" => args.exchanged.ranks = text(value),
            b"Group size" => args.exchanged.size = number(value),
            b"Seq" => args.exchanged.seq = number(value),
            b"In msg nelems" => args.exchanged.elements = number(value),
            b"dtype" => args.exchanged.dtype = text(value),
            b"Src Rank" | b"Dst Rank" => args.exchanged.peer = number(value),
            _ => {}
        }
    }
    Ok(())
}

/// The text of a number, also where it was written as a string.
fn digits<'a>(value: Value<'a>) -> &'a [u8] {
    match value {
        Value::Bare(digits) => digits,
        Value::Text(text) => text.bytes(),
        // Never empty: it is there, and is no number.
        Value::Object(whole) | Value::Array(whole) => whole,
    }
}

/// A whole number; none if it is not one.
pub fn number(value: Value) -> Option<i64> {
    scaled(digits(value), 0)
}

fn text(value: Value) -> Option<Text> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn unsigned(value: Value) -> u64 {
    number(value).and_then(|n| n.try_into().ok()).unwrap_or(0)
}

/// CUPTI's numbers are of 32 bits, from 1.
fn correlation(value: Value) -> u32 {
    number(value).and_then(|n| n.try_into().ok()).unwrap_or(0)
}

/// Up to three numbers of a list; zeros where they cannot be read.
fn dimensions(value: Value) -> [u32; 3] {
    let Value::Array(whole) = value else {
        return [0; 3];
    };
    let inner = whole.get(1..whole.len() - 1).unwrap_or(&[]);
    let numbers = inner
        .split(|b| *b == b',')
        .map(|text| scaled(text.trim_ascii(), 0).and_then(|n| u32::try_from(n).ok()));
    let mut sizes = [1; 3];
    for (size, number) in sizes.iter_mut().zip(numbers) {
        match number {
            Some(number) => *size = number,
            None => return [0; 3],
        }
    }
    sizes
}

/// How many there are in three dimensions.
pub fn product(sizes: [u32; 3]) -> u64 {
    let sizes = sizes.into_iter().map(u64::from);
    sizes.fold(1, u64::saturating_mul)
}

pub fn small(value: u64) -> u32 {
    value.try_into().unwrap_or(u32::MAX)
}

pub fn smaller(value: u64) -> u16 {
    value.try_into().unwrap_or(u16::MAX)
}
