//! Programs as lines of text: a word for the call, then `key=value` fields, as in
//! `kernel s=s1 r=A w=B[0:64]`. Fixes are printed in the same words, so they can be applied.
//!
//! Names need no declaration: `s1` is a non-blocking stream of device 0; a buffer `H…` is pinned, `P…` pageable, `M…`
//! managed, any other is device memory, each of 1,024 bytes. Lines that start with `stream`, `buffer` or `event`
//! declare something else and are not operations.

use std::collections::HashMap;

pub use sidestream::check::Names;
use sidestream::check::{Checker, Refused, Report};
use sidestream::log::{Record, Within};
use sidestream::op::*;

/// A checker with the names of a program.
pub struct Reader {
    pub checker: Checker,
    pub names: Names,
    buffers: HashMap<String, (BufferId, u64)>,
    memories: Vec<Memory>,
    stream_ordered: Vec<BufferId>,
    sites: Vec<String>,
    flags: Vec<String>,
    graphs: Vec<String>,
}

/// Checks a whole program.
pub fn run(program: &str) -> (Report, Names) {
    let mut reader = Reader::new();
    let mut next = 0;
    for line in lines(program) {
        match reader.line(line, next) {
            Some(Ok(())) => next += 1,
            Some(Err(_)) => break,
            None => {}
        }
    }
    reader.name_legacy_streams();
    (reader.checker.report(), reader.names)
}

/// Returns the lines of a program that are not empty or comments.
pub fn lines(program: &str) -> impl Iterator<Item = &str> {
    let said = |line: &&str| !line.is_empty() && !line.starts_with('#');
    program.lines().map(str::trim).filter(said)
}

/// Returns whether a line is an operation.
pub fn is_op(line: &str) -> bool {
    !["stream", "buffer", "event"].contains(&word(line))
}

fn word(line: &str) -> &str {
    line.split_whitespace().next().expect("a line has a word")
}

struct Fields<'a>(HashMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    fn of(line: &'a str) -> Fields<'a> {
        let fields = line.split_whitespace().skip(1);
        Fields(fields.map(|f| f.split_once('=').expect(line)).collect())
    }

    fn get(&self, key: &str) -> &'a str {
        self.0.get(key).unwrap_or_else(|| panic!("field {key}"))
    }

    fn list(&self, key: &str) -> Vec<&'a str> {
        let list = self.0.get(key).map(|list| list.split(','));
        list.into_iter().flatten().collect()
    }

    fn is(&self, key: &str) -> bool {
        self.0.get(key) == Some(&"true")
    }
}

impl Reader {
    pub fn new() -> Reader {
        let mut names = Names::default();
        names.threads.push("t0".to_owned());
        Reader {
            checker: Checker::new(),
            names,
            buffers: HashMap::new(),
            memories: Vec::new(),
            stream_ordered: Vec::new(),
            sites: Vec::new(),
            flags: Vec::new(),
            graphs: Vec::new(),
        }
    }

    /// Reads a line; an operation gets the number `id`. Returns none for a declaration.
    pub fn line(&mut self, line: &str, id: u32) -> Option<Result<(), Refused>> {
        self.name_legacy_streams();
        let fields = Fields::of(line);
        let device = |fields: &Fields| {
            let number = fields.0.get("dev").map_or(0, |d| d.parse().expect(line));
            DeviceId(number)
        };
        match word(line) {
            "stream" => {
                let kind = match fields.get("kind") {
                    "nb" => StreamKind::NonBlocking,
                    "blk" => StreamKind::Blocking,
                    "ptds" => StreamKind::PerThread,
                    "legacy" => StreamKind::Legacy,
                    other => panic!("stream kind {other}"),
                };
                self.add_stream(fields.get("name"), kind, device(&fields));
                return None;
            }
            "buffer" => {
                let bytes = fields
                    .0
                    .get("bytes")
                    .map_or(1024, |b| b.parse().expect(line));
                let memory = match fields.get("kind") {
                    "dev" => Memory::Device,
                    "pinned" => Memory::Pinned,
                    "pageable" => Memory::Pageable,
                    "managed" => Memory::Managed,
                    other => panic!("buffer kind {other}"),
                };
                self.add_buffer(fields.get("name"), memory, bytes, None);
                return None;
            }
            "event" => {
                let event = self.checker.order_mut().add_event(
                    !fields.is("no_timing"),
                    fields.0.contains_key("dev").then(|| device(&fields)),
                );
                assert_eq!(event.0 as usize, self.names.events.len());
                self.names.events.push(fields.get("name").to_owned());
                return None;
            }
            "pool_get" => {
                let asked = fields.get("count").parse().expect(line);
                let (op, size) = (OpId(id), 32);
                let _ = self.checker.take(&Record::Pool { op, asked, size });
                return Some(Ok(()));
            }
            _ => {}
        }
        let op = self.op(line, &fields, id);
        Some(self.checker.push(&op))
    }

