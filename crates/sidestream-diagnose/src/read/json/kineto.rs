//! Interprets the events of PyTorch's profiler, in the vocabulary of each year.
//!
//! | since | words |
//! |---|---|
//! | 2021 | `Kernel`, `Memcpy`, `Memset`, `Runtime`, `Operator`; the thread is "stream 7" |
//! | 2022 | `kernel`, `gpu_memcpy`, `gpu_memset`, `cuda_runtime`, `cpu_op`, `user_annotation` |
//! | 2023 | `cuda_sync`, if asked for |
//! | 2024 | times with three decimals, that is nanoseconds |
//! | 2024 | `Collective name` and `Process Group Name` on kernels of NCCL, before that on `record_param_comms` only, in the oldest nowhere |
//! | 2026 | `graph id`; waits in separate lanes; `Seq` on kernels of NCCL, before that on `record_param_comms` only |
//!
//! Only the category shows what is device work. An operator may carry `args.stream` and is not device work; neither is
//! `gpu_user_annotation`, which lies in a stream's lane.

use std::collections::HashMap;

use super::cursor::Value;
use super::row::{Args, Row, number, product, small, smaller};
use crate::model::{
    Allocated, Builder, Call, Direction, Exchange, ExchangeKind, Kernel, Launched, Memory, Name,
    Overflow, ProcessGroup, Range, RangeKind, Shape, Source, StreamIndex, Sync, SyncKind,
    ThreadIndex, What, Work,
};

/// Adds events to the trace that is being built.
#[derive(Debug)]
pub struct Kineto {
    /// The builder that takes the rows.
    pub builder: Builder,
    /// Number of events that lack fields which their kind needs.
    pub incomplete: u64,
    python: bool,
    /// The thread and the stream of the previous event: the next one usually has the same.
    last_thread: Option<((i64, i64), ThreadIndex)>,
    last_stream: Option<((i64, i64, i64), StreamIndex)>,
    /// The meaning of each copy name; there are few such names.
    copies: HashMap<Name, Copied>,
    /// The statements of operators about their exchanges, by the number that an operator shares with its kernels.
    exchanged: HashMap<i64, (u32, Option<u32>)>,
    /// Exchanges that do not state everything, with that number.
    unsaid: Vec<(usize, i64)>,
}

/// The maximum number of characters kept of the shapes of one operator's inputs: the first ones of long lists of tensors.
const LONGEST_SHAPE: usize = 1_000;
/// The operator that states what is exchanged.
const PARAM_COMMS: &[u8] = b"record_param_comms";
/// A longer name of a group, or list of its ranks, is cut.
const MOST_LETTERS: usize = 400;
/// The maximum number of exchanges that are kept: a trace with more does not fit into memory.
const MOST_EXCHANGES: usize = 1 << 24;

/// What the name of a copy states: direction, source and target memory.
type Copied = (Direction, Memory, Memory);

/// The kind of an event, by its category.
enum Kind {
    Kernel,
    Copy,
    Memset,
    Call,
    Sync,
    Range(RangeKind),
    /// An event that is not needed.
    Other,
}

impl Kineto {
    /// Returns a reader that has read no events.
    pub fn new(python: bool) -> Kineto {
        Kineto {
            builder: Builder::new(Source::Kineto),
            incomplete: 0,
            python,
            last_thread: None,
            last_stream: None,
            copies: HashMap::new(),
            exchanged: HashMap::new(),
            unsaid: Vec::new(),
        }
    }

    /// Completes exchanges with what operators state about them, once all events have been read.
    pub fn finish(self) -> Builder {
        let mut builder = self.builder;
        for (at, external) in self.unsaid {
            if let Some((kind, seq)) = self.exchanged.get(&external) {
                builder.complete_exchange(at, *kind, *seq);
            }
        }
        builder
    }

    /// Adds the exchange of a kernel that exchanges data with other ranks, by its name or by its fields.
    fn exchange(&mut self, row: &Row, args: &Args, start_ns: i64, duration_ns: u64) {
        let is_said = args.exchanged.operation.is_some();
        let name = row.name.decoded();
        if !is_said && !crate::measure::is_collective(&name) {
            return;
        }
        let seq = args.exchanged.seq.and_then(|n| u32::try_from(n).ok());
        let kind = if is_said {
            self.exchange_kind(args)
        } else {
            self.builder.exchange_kind(ExchangeKind::of_kernel(&name))
        };
        if self.builder.trace.exchanges.rows.len() >= MOST_EXCHANGES {
            return;
        }
        let at = self.builder.exchange(Exchange {
            start_ns,
            duration_ns,
            seq,
            kind,
        });
        if let Some(external) = args.external.filter(|_| !is_said || seq.is_none()) {
            self.unsaid.push((at, external));
        }
    }

