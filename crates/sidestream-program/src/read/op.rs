//! One op: its verb, its fields, and what each field may hold.

use sidestream::op::{DeviceId, Memory, StreamKind};

use crate::error::{Fault, shown};
use crate::limits::Limits;
use crate::names::Names;
use crate::program::{
    Access, Act, BufferRef, EventRef, FlagRef, GraphRef, Op, Program, SiteRef, StreamRef, ThreadRef,
};
use crate::verbs::{VERBS, Verb, closest};
use crate::words::STREAM_KINDS;
use crate::yaml::{Kind, View};

use super::record::Record;
use super::scalars;

/// Reads ops one after the other, because a name may be known only from an op
/// further up.
pub(super) struct Reader<'t, 'p> {
    names: &'p mut Names<'t>,
    program: &'p mut Program,
    limits: &'p Limits,
    /// The current device of each thread: pool streams are made there.
    devices: Vec<DeviceId>,
}

/// Whether an access is made by the device or by the host.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Device,
    Host,
}

/// What an op says under `do`, for messages.
pub(super) fn verb_of(view: View<'_>) -> Option<&str> {
    let Kind::Mapping(items) = view.kind() else {
        return None;
    };
    let mut children = items.iter();
    while let (Some(key), Some(value)) = (children.next(), children.next()) {
        if let (Kind::Scalar("do", _), Kind::Scalar(verb, _)) = (key.kind(), value.kind()) {
            return Some(verb);
        }
    }
    None
}

impl<'t, 'p> Reader<'t, 'p> {
    pub(super) fn new(
        names: &'p mut Names<'t>,
        program: &'p mut Program,
        limits: &'p Limits,
    ) -> Self {
        Self {
            names,
            program,
            limits,
            devices: Vec::new(),
        }
    }

    pub(super) fn read(&mut self, view: View<'t>) -> Result<Op, Fault> {
        let record = Record::read(view, "an op, a mapping with `do`,")?;
        let verb = verb(&record)?;
        record.only(
            |key| {
                verb.needs.contains(&key)
                    || verb.may.contains(&key)
                    || matches!(key, "do" | "t" | "site")
            },
            || format!("`{}` takes {}", verb.name, verb.fields()),
        )?;
        if let Some(missing) = verb.needs.iter().find(|field| record.get(field).is_none()) {
            let message = format!(
                "this field is missing; `{}` takes {}",
                verb.name,
                verb.fields()
            );
            return Err(Fault::new(record.line, message).in_field(missing));
        }

        let thread = match record.get("t") {
            Some(view) => {
                let name = scalars::name(view).map_err(|fault| fault.in_field("t"))?;
                self.names.thread(self.program, name)
            }
            None => 0,
        };
        let site = match record.get("site") {
            Some(view) => {
                let name = scalars::name(view).map_err(|fault| fault.in_field("site"))?;
                Some(SiteRef(self.names.site(self.program, name)))
            }
            None => None,
        };
        let thread = ThreadRef(thread);
        let act = self.act(verb, thread, &record)?;
        Ok(Op {
            line: record.line,
            thread,
            site,
            act,
        })
    }

