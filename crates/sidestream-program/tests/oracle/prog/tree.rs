//! Converts between the representation and the crate's own syntax tree.

use sidestream::op;
use sidestream_program as ast;

use super::{Act, EventKind, MemKind, Op, Part, Prog, Source, StreamKind};

impl Prog {
    /// Returns the oracle's representation of a parsed program.
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

    /// Returns the program as the reader under test reads its text.
    ///
    /// Panics if the reader refuses it: the generator only makes valid programs.
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

/// Reads an op from its text: the crate's own reading of the fields is not trusted.
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
            may_write: parts("may_write"),
            atomic: parts("atomic"),
            repeat: told.number("repeat").filter(|&n| n != 1),
            programmatic: told.maybe("programmatic").as_deref() == Some("true"),
        },
        "copy_async" => Act::CopyAsync {
            s: text("s"),
            from: part("from"),
            to: part("to"),
        },
        "copy_batch" => Act::CopyBatch {
            s: text("s"),
            from: part("from"),
            to: part("to"),
            source: match told.maybe("source").as_deref() {
                Some("during_call") => Source::DuringCall,
                Some("any") => Source::Any,
                _ => Source::Stream,
            },
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
            may_write: parts("may_write"),
            atomic: parts("atomic"),
        },
        "record" => Act::Record {
            ev: text("ev"),
            s: text("s"),
        },
        "wait" => Act::Wait {
            s: text("s"),
            ev: text("ev"),
        },
        "write_value" => Act::WriteValue {
            s: text("s"),
            at: text("at"),
            value: told.number("value").unwrap_or(0),
            unfenced: told.maybe("unfenced").as_deref() == Some("true"),
        },
        "wait_value" => Act::WaitValue {
            s: text("s"),
            at: text("at"),
            value: told.number("value").unwrap_or(0),
            when: told.maybe("when"),
        },
        "wait_outside" => Act::WaitOutside { s: told.maybe("s") },
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
        "unregister" => Act::Unregister { buf: text("buf") },
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

/// Joins again what belongs to one pair of brackets.
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

/// The fields of an op as written: `key: value`.
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

/// Reads `A` or `"A[lo:hi]"`.
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
