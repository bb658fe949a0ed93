//! The oracle's own picture of a stream program.
//!
//! It says the same as the syntax tree of the crate, with names instead of indices. The oracle reads it, the generator
//! writes it, and [`Prog::to_yaml`] turns it into the text that the reader under test parses.

use std::fmt::Write as _;

use sidestream::op;
use sidestream_program as ast;

/// What sort of stream a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    NonBlocking,
    Blocking,
    Legacy,
    PerThread,
}

impl StreamKind {
    /// Does the stream take part in the order of the legacy stream (R14, R15, R18)?
    pub fn is_blocking(self) -> bool {
        matches!(self, StreamKind::Blocking | StreamKind::PerThread)
    }
}

/// Where the bytes of a buffer live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemKind {
    Dev,
    Pinned,
    Pageable,
    Managed,
}

/// What sort of event a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Timing on, may be recorded on any device.
    Plain,
    /// Timing off.
    NoTiming,
    /// Created on this device.
    Device(u32),
}

/// A buffer or a part of it: `lo` to `hi - 1`, the whole buffer without a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub buf: String,
    pub range: Option<(u64, u64)>,
}

impl Part {
    pub fn whole(buf: &str) -> Part {
        Part {
            buf: buf.to_string(),
            range: None,
        }
    }

    fn yaml(&self) -> String {
        match self.range {
            None => self.buf.clone(),
            Some((lo, hi)) => format!("\"{}[{lo}:{hi}]\"", self.buf),
        }
    }
}

/// What an op does. The fields are those of the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Kernel {
        s: String,
        r: Vec<Part>,
        w: Vec<Part>,
        repeat: Option<u64>,
    },
    CopyAsync {
        s: String,
        from: Part,
        to: Part,
    },
    CopyPeer {
        s: String,
        from: Part,
        to: Part,
        peer: u64,
    },
    MemsetAsync {
        s: String,
        to: Part,
    },
    Copy {
        from: Part,
        to: Part,
    },
    Memset {
        to: Part,
    },
    HostFunc {
        s: String,
        r: Vec<Part>,
        w: Vec<Part>,
        sets: Option<String>,
    },
    GraphLaunch {
        s: String,
        g: String,
        r: Vec<Part>,
        w: Vec<Part>,
    },
    Record {
        ev: String,
        s: String,
    },
    Wait {
        s: String,
        ev: String,
    },
    WaitStream {
        s: String,
        src: String,
    },
    SyncStream {
        st: String,
    },
    SyncEvent {
        ev: String,
    },
    SyncDevice {
        dev: Option<u32>,
    },
    QueryStream {
        st: String,
        ready: bool,
    },
    QueryEvent {
        ev: String,
        ready: bool,
    },
    SetFlag {
        flag: String,
    },
    WaitFlag {
        flag: String,
    },
    HostRead {
        buf: Part,
    },
    HostWrite {
        buf: Part,
    },
    Alloc {
        buf: String,
        s: Option<String>,
        over: Option<Part>,
        after_events: bool,
    },
    Free {
        buf: String,
    },
    RecordStream {
        buf: String,
        st: String,
    },
    MallocAsync {
        buf: String,
        s: String,
    },
    FreeAsync {
        buf: String,
        s: String,
    },
    CudaMalloc {
        buf: String,
    },
    CudaFree {
        buf: String,
    },
    FreePinned {
        buf: String,
    },
    Elapsed {
        a: String,
        b: String,
    },
    CreateEvent {
        ev: String,
    },
    DestroyEvent {
        ev: String,
    },
    CreateStream {
        st: String,
    },
    DestroyStream {
        st: String,
    },
    SetDevice {
        dev: u32,
    },
    BeginCapture {
        s: String,
    },
    EndCapture {
        s: String,
    },
    SimHold {
        st: String,
    },
    SimRelease {
        st: String,
    },
    SetCapacity {
        blocks: u64,
    },
    PoolGet {
        count: u64,
        first: String,
        last: String,
    },
}

