//! One event of the file, before its fields are interpreted.

use memchr::memmem;

use super::cursor::{Cursor, Stop, Text, Value};
use super::decimal::scaled;

/// An event's own fields, as they are in the file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Row<'a> {
    /// The phase of the event: `X` has a duration, `M` names something.
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
    /// Its further fields, as one unparsed object.
    args: &'a [u8],
}

/// The relevant further fields of all kinds of events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Args<'a> {
    /// The device.
    pub device: Option<i64>,
    /// The context.
    pub context: Option<i64>,
    /// The stream.
    pub stream: Option<i64>,
    /// The correlation number that a call and its work share; 0 for none.
    pub correlation: u32,
    /// Bytes copied or set.
    pub bytes: u64,
    /// Number of blocks, in three dimensions.
    pub grid: [u32; 3],
    /// Threads per block, in three dimensions.
    pub block: [u32; 3],
    /// Achieved occupancy, in percent.
    pub occupancy: Option<u8>,
    /// Registers per thread.
    pub registers: u16,
    /// Shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// The graph; 0 for none.
    pub graph: u32,
    /// The correlation number of the call that recorded the awaited event; 0 for none.
    pub record_correlation: u32,
    /// The name, in an event that names something.
    pub name: Option<Text<'a>>,
    /// The exchange with other ranks, where it is stated.
    pub exchanged: Exchanged<'a>,
    /// The number that an operator and its kernels share.
    pub external: Option<i64>,
    /// Whether Sidestream wrote the number of its operation here.
    pub has_op: bool,
}

/// What PyTorch states about an exchange of data with other ranks, on `record_param_comms` and on its kernels.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchanged<'a> {
    /// `Collective name`.
    pub operation: Option<Text<'a>>,
    /// `Process Group Name`.
    pub group: Option<Text<'a>>,
    /// `Process Group Description`.
    pub description: Option<Text<'a>>,
    /// `Process Group Ranks`, truncated after thirty of them.
    pub ranks: Option<Text<'a>>,
    /// `Group size`.
    pub size: Option<i64>,
    /// `Seq`.
    pub seq: Option<i64>,
    /// `In msg nelems`.
    pub elements: Option<i64>,
    /// `dtype`.
    pub dtype: Option<Text<'a>>,
    /// `Src Rank` or `Dst Rank`: a global rank number.
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

    /// Returns whether it has any field of an event. An empty object has none.
    pub fn is_event(&self) -> bool {
        self.phase != 0
    }

    /// Returns its start.
    pub fn start_ns(&self) -> Option<i64> {
        scaled(self.start, 3)
    }

    /// Returns its duration; 0 where none is given.
    pub fn duration_ns(&self) -> Option<u64> {
        match self.duration {
            b"" => Some(0),
            text => u64::try_from(scaled(text, 3)?).ok(),
        }
    }

    /// Returns its further fields.
    pub fn args(&self) -> Args<'a> {
        let mut args = Args::default();
        if self.args.is_empty() {
            return args;
        }
        let mut cursor = Cursor::new(self.args);
        // The fields were skipped before, which would have found any error in them.
        let _ = read_args(&mut cursor, &mut args);
        args
    }
}

impl<'a> Row<'a> {
    /// Returns the shapes of an operator's inputs, as they are in the file.
    pub fn shapes(&self) -> Option<&'a [u8]> {
        let at = memmem::find(self.args, b"\"Input Dims\"")?;
        let mut cursor = Cursor::new(&self.args[at..]);
        match (cursor.key(), cursor.value()) {
            (Ok(Some(_)), Ok(Value::Array(whole))) => Some(whole),
            _ => None,
        }
    }

    /// Returns an allocation or a free; `None` where the event does not state its size.
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
                // 0 means the host's memory.
                b"Device Type" => memory.is_host = number(value) == Some(0),
                _ => {}
            }
        }
        memory.bytes = bytes?;
        Some(memory)
    }
}

/// The further fields of a memory event.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryArgs {
    /// Address of the memory.
    pub address: u64,
    /// Bytes allocated; negative for a free.
    pub bytes: i64,
    /// Bytes that the allocator had handed out after it.
    pub total_bytes: Option<u64>,
    /// The device.
    pub device: Option<i64>,
    /// Whether it is host memory.
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
                // A kernel that ran has a positive occupancy: 0 means that the profiler does not know it.
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

/// Returns the text of a number, also where it was written as a string.
fn digits<'a>(value: Value<'a>) -> &'a [u8] {
    match value {
        Value::Bare(digits) => digits,
        Value::Text(text) => text.bytes(),
        // Not empty, so that the field counts as present but not as a number.
        Value::Object(whole) | Value::Array(whole) => whole,
    }
}

/// Returns a whole number; `None` if the value is not one.
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

/// Returns a correlation number: CUPTI's have 32 bits and start at 1.
fn correlation(value: Value) -> u32 {
    number(value).and_then(|n| n.try_into().ok()).unwrap_or(0)
}

/// Returns up to three numbers of a list; zeros where they cannot be read.
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

/// Returns the total number in three dimensions.
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
