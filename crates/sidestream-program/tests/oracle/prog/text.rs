//! Writes the representation as the text that the reader under test parses.

use std::fmt::{self, Display, Write as _};

use super::{Act, EventKind, MemKind, Part, Prog, Source, StreamKind};

impl Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.range {
            None => f.write_str(&self.buf),
            Some((lo, hi)) => write!(f, "\"{}[{lo}:{hi}]\"", self.buf),
        }
    }
}

/// Parts in brackets; nothing without any.
struct List<'a>(&'a [Part]);

impl Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(Part::to_string).collect();
        if words.is_empty() {
            Ok(())
        } else {
            write!(f, "[{}]", words.join(", "))
        }
    }
}

/// Formats an optional value.
fn maybe(value: &Option<impl Display>) -> String {
    value.as_ref().map_or(String::new(), ToString::to_string)
}

fn yes(is: bool) -> &'static str {
    if is { "true" } else { "" }
}

impl Act {
    /// Returns the word after `do`.
    pub fn word(&self) -> &'static str {
        self.written().0
    }

    /// Returns the word and the fields. A field without text is not written.
    fn written(&self) -> (&'static str, Vec<(&'static str, String)>) {
        type Fields<'a> = &'a [(&'static str, &'a dyn Display)];
        let of = |word, fields: Fields<'_>| {
            let texts = fields.iter().map(|(key, value)| (*key, value.to_string()));
            (word, texts.filter(|(_, text)| !text.is_empty()).collect())
        };
        match self {
            Act::Kernel {
                s,
                r,
                w,
                may_write,
                atomic,
                repeat,
                programmatic,
            } => of(
                "kernel",
                &[
                    ("s", s),
                    ("r", &List(r)),
                    ("w", &List(w)),
                    ("may_write", &List(may_write)),
                    ("atomic", &List(atomic)),
                    ("repeat", &maybe(repeat)),
                    ("programmatic", &yes(*programmatic)),
                ],
            ),
            Act::CopyAsync { s, from, to } => {
                of("copy_async", &[("s", s), ("from", from), ("to", to)])
            }
            Act::CopyBatch {
                s,
                from,
                to,
                source,
            } => of(
                "copy_batch",
                &[
                    ("s", s),
                    ("from", from),
                    ("to", to),
                    (
                        "source",
                        match source {
                            Source::Stream => &"stream",
                            Source::DuringCall => &"during_call",
                            Source::Any => &"any",
                        },
                    ),
                ],
            ),
            Act::CopyPeer { s, from, to, peer } => of(
                "copy_peer",
                &[("s", s), ("from", from), ("to", to), ("peer", peer)],
            ),
            Act::MemsetAsync { s, to } => of("memset_async", &[("s", s), ("to", to)]),
            Act::Copy { from, to } => of("copy", &[("from", from), ("to", to)]),
            Act::Memset { to } => of("memset", &[("to", to)]),
            Act::HostFunc { s, r, w, sets } => of(
                "host_func",
                &[
                    ("s", s),
                    ("r", &List(r)),
                    ("w", &List(w)),
                    ("sets", &maybe(sets)),
                ],
            ),
            Act::GraphLaunch {
                s,
                g,
                r,
                w,
                may_write,
                atomic,
            } => of(
                "graph_launch",
                &[
                    ("s", s),
                    ("g", g),
                    ("r", &List(r)),
                    ("w", &List(w)),
                    ("may_write", &List(may_write)),
                    ("atomic", &List(atomic)),
                ],
            ),
            Act::Record { ev, s } => of("record", &[("ev", ev), ("s", s)]),
            Act::Wait { s, ev } => of("wait", &[("s", s), ("ev", ev)]),
            Act::WriteValue {
                s,
                at,
                value,
                unfenced,
            } => of(
                "write_value",
                &[
                    ("s", s),
                    ("at", at),
                    ("value", value),
                    ("unfenced", &yes(*unfenced)),
                ],
            ),
            Act::WaitValue { s, at, value, when } => of(
                "wait_value",
                &[
                    ("s", s),
                    ("at", at),
                    ("value", value),
                    ("when", &maybe(when)),
                ],
            ),
            Act::WaitOutside { s } => of("wait_outside", &[("s", &maybe(s))]),
            Act::WaitStream { s, src } => of("wait_stream", &[("s", s), ("src", src)]),
            Act::SyncStream { st } => of("sync_stream", &[("st", st)]),
            Act::SyncEvent { ev } => of("sync_event", &[("ev", ev)]),
            Act::SyncDevice { dev } => of("sync_device", &[("dev", &maybe(dev))]),
            Act::QueryStream { st, ready } => {
                of("query_stream", &[("st", st), ("ready", &yes(*ready))])
            }
            Act::QueryEvent { ev, ready } => {
                of("query_event", &[("ev", ev), ("ready", &yes(*ready))])
            }
            Act::SetFlag { flag } => of("set_flag", &[("flag", flag)]),
            Act::WaitFlag { flag } => of("wait_flag", &[("flag", flag)]),
            Act::HostRead { buf } => of("host_read", &[("buf", buf)]),
            Act::HostWrite { buf } => of("host_write", &[("buf", buf)]),
            Act::Alloc {
                buf,
                s,
                over,
                after_events,
            } => of(
                "alloc",
                &[
                    ("buf", buf),
                    ("s", &maybe(s)),
                    ("over", &maybe(over)),
                    ("after_events", &yes(*after_events)),
                ],
            ),
            Act::Free { buf } => of("free", &[("buf", buf)]),
            Act::RecordStream { buf, st } => of("record_stream", &[("buf", buf), ("st", st)]),
            Act::MallocAsync { buf, s } => of("malloc_async", &[("buf", buf), ("s", s)]),
            Act::FreeAsync { buf, s } => of("free_async", &[("buf", buf), ("s", s)]),
            Act::CudaMalloc { buf } => of("cuda_malloc", &[("buf", buf)]),
            Act::CudaFree { buf } => of("cuda_free", &[("buf", buf)]),
            Act::FreePinned { buf } => of("free_pinned", &[("buf", buf)]),
            Act::Unregister { buf } => of("unregister", &[("buf", buf)]),
            Act::Elapsed { a, b } => of("elapsed", &[("a", a), ("b", b)]),
            Act::CreateEvent { ev } => of("create_event", &[("ev", ev)]),
            Act::DestroyEvent { ev } => of("destroy_event", &[("ev", ev)]),
            Act::CreateStream { st } => of("create_stream", &[("st", st)]),
            Act::DestroyStream { st } => of("destroy_stream", &[("st", st)]),
            Act::SetDevice { dev } => of("set_device", &[("dev", dev)]),
            Act::BeginCapture { s } => of("begin_capture", &[("s", s)]),
            Act::EndCapture { s } => of("end_capture", &[("s", s)]),
            Act::SimHold { st } => of("sim_hold", &[("st", st)]),
            Act::SimRelease { st } => of("sim_release", &[("st", st)]),
            Act::SetCapacity { blocks } => of("set_capacity", &[("blocks", blocks)]),
            Act::PoolGet { count, first, last } => of(
                "pool_get",
                &[("count", count), ("first", first), ("last", last)],
            ),
        }
    }
}

impl Prog {
    /// Returns the program in the text format, version 1.
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
            let (word, fields) = op.act.written();
            let _ = write!(out, "- {{do: {word}");
            for (key, value) in fields {
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