impl Act {
    /// The word after `do`.
    pub fn word(&self) -> &'static str {
        match self {
            Act::Kernel { .. } => "kernel",
            Act::CopyAsync { .. } => "copy_async",
            Act::CopyPeer { .. } => "copy_peer",
            Act::MemsetAsync { .. } => "memset_async",
            Act::Copy { .. } => "copy",
            Act::Memset { .. } => "memset",
            Act::HostFunc { .. } => "host_func",
            Act::GraphLaunch { .. } => "graph_launch",
            Act::Record { .. } => "record",
            Act::Wait { .. } => "wait",
            Act::WaitStream { .. } => "wait_stream",
            Act::SyncStream { .. } => "sync_stream",
            Act::SyncEvent { .. } => "sync_event",
            Act::SyncDevice { .. } => "sync_device",
            Act::QueryStream { .. } => "query_stream",
            Act::QueryEvent { .. } => "query_event",
            Act::SetFlag { .. } => "set_flag",
            Act::WaitFlag { .. } => "wait_flag",
            Act::HostRead { .. } => "host_read",
            Act::HostWrite { .. } => "host_write",
            Act::Alloc { .. } => "alloc",
            Act::Free { .. } => "free",
            Act::RecordStream { .. } => "record_stream",
            Act::MallocAsync { .. } => "malloc_async",
            Act::FreeAsync { .. } => "free_async",
            Act::CudaMalloc { .. } => "cuda_malloc",
            Act::CudaFree { .. } => "cuda_free",
            Act::FreePinned { .. } => "free_pinned",
            Act::Elapsed { .. } => "elapsed",
            Act::CreateEvent { .. } => "create_event",
            Act::DestroyEvent { .. } => "destroy_event",
            Act::CreateStream { .. } => "create_stream",
            Act::DestroyStream { .. } => "destroy_stream",
            Act::SetDevice { .. } => "set_device",
            Act::BeginCapture { .. } => "begin_capture",
            Act::EndCapture { .. } => "end_capture",
            Act::SimHold { .. } => "sim_hold",
            Act::SimRelease { .. } => "sim_release",
            Act::SetCapacity { .. } => "set_capacity",
            Act::PoolGet { .. } => "pool_get",
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let list = |parts: &[Part]| {
            let words: Vec<String> = parts.iter().map(Part::yaml).collect();
            format!("[{}]", words.join(", "))
        };
        let lists = |fields: &mut Vec<(&'static str, String)>, r: &[Part], w: &[Part]| {
            if !r.is_empty() {
                fields.push(("r", list(r)));
            }
            if !w.is_empty() {
                fields.push(("w", list(w)));
            }
        };
        let mut f: Vec<(&'static str, String)> = Vec::new();
        match self {
            Act::Kernel { s, r, w, repeat } => {
                f.push(("s", s.clone()));
                lists(&mut f, r, w);
                if let Some(n) = repeat {
                    f.push(("repeat", n.to_string()));
                }
            }
            Act::CopyAsync { s, from, to } => {
                f.push(("s", s.clone()));
                f.push(("from", from.yaml()));
                f.push(("to", to.yaml()));
            }
            Act::CopyPeer { s, from, to, peer } => {
                f.push(("s", s.clone()));
                f.push(("from", from.yaml()));
                f.push(("to", to.yaml()));
                f.push(("peer", peer.to_string()));
            }
            Act::MemsetAsync { s, to } => {
                f.push(("s", s.clone()));
                f.push(("to", to.yaml()));
            }
            Act::Copy { from, to } => {
                f.push(("from", from.yaml()));
                f.push(("to", to.yaml()));
            }
            Act::Memset { to } => f.push(("to", to.yaml())),
            Act::HostFunc { s, r, w, sets } => {
                f.push(("s", s.clone()));
                lists(&mut f, r, w);
                if let Some(flag) = sets {
                    f.push(("sets", flag.clone()));
                }
            }
            Act::GraphLaunch { s, g, r, w } => {
                f.push(("s", s.clone()));
                f.push(("g", g.clone()));
                lists(&mut f, r, w);
            }
            Act::Record { ev, s } => {
                f.push(("ev", ev.clone()));
                f.push(("s", s.clone()));
            }
            Act::Wait { s, ev } => {
                f.push(("s", s.clone()));
                f.push(("ev", ev.clone()));
            }
            Act::WaitStream { s, src } => {
                f.push(("s", s.clone()));
                f.push(("src", src.clone()));
            }
            Act::SyncStream { st }
            | Act::CreateStream { st }
            | Act::DestroyStream { st }
            | Act::SimHold { st }
            | Act::SimRelease { st } => f.push(("st", st.clone())),
            Act::SyncEvent { ev } | Act::CreateEvent { ev } | Act::DestroyEvent { ev } => {
                f.push(("ev", ev.clone()));
            }
            Act::SyncDevice { dev } => {
                if let Some(dev) = dev {
                    f.push(("dev", dev.to_string()));
                }
            }
            Act::QueryStream { st, ready } => {
                f.push(("st", st.clone()));
                if *ready {
                    f.push(("ready", "true".to_string()));
                }
            }
            Act::QueryEvent { ev, ready } => {
                f.push(("ev", ev.clone()));
                if *ready {
                    f.push(("ready", "true".to_string()));
                }
            }
            Act::SetFlag { flag } | Act::WaitFlag { flag } => f.push(("flag", flag.clone())),
            Act::HostRead { buf } | Act::HostWrite { buf } => f.push(("buf", buf.yaml())),
            Act::Alloc {
                buf,
                s,
                over,
                after_events,
            } => {
                f.push(("buf", buf.clone()));
                if let Some(s) = s {
                    f.push(("s", s.clone()));
                }
                if let Some(over) = over {
                    f.push(("over", over.yaml()));
                }
                if *after_events {
                    f.push(("after_events", "true".to_string()));
                }
            }
            Act::Free { buf }
            | Act::CudaMalloc { buf }
            | Act::CudaFree { buf }
            | Act::FreePinned { buf } => {
                f.push(("buf", buf.clone()));
            }
            Act::RecordStream { buf, st } => {
                f.push(("buf", buf.clone()));
                f.push(("st", st.clone()));
            }
            Act::MallocAsync { buf, s } | Act::FreeAsync { buf, s } => {
                f.push(("buf", buf.clone()));
                f.push(("s", s.clone()));
            }
            Act::Elapsed { a, b } => {
                f.push(("a", a.clone()));
                f.push(("b", b.clone()));
            }
            Act::SetDevice { dev } => f.push(("dev", dev.to_string())),
            Act::BeginCapture { s } | Act::EndCapture { s } => f.push(("s", s.clone())),
            Act::SetCapacity { blocks } => f.push(("blocks", blocks.to_string())),
            Act::PoolGet { count, first, last } => {
                f.push(("count", count.to_string()));
                f.push(("first", first.clone()));
                f.push(("last", last.clone()));
            }
        }
        f
    }
}

/// One line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub thread: String,
    pub site: Option<String>,
    pub act: Act,
}