    fn act(&mut self, verb: &Verb, thread: ThreadRef, record: &Record<'t>) -> Result<Act, Fault> {
        use Side::{Device, Host};
        Ok(match verb.name {
            "kernel" => Act::Kernel {
                stream: self.stream(record, "s")?,
                reads: self.accesses(record, "r", Device)?,
                writes: self.accesses(record, "w", Device)?,
                repeat: match record.get("repeat") {
                    Some(_) => self.number(record, "repeat", 1)?,
                    None => 1,
                },
            },
            "copy_async" => Act::CopyAsync {
                stream: self.stream(record, "s")?,
                from: self.access(record, "from", Device)?,
                to: self.access(record, "to", Device)?,
            },
            "memset_async" => Act::MemsetAsync {
                stream: self.stream(record, "s")?,
                to: self.access(record, "to", Device)?,
            },
            "copy" => Act::Copy {
                from: self.access(record, "from", Device)?,
                to: self.access(record, "to", Device)?,
            },
            "memset" => Act::Memset {
                to: self.access(record, "to", Device)?,
            },
            "host_func" => Act::HostFunc {
                stream: self.stream(record, "s")?,
                reads: self.accesses(record, "r", Host)?,
                writes: self.accesses(record, "w", Host)?,
                sets: match record.get("sets") {
                    Some(_) => Some(self.raised_flag(record, "sets")?),
                    None => None,
                },
            },
            "graph_launch" => Act::GraphLaunch {
                stream: self.stream(record, "s")?,
                graph: {
                    let name = field(record, "g", scalars::name)?;
                    GraphRef(self.names.graph(self.program, name))
                },
                reads: self.accesses(record, "r", Device)?,
                writes: self.accesses(record, "w", Device)?,
            },
            "record" => Act::Record {
                event: self.event(record, "ev")?,
                stream: self.stream(record, "s")?,
            },
            "wait" => Act::Wait {
                stream: self.stream(record, "s")?,
                event: self.event(record, "ev")?,
            },
            "wait_stream" => Act::WaitStream {
                stream: self.stream(record, "s")?,
                source: self.stream(record, "src")?,
            },
            "sync_stream" => Act::SyncStream {
                stream: self.stream(record, "st")?,
            },
            "sync_event" => Act::SyncEvent {
                event: self.event(record, "ev")?,
            },
            "sync_device" => Act::SyncDevice {
                device: match record.get("dev") {
                    Some(_) => Some(self.device(record)?),
                    None => None,
                },
            },
            "query_stream" => Act::QueryStream {
                stream: self.stream(record, "st")?,
                ready: yes(record, "ready")?,
            },
            "query_event" => Act::QueryEvent {
                event: self.event(record, "ev")?,
                ready: yes(record, "ready")?,
            },
            "set_flag" => Act::SetFlag {
                flag: self.raised_flag(record, "flag")?,
            },
            "wait_flag" => Act::WaitFlag {
                flag: self.awaited_flag(record, "flag")?,
            },
            "host_read" => Act::HostRead {
                access: self.access(record, "buf", Host)?,
            },
            "host_write" => Act::HostWrite {
                access: self.access(record, "buf", Host)?,
            },
            "alloc" => self.alloc(record)?,
            "free" => Act::Free {
                buffer: self.buffer(record, "buf")?,
            },
            "record_stream" => Act::RecordStream {
                buffer: self.buffer(record, "buf")?,
                stream: self.stream(record, "st")?,
            },
            "malloc_async" => Act::MallocAsync {
                buffer: self.buffer(record, "buf")?,
                stream: self.stream(record, "s")?,
            },
            "free_async" => Act::FreeAsync {
                buffer: self.buffer(record, "buf")?,
                stream: self.stream(record, "s")?,
            },
            "cuda_malloc" => Act::CudaMalloc {
                buffer: self.buffer(record, "buf")?,
            },
            "cuda_free" => Act::CudaFree {
                buffer: self.buffer(record, "buf")?,
            },
            "free_pinned" => Act::FreePinned {
                buffer: self.buffer(record, "buf")?,
            },
            "elapsed" => Act::Elapsed {
                start: self.event(record, "a")?,
                end: self.event(record, "b")?,
            },
            "create_event" => Act::CreateEvent {
                event: self.event(record, "ev")?,
            },
            "destroy_event" => Act::DestroyEvent {
                event: self.event(record, "ev")?,
            },
            "create_stream" => Act::CreateStream {
                stream: self.stream(record, "st")?,
            },
            "destroy_stream" => Act::DestroyStream {
                stream: self.stream(record, "st")?,
            },
            "set_device" => {
                let device = self.device(record)?;
                *self.current_device(thread) = device;
                Act::SetDevice { device }
            }
            "begin_capture" => Act::BeginCapture {
                stream: self.stream(record, "s")?,
            },
            "end_capture" => Act::EndCapture {
                stream: self.stream(record, "s")?,
            },
            "sim_hold" => Act::SimHold {
                stream: self.stream(record, "st")?,
            },
            "sim_release" => Act::SimRelease {
                stream: self.stream(record, "st")?,
            },
            "set_capacity" => Act::SetCapacity {
                blocks: self.number(record, "blocks", 0)?,
            },
            "pool_get" => Act::PoolGet {
                count: self.number(record, "count", 1)?,
                first: self.pool_stream(record, "first", thread)?,
                last: self.pool_stream(record, "last", thread)?,
            },
            // A verb in the table without an arm here is a slip of ours, which
            // the test that reads every verb finds.
            other => {
                return Err(Fault::new(
                    record.line,
                    format!("`{other}` cannot be read yet"),
                ));
            }
        })
    }