    fn op(&mut self, line: &str, fields: &Fields, id: u32) -> Op {
        let mut accesses = Accesses::new();
        let mut touch = |reader: &mut Reader, text: &str, mode| {
            let access = reader.access(text, mode);
            accesses.push(access);
            access.buffer
        };
        for text in fields.list("r") {
            touch(self, text, Mode::Read);
        }
        for text in fields.list("may_write") {
            touch(self, text, Mode::MayWrite);
        }
        for text in fields.list("atomic") {
            touch(self, text, Mode::Atomic);
        }
        for text in fields.list("w") {
            touch(self, text, Mode::Write);
        }
        let kind = match word(line) {
            "kernel" => Kind::kernel(self.stream(fields.get("s"))),
            "copy_async" | "copy" => {
                let from = touch(self, fields.get("from"), Mode::Read);
                let to = touch(self, fields.get("to"), Mode::Write);
                let (from, to) = (self.memory_of(from), self.memory_of(to));
                match word(line) {
                    "copy" => Kind::CopyBlocking { from, to },
                    _ => Kind::Copy {
                        stream: self.stream(fields.get("s")),
                        from,
                        to,
                    },
                }
            }
            "memset_async" => {
                touch(self, fields.get("to"), Mode::Write);
                Kind::Memset {
                    stream: self.stream(fields.get("s")),
                }
            }
            "memset" => {
                let to = touch(self, fields.get("to"), Mode::Write);
                Kind::MemsetBlocking {
                    to: self.memory_of(to),
                }
            }
            "host_func" => Kind::HostFunc {
                stream: self.stream(fields.get("s")),
                raises: fields.list("sets").first().map(|flag| self.flag(flag)),
            },
            "graph_launch" => Kind::GraphLaunch {
                stream: self.stream(fields.get("s")),
                graph: GraphId(index(&mut self.graphs, fields.get("g"))),
            },
            "record" => Kind::Record {
                event: self.event(fields.get("ev")),
                stream: self.stream(fields.get("s")),
            },
            "wait" => Kind::Wait {
                stream: self.stream(fields.get("s")),
                event: self.event(fields.get("ev")),
            },
            "wait_stream" => Kind::WaitStream {
                stream: self.stream(fields.get("s")),
                source: self.stream(fields.get("src")),
            },
            "sync_stream" => Kind::SyncStream {
                stream: self.stream(fields.get("st")),
            },
            "sync_event" => Kind::SyncEvent {
                event: self.event(fields.get("ev")),
            },
            "sync_device" => Kind::SyncDevice { device: None },
            "query_stream" => Kind::QueryStream {
                stream: self.stream(fields.get("st")),
                done: fields.is("ready"),
            },
            "query_event" => Kind::QueryEvent {
                event: self.event(fields.get("ev")),
                done: fields.is("ready"),
            },
            "set_flag" => Kind::SetFlag {
                flag: self.flag(fields.get("flag")),
            },
            "wait_flag" => Kind::WaitFlag {
                flag: self.flag(fields.get("flag")),
            },
            "host_read" => {
                touch(self, fields.get("buf"), Mode::Read);
                Kind::HostAccess
            }
            "host_write" => {
                touch(self, fields.get("buf"), Mode::Write);
                Kind::HostAccess
            }
            "alloc" => {
                let earlier = fields
                    .0
                    .get("over")
                    .map(|over| self.access(over, Mode::Read));
                let name = fields.get("buf");
                let bytes = earlier.map_or(1024, |earlier| earlier.len_bytes());
                let within = earlier.map(|Access { buffer, start, .. }| Within { buffer, start });
                let buffer = self.add_buffer(name, memory_of_name(name), bytes, within);
                let saw = earlier.filter(|_| fields.is("after_events"));
                Kind::Alloc {
                    buffer,
                    stream: fields.list("s").first().map(|stream| self.stream(stream)),
                    saw_events_of: saw.map(|earlier| earlier.buffer),
                }
            }
            "free" => Kind::Free {
                buffer: self.access(fields.get("buf"), Mode::Read).buffer,
            },
            "record_stream" => Kind::RecordStream {
                buffer: self.access(fields.get("buf"), Mode::Read).buffer,
                stream: self.stream(fields.get("st")),
            },
            "malloc_async" => {
                let buffer = touch(self, fields.get("buf"), Mode::Write);
                self.stream_ordered.push(buffer);
                Kind::MallocAsync {
                    stream: self.stream(fields.get("s")),
                }
            }
            "free_async" => {
                touch(self, fields.get("buf"), Mode::Write);
                Kind::FreeAsync {
                    stream: self.stream(fields.get("s")),
                }
            }
            "cuda_malloc" => Kind::CudaMalloc,
            "cuda_free" => {
                let buffer = touch(self, fields.get("buf"), Mode::Write);
                Kind::CudaFree {
                    stream_ordered: self.stream_ordered.contains(&buffer),
                }
            }
            "free_pinned" => {
                touch(self, fields.get("buf"), Mode::Write);
                Kind::FreePinned
            }
            "elapsed" => Kind::Elapsed {
                from: self.event(fields.get("a")),
                to: self.event(fields.get("b")),
            },
            "create_event" => Kind::CreateEvent {
                event: self.event(fields.get("ev")),
            },
            "set_device" => Kind::SetDevice {
                device: DeviceId(fields.get("dev").parse().expect(line)),
            },
            "begin_capture" => Kind::BeginCapture {
                stream: self.stream(fields.get("s")),
            },
            "end_capture" => Kind::EndCapture {
                stream: self.stream(fields.get("s")),
            },
            other => panic!("no such call: {other}"),
        };
        let thread = fields.0.get("t").copied().unwrap_or("t0");
        // Explicit sites come after those of single operations.
        let named = |site: &&str| 1_000_000 + index(&mut self.sites, site);
        let site = fields.0.get("site").map(named).unwrap_or(id);
        Op {
            id: OpId(id),
            thread: ThreadId(index(&mut self.names.threads, thread)),
            site: SiteId(site),
            kind,
            accesses,
        }
    }

