//! Reads one op: its verb, and the values of its fields.

use sidestream::error::closest;
use sidestream::op::{DeviceId, FlagId, Memory, StreamKind, ThreadId};

use crate::error::{Fault, shown};
use crate::limits::Limits;
use crate::names::Names;
use crate::program::{Access, BufferRef, Fields, Op, Program, StreamRef};
use crate::verbs::{Side, Slot, Verb};
use crate::words::{COMPARES, SOURCE_ORDERS, STREAM_KINDS};
use crate::yaml::{Kind, View};

use super::record::Record;
use super::scalars;

/// Reads ops one after another, because some names are declared only by an earlier op.
pub(super) struct Reader<'t, 'p> {
    pub(super) names: &'p mut Names<'t>,
    pub(super) program: &'p mut Program,
    pub(super) limits: &'p Limits,
    /// Current device of each thread, on which its pool streams are created.
    devices: Vec<DeviceId>,
}

/// Returns the text of an op's `do`, for messages.
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
        let takes = || format!("`{}` takes {}", verb.name(), verb.listed());
        record.only(
            |key| verb.fields().any(|field| field.key == key) || matches!(key, "do" | "t" | "site"),
            takes,
        )?;
        let is_missing = |key: &str| record.get(key).is_none();
        if let Some(missing) = verb.needs().iter().find(|field| is_missing(field.key)) {
            let message = format!("this field is missing; {}", takes());
            return Err(record.fault(message).in_field(missing.key));
        }

        let thread = record.read_key("t", scalars::name)?;
        let thread = thread.map(|name| self.names.thread(self.program, name));
        let thread = thread.unwrap_or(ThreadId(0));
        let site = record.read_key("site", scalars::name)?;
        let site = site.map(|name| self.names.site(self.program, name));
        let mut fields = Fields::default();
        for field in verb.fields() {
            record.read_key(field.key, |view| {
                self.field(field.slot, view, thread, &mut fields)
            })?;
        }
        if let (Verb::SetDevice, Some(device)) = (verb, fields.device) {
            *self.current_device(thread) = device;
        }
        Ok(Op {
            line: record.line,
            thread,
            site,
            verb,
            fields,
        })
    }

    fn field(
        &mut self,
        slot: Slot,
        view: View<'t>,
        thread: ThreadId,
        fields: &mut Fields,
    ) -> Result<(), Fault> {
        match slot {
            Slot::Stream(at) => *at(fields) = Some(self.stream(view)?),
            Slot::PoolStream(at) => *at(fields) = Some(self.pool_stream(view, thread)?),
            Slot::Event(at) => {
                *at(fields) = Some(self.names.event(self.program, scalars::name(view)?));
            }
            Slot::Raised => {
                fields.flag = Some(self.names.flag(self.program, scalars::name(view)?));
            }
            Slot::Awaited => fields.flag = Some(self.awaited_flag(view)?),
            Slot::Graph => {
                fields.graph = Some(self.names.graph(self.program, scalars::name(view)?));
            }
            Slot::Buffer(at) => *at(fields) = Some(self.buffer(view)?),
            Slot::Access(at, side) => at(fields).push(self.access(view, side)?),
            Slot::Accesses(at, side) => *at(fields) = self.accesses(view, side)?,
            Slot::SourceOrder => {
                let order = scalars::word(view, &SOURCE_ORDERS, "an order")?;
                fields.source_order = Some(order);
            }
            Slot::Compare => {
                fields.compare = Some(scalars::word(view, &COMPARES, "a comparison")?);
            }
            Slot::Over => {
                let over = self.access(view, Side::Device)?;
                let fits = |tenant| self.fits(tenant, over);
                let fits = fields.buffer.map_or(Ok(()), fits);
                fits.map_err(|why| view.fault(why))?;
                fields.over = Some(over);
            }
            Slot::Device => {
                let most = u64::from(self.limits.device);
                fields.device = Some(DeviceId(scalars::integer(view, 0, most)? as u32));
            }
            Slot::Number { least } => {
                let most = u64::from(self.limits.repeat);
                fields.number = Some(scalars::integer(view, least, most)? as u32);
            }
            Slot::Yes => fields.yes = scalars::boolean(view)?,
        }
        Ok(())
    }

    /// Checks that a tenant fits its place exactly: otherwise the rest of the place would belong to no buffer.
    fn fits(&self, buffer: BufferRef, over: Access) -> Result<(), String> {
        let (start, end) = self.program.range(over);
        let tenant = &self.program.buffers[buffer.0 as usize];
        if tenant.size_bytes <= end - start {
            return Ok(());
        }
        let (name, has, room) = (&tenant.name, tenant.size_bytes, end - start);
        Err(format!(
            "`{name}` has {has} bytes, and the place that it is put over has {room}; name a larger place, or declare \
             `{name}` under `buffers:` with `bytes: {room}`"
        ))
    }

    fn stream(&mut self, view: View<'t>) -> Result<StreamRef, Fault> {
        let name = scalars::name(view)?;
        self.names.stream(self.program, name).ok_or_else(|| {
            view.fault(format!(
                "stream `{}` is not declared; declare it under `streams:` or use `s0` to `s99`",
                shown(name)
            ))
        })
    }

    fn pool_stream(&mut self, view: View<'t>, thread: ThreadId) -> Result<StreamRef, Fault> {
        let device = *self.current_device(thread);
        let name = scalars::name(view)?;
        let stream = self.names.pool_stream(self.program, name, device);
        let kind = self.program.streams[stream.0 as usize].kind;
        if kind == StreamKind::NonBlocking {
            return Ok(stream);
        }
        Err(view.fault(format!(
            "`{name}` is declared `{}`, but streams of the pool are `nb`; use another name",
            STREAM_KINDS.of(kind)
        )))
    }

    fn current_device(&mut self, thread: ThreadId) -> &mut DeviceId {
        let at = thread.0 as usize;
        if self.devices.len() <= at {
            self.devices.resize(at + 1, DeviceId(0));
        }
        &mut self.devices[at]
    }

    fn awaited_flag(&self, view: View<'t>) -> Result<FlagId, Fault> {
        let name = scalars::name(view)?;
        self.names.known_flag(name).ok_or_else(|| {
            view.fault(format!(
                "no op further up raises flag `{}`; list the `set_flag` or the `host_func` that `sets` it before \
                 this wait",
                shown(name)
            ))
        })
    }

    /// Reads a buffer, and refuses a range of it.
    fn buffer(&mut self, view: View<'t>) -> Result<BufferRef, Fault> {
        let (name, range) = scalars::named_range(view)?;
        if range.is_some() {
            let message = format!("this call applies to all of `{name}`; leave out the range");
            return Err(view.fault(message));
        }
        self.known_buffer(name, view)
    }

    fn known_buffer(&mut self, name: &'t str, view: View<'t>) -> Result<BufferRef, Fault> {
        self.names.buffer(self.program, name).ok_or_else(|| {
            view.fault(format!(
                "buffer `{}` is not declared; declare it under `buffers:` or use one capital letter and digits",
                shown(name)
            ))
        })
    }

    fn accesses(&mut self, view: View<'t>, side: Side) -> Result<Vec<Access>, Fault> {
        let items = scalars::list(view, "accesses")?;
        items.iter().map(|view| self.access(view, side)).collect()
    }

    fn access(&mut self, view: View<'t>, side: Side) -> Result<Access, Fault> {
        let (name, range) = scalars::named_range(view)?;
        let buffer = self.known_buffer(name, view)?;
        let declared = &self.program.buffers[buffer.0 as usize];
        let size = declared.size_bytes;
        if let Some((low, high)) = range.filter(|&(_, high)| high > size) {
            return Err(view.fault(format!(
                "bytes {low}:{high} are outside `{}`, which has {size}; declare its `bytes` or use a smaller range",
                shown(name)
            )));
        }
        if side == Side::Host && declared.memory == Memory::Device {
            return Err(view.fault(format!(
                "the host cannot reach `{}`, which is device memory; copy it to pinned memory, or declare it `managed`",
                shown(name)
            )));
        }
        Ok(Access { buffer, range })
    }
}

fn verb(record: &Record<'_>) -> Result<Verb, Fault> {
    let missing = "`do` is missing; say which call the op is, as in `do: kernel`";
    let text = |view| Ok((view, scalars::text(view, "the name of an op")?));
    let text = record.need("do", missing).and_then(text);
    let (view, word) = text.map_err(|fault| fault.in_field("do"))?;
    Verb::named(word).ok_or_else(|| {
        let remedy = match closest(word, Verb::ALL.iter().map(|verb| verb.name())) {
            Some(verb) => format!("did you mean `{verb}`?"),
            None => "docs/reference/stream-programs.md lists the ops".to_owned(),
        };
        let message = format!("`{}` is not an op; {remedy}", shown(word));
        view.fault(message).in_field("do")
    })
}