/// A whole program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prog {
    pub name: String,
    /// True for `level: runtime`.
    pub runtime: bool,
    /// Declared streams: name, kind, device.
    pub streams: Vec<(String, StreamKind, u32)>,
    /// Declared buffers: name, kind, bytes.
    pub buffers: Vec<(String, MemKind, u64)>,
    /// Declared events.
    pub events: Vec<(String, EventKind)>,
    pub ops: Vec<Op>,
}

impl Prog {
    pub fn new(name: &str) -> Prog {
        Prog {
            name: name.to_string(),
            runtime: false,
            streams: Vec::new(),
            buffers: Vec::new(),
            events: Vec::new(),
            ops: Vec::new(),
        }
    }

    /// Kind and device of a stream; undeclared ones are non-blocking streams of device 0.
    pub fn stream(&self, name: &str) -> (StreamKind, u32) {
        self.streams
            .iter()
            .find(|(n, _, _)| n == name)
            .map_or((StreamKind::NonBlocking, 0), |&(_, kind, dev)| (kind, dev))
    }

    /// Kind and size of a buffer; undeclared ones have 1024 bytes and go by their first letter.
    pub fn buffer(&self, name: &str) -> (MemKind, u64) {
        if let Some(&(_, kind, bytes)) = self.buffers.iter().find(|(n, _, _)| n == name) {
            return (kind, bytes);
        }
        let kind = match name.as_bytes()[0] {
            b'H' => MemKind::Pinned,
            b'P' => MemKind::Pageable,
            b'M' => MemKind::Managed,
            _ => MemKind::Dev,
        };
        (kind, 1024)
    }