    fn access(&mut self, text: &str, mode: Mode) -> Access {
        let (name, range) = match text.split_once('[') {
            Some((name, range)) => (name, range.strip_suffix(']')),
            None => (text, None),
        };
        if !self.buffers.contains_key(name) {
            self.add_buffer(name, memory_of_name(name), 1024, None);
        }
        let (buffer, bytes) = self.buffers[name];
        let parsed = |text: &str| text.parse().expect("a byte offset");
        let (start, end) = match range.and_then(|range| range.split_once(':')) {
            Some((start, end)) => (parsed(start), parsed(end)),
            None => (0, bytes),
        };
        Access {
            buffer,
            start,
            end,
            mode,
        }
    }

    fn add_buffer(
        &mut self,
        name: &str,
        memory: Memory,
        bytes: u64,
        within: Option<Within>,
    ) -> BufferId {
        let buffer = self.checker.add_buffer(memory, bytes, within);
        self.names.buffers.push(name.to_owned());
        self.buffers.insert(name.to_owned(), (buffer, bytes));
        self.memories.push(memory);
        buffer
    }

    fn add_stream(&mut self, name: &str, kind: StreamKind, device: DeviceId) -> StreamId {
        let stream = self.checker.order_mut().add_stream(kind, device);
        self.name_legacy_streams();
        self.names.streams[stream.0 as usize] = name.to_owned();
        stream
    }

    /// Names the legacy streams that the rule book has added.
    fn name_legacy_streams(&mut self) {
        let known = self.checker.order().streams().len();
        self.names.streams.resize(known, "legacy".to_owned());
    }

    fn memory_of(&self, buffer: BufferId) -> Memory {
        self.memories[buffer.0 as usize]
    }

    fn stream(&mut self, name: &str) -> StreamId {
        match self.names.streams.iter().position(|known| known == name) {
            Some(at) => StreamId(at as u32),
            None => self.add_stream(name, StreamKind::NonBlocking, DeviceId(0)),
        }
    }

    fn event(&mut self, name: &str) -> EventId {
        match self.names.events.iter().position(|known| known == name) {
            Some(at) => EventId(at as u32),
            None => {
                self.names.events.push(name.to_owned());
                self.checker.order_mut().add_event(true, None)
            }
        }
    }

    fn flag(&mut self, name: &str) -> FlagId {
        FlagId(index(&mut self.flags, name))
    }
}

fn memory_of_name(name: &str) -> Memory {
    match name.as_bytes()[0] {
        b'H' => Memory::Pinned,
        b'P' => Memory::Pageable,
        b'M' => Memory::Managed,
        _ => Memory::Device,
    }
}

fn index(table: &mut Vec<String>, name: &str) -> u32 {
    let known = table.iter().position(|known| known == name);
    let at = known.unwrap_or_else(|| {
        table.push(name.to_owned());
        table.len() - 1
    });
    at as u32
}