    fn exchange_kind(&mut self, args: &Args) -> u32 {
        let said = &args.exchanged;
        let text = |text: Option<super::cursor::Text>| {
            text.map_or(String::new(), |text| {
                text.decoded().chars().take(MOST_LETTERS).collect()
            })
        };
        let number = |n: Option<i64>| n.and_then(|n| u32::try_from(n).ok());
        let group = ProcessGroup {
            name: text(said.group),
            description: text(said.description),
            ranks: text(said.ranks),
            size: number(said.size).unwrap_or(0),
        };
        let group = self.builder.process_group(group);
        self.builder.exchange_kind(ExchangeKind {
            operation: text(said.operation),
            group,
            elements: said.elements.and_then(|n| n.try_into().ok()).unwrap_or(0),
            dtype: text(said.dtype),
            peer: number(said.peer),
        })
    }

    /// Adds an event.
    pub fn take(&mut self, row: &Row) -> Result<(), Overflow> {
        self.builder.trace.events += 1;
        match row.phase {
            b'X' => self.complete(row),
            b'M' => self.naming(row),
            b'i' if row.name.bytes() == b"[memory]" => self.memory(row),
            _ => Ok(()),
        }
    }

    /// Adds an event with a start and a duration.
    fn complete(&mut self, row: &Row) -> Result<(), Overflow> {
        let kind = kind(row.category);
        match kind {
            Kind::Other => return Ok(()),
            Kind::Range(RangeKind::Python) if !self.python => return Ok(()),
            _ => {}
        }
        let (Some(start_ns), Some(duration_ns)) = (row.start_ns(), row.duration_ns()) else {
            self.incomplete += 1;
            return Ok(());
        };
        match kind {
            Kind::Kernel | Kind::Copy | Kind::Memset => {
                self.work(&kind, row, start_ns, duration_ns)
            }
            Kind::Call => self.call(row, start_ns, duration_ns),
            Kind::Sync => self.sync(row, start_ns, duration_ns),
            Kind::Range(kind) => self.range(kind, row, start_ns, duration_ns),
            Kind::Other => Ok(()),
        }
    }

    fn work(
        &mut self,
        kind: &Kind,
        row: &Row,
        start_ns: i64,
        duration_ns: u64,
    ) -> Result<(), Overflow> {
        let args = row.args();
        if args.has_op {
            self.builder.trace.source = Source::Sidestream;
        }
        let device = args.device.or_else(|| lane(row.pid)).unwrap_or(0);
        let number = args.stream.or_else(|| lane(row.tid)).unwrap_or(0);
        let stream = self.stream(device, args.context.unwrap_or(0), number)?;
        let name = self.builder.name(&row.name.decoded());
        let bytes = args.bytes;
        let what = match kind {
            Kind::Copy => {
                let read = || copied(&row.name.decoded());
                let (direction, from, to) = *self.copies.entry(name).or_insert_with(read);
                What::Copy {
                    direction,
                    from,
                    to,
                    bytes,
                }
            }
            Kind::Memset => What::Memset {
                memory: set(&row.name.decoded()),
                bytes,
            },
            _ => What::Kernel(Kernel {
                blocks: small(product(args.grid)),
                threads: smaller(product(args.block)),
                registers: args.registers,
                shared_bytes: args.shared_bytes,
            }),
        };
        if matches!(kind, Kind::Kernel) && args.grid != [0; 3] {
            let launched = Launched {
                duration_ns,
                grid: args.grid,
                block: args.block,
                registers: args.registers,
                shared_bytes: args.shared_bytes,
                occupancy: args.occupancy,
            };
            self.builder.launched(name, launched);
        }
        if let What::Kernel(_) = what {
            self.exchange(row, &args, start_ns, duration_ns);
        }
        self.builder.trace.work.push(Work {
            start_ns,
            duration_ns,
            what,
            stream,
            name,
            correlation: args.correlation,
            graph: args.graph,
        });
        Ok(())
    }