    fn alloc(&mut self, record: &Record<'t>) -> Result<Act, Fault> {
        let buffer = self.buffer(record, "buf")?;
        Ok(Act::Alloc {
            buffer,
            stream: match record.get("s") {
                Some(_) => Some(self.stream(record, "s")?),
                None => None,
            },
            over: match record.get("over") {
                Some(place) => {
                    let over = self.access(record, "over", Side::Device)?;
                    self.fits(buffer, over)
                        .map_err(|why| Fault::new(place.line(), why).in_field("over"))?;
                    Some(over)
                }
                None => None,
            },
            after_events: yes(record, "after_events")?,
            must_alias: match record.get("must_alias") {
                Some(_) => Some(self.buffer(record, "must_alias")?),
                None => None,
            },
            must_not_alias: match record.get("must_not_alias") {
                Some(_) => Some(self.buffer(record, "must_not_alias")?),
                None => None,
            },
        })
    }

    /// A tenant lies within its place: the rest of it would be bytes that are nobody's.
    fn fits(&self, buffer: BufferRef, over: Access) -> Result<(), String> {
        let (start, end) = self.program.range(over);
        let tenant = &self.program.buffers[buffer.0 as usize];
        if tenant.size_bytes <= end - start {
            return Ok(());
        }
        let (name, has, room) = (&tenant.name, tenant.size_bytes, end - start);
        Err(format!(
            "`{name}` has {has} bytes, and there are {room} to put it over; name a larger place, or declare \
             `{name}` under `buffers:` with `bytes: {room}`"
        ))
    }

    fn stream(&mut self, record: &Record<'t>, key: &str) -> Result<StreamRef, Fault> {
        field(record, key, |view| {
            let name = scalars::name(view)?;
            self.names.stream(self.program, name).ok_or_else(|| {
                Fault::new(
                    view.line(),
                    format!(
                        "stream `{}` is not declared; declare it under `streams:` or use `s0` to `s99`",
                        shown(name)
                    ),
                )
            })
        })
    }

    fn pool_stream(
        &mut self,
        record: &Record<'t>,
        key: &str,
        thread: ThreadRef,
    ) -> Result<StreamRef, Fault> {
        let device = *self.current_device(thread);
        field(record, key, |view| {
            let name = scalars::name(view)?;
            let stream = self.names.pool_stream(self.program, name, device);
            let kind = self.program.streams[stream.0 as usize].kind;
            if kind == StreamKind::NonBlocking {
                return Ok(stream);
            }
            Err(Fault::new(
                view.line(),
                format!(
                    "`{name}` is declared `{}`, but streams of the pool are `nb`; use another name",
                    STREAM_KINDS.of(kind)
                ),
            ))
        })
    }

    fn current_device(&mut self, thread: ThreadRef) -> &mut DeviceId {
        let at = thread.0 as usize;
        if self.devices.len() <= at {
            self.devices.resize(at + 1, DeviceId(0));
        }
        &mut self.devices[at]
    }

    fn event(&mut self, record: &Record<'t>, key: &str) -> Result<EventRef, Fault> {
        let name = field(record, key, scalars::name)?;
        Ok(self.names.event(self.program, name))
    }

    fn raised_flag(&mut self, record: &Record<'t>, key: &str) -> Result<FlagRef, Fault> {
        let name = field(record, key, scalars::name)?;
        Ok(FlagRef(self.names.flag(self.program, name)))
    }

    fn awaited_flag(&mut self, record: &Record<'t>, key: &str) -> Result<FlagRef, Fault> {
        field(record, key, |view| {
            let name = scalars::name(view)?;
            self.names.known_flag(name).map(FlagRef).ok_or_else(|| {
                Fault::new(
                    view.line(),
                    format!(
                        "no op further up raises flag `{}`; list the `set_flag` or the \
                         `host_func` that `sets` it before this wait",
                        shown(name)
                    ),
                )
            })
        })
    }