    pub fn event(&self, name: &str) -> EventKind {
        self.events
            .iter()
            .find(|(n, _)| n == name)
            .map_or(EventKind::Plain, |&(_, kind)| kind)
    }

    /// The program in the text format, version 1.
    pub fn to_yaml(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "version: 1\nname: {}", self.name);
        if self.runtime {
            out.push_str("level: runtime\n");
        }
        let at = |dev: u32| {
            if dev == 0 {
                String::new()
            } else {
                format!("@{dev}")
            }
        };
        if !self.streams.is_empty() {
            out.push_str("streams:\n");
            for (name, kind, dev) in &self.streams {
                let kind = match kind {
                    StreamKind::NonBlocking => "nb",
                    StreamKind::Blocking => "blk",
                    StreamKind::Legacy => "legacy",
                    StreamKind::PerThread => "ptds",
                };
                let _ = writeln!(out, "  {name}: {kind}{}", at(*dev));
            }
        }
        if !self.buffers.is_empty() {
            out.push_str("buffers:\n");
            for (name, kind, bytes) in &self.buffers {
                let kind = match kind {
                    MemKind::Dev => "dev",
                    MemKind::Pinned => "pinned",
                    MemKind::Pageable => "pageable",
                    MemKind::Managed => "managed",
                };
                let _ = if *bytes == 1024 {
                    writeln!(out, "  {name}: {kind}")
                } else {
                    writeln!(out, "  {name}: {{kind: {kind}, bytes: {bytes}}}")
                };
            }
        }
        if self
            .events
            .iter()
            .any(|(_, kind)| *kind != EventKind::Plain)
        {
            out.push_str("events:\n");
            for (name, kind) in &self.events {
                let _ = match kind {
                    EventKind::Plain => Ok(()),
                    EventKind::NoTiming => writeln!(out, "  {name}: no_timing"),
                    EventKind::Device(n) => writeln!(out, "  {name}: dev{n}"),
                };
            }
        }
        out.push_str("ops:\n");
        for op in &self.ops {
            let _ = write!(out, "- {{do: {}", op.act.word());
            for (key, value) in op.act.fields() {
                let _ = write!(out, ", {key}: {value}");
            }
            if op.thread != "t0" {
                let _ = write!(out, ", t: {}", op.thread);
            }
            if let Some(site) = &op.site {
                let _ = write!(out, ", site: {site}");
            }
            out.push_str("}\n");
        }
        out
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// From and to the syntax tree
// ---------------------------------------------------------------------------------------------------------------------

impl Prog {
    /// The oracle's picture of a parsed program.
    pub fn from_program(program: &ast::Program) -> Prog {
        let streams = program
            .streams
            .iter()
            .filter(|s| s.origin == ast::Origin::Declared)
            .map(|s| {
                let kind = match s.kind {
                    op::StreamKind::NonBlocking => StreamKind::NonBlocking,
                    op::StreamKind::Blocking => StreamKind::Blocking,
                    op::StreamKind::Legacy => StreamKind::Legacy,
                    op::StreamKind::PerThread => StreamKind::PerThread,
                };
                (s.name.clone(), kind, s.device.0)
            });
        let buffers = program.buffers.iter().filter(|b| !b.implicit).map(|b| {
            let kind = match b.memory {
                op::Memory::Device => MemKind::Dev,
                op::Memory::Pinned => MemKind::Pinned,
                op::Memory::Pageable => MemKind::Pageable,
                op::Memory::Managed => MemKind::Managed,
            };
            (b.name.clone(), kind, b.size_bytes)
        });
        let events = program
            .events
            .iter()
            .filter_map(|e| match (e.timing, e.device) {
                (true, None) => None,
                (false, _) => Some((e.name.clone(), EventKind::NoTiming)),
                (true, Some(n)) => Some((e.name.clone(), EventKind::Device(n.0))),
            });
        let ops = program.ops.iter().map(|op| Op {
            thread: program.threads[op.thread.0 as usize].clone(),
            site: op.site.map(|site| program.sites[site.0 as usize].clone()),
            act: act_of(program, op),
        });
        Prog {
            name: program.name.clone(),
            runtime: program.level == ast::Level::Runtime,
            streams: streams.collect(),
            buffers: buffers.collect(),
            events: events.collect(),
            ops: ops.collect(),
        }
    }