    fn call(&mut self, row: &Row, start_ns: i64, duration_ns: u64) -> Result<(), Overflow> {
        let thread = self.thread(row)?;
        let (name, api) = self.builder.function(&row.name.decoded());
        self.builder.trace.calls.push(Call {
            start_ns,
            duration_ns,
            name,
            thread,
            correlation: row.args().correlation,
            api,
        });
        Ok(())
    }

    fn sync(&mut self, row: &Row, start_ns: i64, duration_ns: u64) -> Result<(), Overflow> {
        let args = row.args();
        let kind = match row.name.bytes() {
            b"Stream Wait Event" => SyncKind::StreamWait,
            b"Stream Sync" => SyncKind::Stream,
            b"Event Sync" => SyncKind::Event,
            b"Context Sync" => SyncKind::Context,
            _ => SyncKind::Unknown,
        };
        // A missing number is written as -1, by some versions as the unsigned number of the same bits.
        let number = args.stream.filter(|n| *n >= 0 && *n != i64::from(u32::MAX));
        let device = args.device.or_else(|| lane(row.pid)).unwrap_or(0);
        let context = args.context.unwrap_or(0);
        let stream = number.map(|number| self.stream(device, context, number));
        self.builder.trace.syncs.push(Sync {
            start_ns,
            duration_ns,
            kind,
            stream: stream.transpose()?,
            correlation: args.correlation,
            record_correlation: args.record_correlation,
        });
        Ok(())
    }

    fn range(
        &mut self,
        kind: RangeKind,
        row: &Row,
        start_ns: i64,
        duration_ns: u64,
    ) -> Result<(), Overflow> {
        let thread = self.thread(row)?;
        let name = self.builder.name(&row.name.decoded());
        if let (RangeKind::Operator, Some(whole)) = (kind, row.shapes()) {
            let shape = self.shape(whole);
            self.builder.trace.shapes.push(Shape {
                start_ns,
                name,
                shape,
                thread,
            });
        }
        // In 2021 a step was an operator.
        let is_step = row.name.bytes().starts_with(b"ProfilerStep");
        let is_named = matches!(kind, RangeKind::Operator | RangeKind::Annotation);
        if row.name.bytes() == PARAM_COMMS && self.exchanged.len() < MOST_EXCHANGES {
            let args = row.args();
            if let (Some(external), Some(_)) = (args.external, args.exchanged.operation) {
                let seq = args.exchanged.seq.and_then(|n| u32::try_from(n).ok());
                let kind = self.exchange_kind(&args);
                self.exchanged.insert(external, (kind, seq));
            }
        }
        self.builder.trace.ranges.push(Range {
            start_ns,
            duration_ns,
            name,
            thread,
            kind: if is_step && is_named {
                RangeKind::Step
            } else {
                kind
            },
        });
        Ok(())
    }

    /// Returns the name of a list of shapes, without the spaces, in which files differ.
    fn shape(&mut self, whole: &[u8]) -> Name {
        let letters = whole.iter().filter(|byte| !byte.is_ascii_whitespace());
        let letters: Vec<u8> = letters.copied().take(LONGEST_SHAPE).collect();
        self.builder.name(&String::from_utf8_lossy(&letters))
    }

    /// Adds an allocation or a free.
    fn memory(&mut self, row: &Row) -> Result<(), Overflow> {
        let (Some(time_ns), Some(memory)) = (row.start_ns(), row.memory()) else {
            self.incomplete += 1;
            return Ok(());
        };
        let thread = self.thread(row)?;
        let device = memory.device.filter(|_| !memory.is_host);
        let device = device.map(|device| u16::try_from(device).unwrap_or(u16::MAX));
        self.builder.trace.memory.push(Allocated {
            time_ns,
            address: memory.address,
            bytes: memory.bytes,
            total_bytes: memory.total_bytes,
            device,
            thread,
        });
        Ok(())
    }

    /// Reads an event that names a thread.
    fn naming(&mut self, row: &Row) -> Result<(), Overflow> {
        if row.name.bytes() != b"thread_name" {
            return Ok(());
        }
        let Some(name) = row.args().name.map(|name| name.decoded().into_owned()) else {
            return Ok(());
        };
        // Streams are named in the same way, but are not threads.
        if name.starts_with("stream ") {
            return Ok(());
        }
        let thread = self.thread(row)?;
        if let Some(thread) = self.builder.trace.threads.get_mut(thread.0 as usize) {
            thread.name = name.trim().to_owned();
        }
        Ok(())
    }