    /// A buffer as a whole, where a range of it makes no sense.
    fn buffer(&mut self, record: &Record<'t>, key: &str) -> Result<BufferRef, Fault> {
        field(record, key, |view| {
            let (name, range) = scalars::named_range(view)?;
            if range.is_some() {
                let message = format!("this is about all of `{name}`; leave out the range");
                return Err(Fault::new(view.line(), message));
            }
            self.known_buffer(name, view)
        })
    }

    fn known_buffer(&mut self, name: &'t str, view: View<'t>) -> Result<BufferRef, Fault> {
        self.names.buffer(self.program, name).ok_or_else(|| {
            Fault::new(
                view.line(),
                format!(
                    "buffer `{}` is not declared; declare it under `buffers:` or use one capital \
                     letter and digits",
                    shown(name)
                ),
            )
        })
    }

    fn access(&mut self, record: &Record<'t>, key: &str, side: Side) -> Result<Access, Fault> {
        field(record, key, |view| self.one_access(view, side))
    }

    /// A list of accesses; one that is not there is empty.
    fn accesses(
        &mut self,
        record: &Record<'t>,
        key: &str,
        side: Side,
    ) -> Result<Vec<Access>, Fault> {
        if record.get(key).is_none() {
            return Ok(Vec::new());
        }
        field(record, key, |view| {
            let items = scalars::list(view, "accesses")?;
            items
                .iter()
                .map(|view| self.one_access(view, side))
                .collect()
        })
    }

    fn one_access(&mut self, view: View<'t>, side: Side) -> Result<Access, Fault> {
        let (name, range) = scalars::named_range(view)?;
        let buffer = self.known_buffer(name, view)?;
        let declared = &self.program.buffers[buffer.0 as usize];
        let size = declared.size_bytes;
        if let Some((low, high)) = range.filter(|&(_, high)| high > size) {
            return Err(Fault::new(
                view.line(),
                format!(
                    "bytes {low}:{high} are outside `{}`, which has {size}; declare its `bytes` \
                     or use a smaller range",
                    shown(name)
                ),
            ));
        }
        if side == Side::Host && declared.memory == Memory::Device {
            return Err(Fault::new(
                view.line(),
                format!(
                    "the host cannot reach `{}`, which is device memory; copy it to pinned \
                     memory, or declare it `managed`",
                    shown(name)
                ),
            ));
        }
        Ok(Access { buffer, range })
    }

    fn device(&self, record: &Record<'t>) -> Result<DeviceId, Fault> {
        let most = u64::from(self.limits.device);
        let device = field(record, "dev", |view| scalars::integer(view, 0, most))?;
        Ok(DeviceId(device as u32))
    }

    fn number(&self, record: &Record<'t>, key: &str, least: u64) -> Result<u32, Fault> {
        let most = u64::from(self.limits.repeat);
        Ok(field(record, key, |view| scalars::integer(view, least, most))? as u32)
    }
}

/// Reads a field and names it in what goes wrong.
fn field<'t, T>(
    record: &Record<'t>,
    key: &str,
    read: impl FnOnce(View<'t>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let missing = || Fault::new(record.line, "this field is missing; add it");
    let value = record.get(key).ok_or_else(missing);
    value.and_then(read).map_err(|fault| fault.in_field(key))
}

/// A switch that is off unless it says `true`.
fn yes(record: &Record<'_>, key: &str) -> Result<bool, Fault> {
    match record.get(key) {
        Some(_) => field(record, key, scalars::boolean),
        None => Ok(false),
    }
}

fn verb(record: &Record<'_>) -> Result<&'static Verb, Fault> {
    let Some(view) = record.get("do") else {
        let message = "`do` is missing; say which call the op is, as in `do: kernel`";
        return Err(Fault::new(record.line, message).in_field("do"));
    };
    let word = scalars::text(view, "the name of an op").map_err(|fault| fault.in_field("do"))?;
    Verb::named(word).ok_or_else(|| {
        let remedy = match closest(word, VERBS.iter().map(|verb| verb.name)) {
            Some(verb) => format!("did you mean `{verb}`?"),
            None => "docs/stream-programs.md lists the ops".to_owned(),
        };
        let message = format!("`{}` is not an op; {remedy}", shown(word));
        Fault::new(view.line(), message).in_field("do")
    })
}