    /// The program as the reader under test understands its text.
    ///
    /// Panics if the reader does not: the generator only makes valid programs.
    pub fn to_program(&self) -> ast::Program {
        let text = self.to_yaml();
        let document =
            ast::parse(&text, &ast::Limits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut programs = document.programs;
        assert_eq!(programs.len(), 1, "one program was written");
        programs
            .remove(0)
            .unwrap_or_else(|e| panic!("a valid program was refused: {e}\n{text}"))
    }
}

/// What an op is, told from how it is written: nothing of the crate's own reading of the fields is believed.
fn act_of(program: &ast::Program, op: &ast::Op) -> Act {
    let written = ast::written(program, op);
    let told = Told {
        fields: written.split(", ").fold(Vec::new(), joined),
    };
    let (text, part, parts) = (
        |key| told.text(key),
        |key| told.part(key),
        |key| told.parts(key),
    );
    match told.text("do").as_str() {
        "kernel" => Act::Kernel {
            s: text("s"),
            r: parts("r"),
            w: parts("w"),
            repeat: told.number("repeat").filter(|&n| n != 1),
        },
        "copy_async" => Act::CopyAsync {
            s: text("s"),
            from: part("from"),
            to: part("to"),
        },
        "copy_peer" => Act::CopyPeer {
            s: text("s"),
            from: part("from"),
            to: part("to"),
            peer: told.number("peer").unwrap_or(0),
        },
        "memset_async" => Act::MemsetAsync {
            s: text("s"),
            to: part("to"),
        },
        "copy" => Act::Copy {
            from: part("from"),
            to: part("to"),
        },
        "memset" => Act::Memset { to: part("to") },
        "host_func" => Act::HostFunc {
            s: text("s"),
            r: parts("r"),
            w: parts("w"),
            sets: told.maybe("sets"),
        },
        "graph_launch" => Act::GraphLaunch {
            s: text("s"),
            g: text("g"),
            r: parts("r"),
            w: parts("w"),
        },
        "record" => Act::Record {
            ev: text("ev"),
            s: text("s"),
        },
        "wait" => Act::Wait {
            s: text("s"),
            ev: text("ev"),
        },
        "wait_stream" => Act::WaitStream {
            s: text("s"),
            src: text("src"),
        },
        "sync_stream" => Act::SyncStream { st: text("st") },
        "sync_event" => Act::SyncEvent { ev: text("ev") },
        "sync_device" => Act::SyncDevice {
            dev: told.number("dev").map(|dev| dev as u32),
        },
        "query_stream" => Act::QueryStream {
            st: text("st"),
            ready: told.yes("ready"),
        },
        "query_event" => Act::QueryEvent {
            ev: text("ev"),
            ready: told.yes("ready"),
        },
        "set_flag" => Act::SetFlag { flag: text("flag") },
        "wait_flag" => Act::WaitFlag { flag: text("flag") },
        "host_read" => Act::HostRead { buf: part("buf") },
        "host_write" => Act::HostWrite { buf: part("buf") },
        // `must_alias` and `must_not_alias` are for the simulated allocator; they order nothing.
        "alloc" => Act::Alloc {
            buf: text("buf"),
            s: told.maybe("s"),
            over: told.maybe("over").map(|_| part("over")),
            after_events: told.yes("after_events"),
        },
        "free" => Act::Free { buf: text("buf") },
        "record_stream" => Act::RecordStream {
            buf: text("buf"),
            st: text("st"),
        },
        "malloc_async" => Act::MallocAsync {
            buf: text("buf"),
            s: text("s"),
        },
        "free_async" => Act::FreeAsync {
            buf: text("buf"),
            s: text("s"),
        },
        "cuda_malloc" => Act::CudaMalloc { buf: text("buf") },
        "cuda_free" => Act::CudaFree { buf: text("buf") },
        "free_pinned" => Act::FreePinned { buf: text("buf") },
        "elapsed" => Act::Elapsed {
            a: text("a"),
            b: text("b"),
        },
        "create_event" => Act::CreateEvent { ev: text("ev") },
        "destroy_event" => Act::DestroyEvent { ev: text("ev") },
        "create_stream" => Act::CreateStream { st: text("st") },
        "destroy_stream" => Act::DestroyStream { st: text("st") },
        "set_device" => Act::SetDevice {
            dev: told.number("dev").expect("a device") as u32,
        },
        "begin_capture" => Act::BeginCapture { s: text("s") },
        "end_capture" => Act::EndCapture { s: text("s") },
        "sim_hold" => Act::SimHold { st: text("st") },
        "sim_release" => Act::SimRelease { st: text("st") },
        "set_capacity" => Act::SetCapacity {
            blocks: told.number("blocks").expect("a number"),
        },
        "pool_get" => Act::PoolGet {
            count: told.number("count").expect("a number"),
            first: text("first"),
            last: text("last"),
        },
        other => panic!("the oracle does not know `{other}`"),
    }
}

/// Puts together again what stands in one pair of brackets.
fn joined(mut fields: Vec<String>, piece: &str) -> Vec<String> {
    match fields.last_mut() {
        Some(last) if last.contains(": [") && !last.ends_with(']') => {
            last.push_str(", ");
            last.push_str(piece);
        }
        _ => fields.push(piece.to_owned()),
    }
    fields
}

/// The fields of an op as they are written: `key: value`.
struct Told {
    fields: Vec<String>,
}

impl Told {
    fn maybe(&self, key: &str) -> Option<String> {
        let value = |field: &String| Some(field.strip_prefix(key)?.strip_prefix(": ")?.to_owned());
        self.fields.iter().find_map(value)
    }

    fn text(&self, key: &str) -> String {
        let text = self.maybe(key);
        text.unwrap_or_else(|| panic!("no `{key}` in {:?}", self.fields))
    }

    fn number(&self, key: &str) -> Option<u64> {
        Some(self.maybe(key)?.parse().expect("a number"))
    }

    fn yes(&self, key: &str) -> bool {
        self.maybe(key).is_some_and(|text| text == "true")
    }

    fn part(&self, key: &str) -> Part {
        part_of(&self.text(key))
    }

    fn parts(&self, key: &str) -> Vec<Part> {
        let Some(list) = self.maybe(key) else {
            return Vec::new();
        };
        let list = list.trim_matches(['[', ']'].as_slice());
        list.split(", ").map(part_of).collect()
    }
}

/// `A` or `"A[lo:hi]"`.
fn part_of(text: &str) -> Part {
    let text = text.trim_matches('"');
    let Some((buf, range)) = text.trim_end_matches(']').split_once('[') else {
        return Part::whole(text);
    };
    let (lo, hi) = range.split_once(':').expect("two bounds");
    Part {
        buf: buf.to_owned(),
        range: Some((lo.parse().expect("a byte"), hi.parse().expect("a byte"))),
    }
}