    fn thread(&mut self, row: &Row) -> Result<ThreadIndex, Overflow> {
        let key = (lane(row.pid).unwrap_or(0), lane(row.tid).unwrap_or(0));
        if let Some((last, index)) = self.last_thread
            && last == key
        {
            return Ok(index);
        }
        let index = self.builder.thread(key.0, key.1)?;
        self.last_thread = Some((key, index));
        Ok(index)
    }

    fn stream(&mut self, device: i64, context: i64, number: i64) -> Result<StreamIndex, Overflow> {
        let key = (device, context, number);
        if let Some((last, index)) = self.last_stream
            && last == key
        {
            return Ok(index);
        }
        let index = self.builder.stream(None, device, context, number)?;
        self.last_stream = Some((key, index));
        Ok(index)
    }
}

fn kind(category: &[u8]) -> Kind {
    match category {
        b"kernel" | b"Kernel" => Kind::Kernel,
        b"gpu_memcpy" | b"Memcpy" => Kind::Copy,
        b"gpu_memset" | b"Memset" => Kind::Memset,
        // HIP's calls have the same category.
        b"cuda_runtime" | b"Runtime" | b"cuda_driver" | b"hip_runtime" | b"hip_driver" => {
            Kind::Call
        }
        b"cuda_sync" => Kind::Sync,
        b"cpu_op" | b"Operator" => Kind::Range(RangeKind::Operator),
        b"user_annotation" => Kind::Range(RangeKind::Annotation),
        b"overhead" => Kind::Range(RangeKind::Overhead),
        b"python_function" => Kind::Range(RangeKind::Python),
        _ => Kind::Other,
    }
}

/// Returns the number of a process, a thread or a lane; in 2021 they were written as "25738" and "stream 7".
fn lane(value: Option<Value>) -> Option<i64> {
    let value = value?;
    number(value).or_else(|| match value {
        Value::Text(text) => {
            let word = text
                .bytes()
                .rsplit(|b| *b == b' ')
                .find(|w| !w.is_empty())?;
            super::decimal::scaled(word, 0)
        }
        _ => None,
    })
}

/// Returns the direction and the kinds of memory of a copy, by its name: `Memcpy HtoD (Pageable -> Device)`. ROCm writes `(Host
/// -> Device)`, which does not state the kind of host memory.
fn copied(name: &str) -> Copied {
    let (words, memories) = name.split_once('(').unwrap_or((name, ""));
    let mut sides = memories.trim_end_matches(')').split("->").map(memory);
    let from = sides.next().unwrap_or(Memory::Unknown);
    let to = sides.next().unwrap_or(Memory::Unknown);
    let direction = words.split_whitespace().find_map(direction);
    (direction.unwrap_or(Direction::Unknown), from, to)
}

fn direction(word: &str) -> Option<Direction> {
    Some(match word {
        "HtoD" | "HtoA" | "HostToDevice" | "CopyHostToDevice" => Direction::Upload,
        "DtoH" | "AtoH" | "DeviceToHost" | "CopyDeviceToHost" => Direction::Download,
        "DtoD" | "AtoA" | "AtoD" | "DtoA" | "DeviceToDevice" | "CopyDeviceToDevice" => {
            Direction::OnDevice
        }
        "HtoH" | "HostToHost" => Direction::OnHost,
        "PtoP" | "PeerToPeer" => Direction::Peer,
        _ => return None,
    })
}

fn memory(word: &str) -> Memory {
    match word.trim() {
        "Pageable" => Memory::Pageable,
        "Pinned" => Memory::Pinned,
        "Device" | "Device Static" => Memory::Device,
        "Array" => Memory::Array,
        "Managed" | "Managed Static" => Memory::Managed,
        _ => Memory::Unknown,
    }
}

/// Returns the kind of memory that a memset sets, by its name: `Memset (Device)`.
fn set(name: &str) -> Memory {
    let inner = name.split_once('(').map_or("", |(_, inner)| inner);
    memory(inner.trim_end_matches(')'))
}
