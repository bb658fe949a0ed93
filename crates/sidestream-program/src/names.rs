//! The names of a program: which are valid, which need no declaration, and the numbers by which ops refer to them.

use std::collections::HashMap;

use sidestream::op::{DeviceId, EventId, FlagId, GraphId, Memory, SiteId, StreamKind, ThreadId};

use crate::program::{BufferDecl, BufferRef, EventDecl, Origin, Program, StreamDecl, StreamRef};

/// Default size of a buffer, in bytes.
pub(crate) const DEFAULT_BYTES: u64 = 1024;

/// Maximum length of a name: an implicit YAML key has at most 1024 characters, and messages and report columns have
/// no room for more.
const LONGEST: usize = 255;

/// Returns whether the text is a letter followed by letters, digits and underscores.
pub(crate) fn is_name(text: &str) -> bool {
    if text.len() > LONGEST {
        return false;
    }
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Returns the valid name closest to the text; none if no character of it is valid.
pub(crate) fn as_name(text: &str) -> Option<String> {
    let fit = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = text.chars().map(fit).take(LONGEST).collect();
    let name = name.trim_matches('_').to_owned();
    is_name(&name).then_some(name)
}

/// Returns whether the name is one of `s0` to `s99`.
pub(crate) fn is_implicit_stream(name: &str) -> bool {
    let digits = name.strip_prefix('s').unwrap_or("");
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    number && digits.len() <= 2 && (digits.len() == 1 || !digits.starts_with('0'))
}

/// Returns the memory of an undeclared buffer with this name, if it needs no declaration.
pub(crate) fn implicit_memory(name: &str) -> Option<Memory> {
    let mut bytes = name.bytes();
    let letter = bytes.next()?;
    if !letter.is_ascii_uppercase() || !bytes.all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(match letter {
        b'H' => Memory::Pinned,
        b'P' => Memory::Pageable,
        b'M' => Memory::Managed,
        _ => Memory::Device,
    })
}

/// The tables of a program that is being read.
///
/// The maps borrow names from the text; the program's tables own them.
#[derive(Debug, Default)]
pub(crate) struct Names<'t> {
    streams: HashMap<&'t str, u32>,
    buffers: HashMap<&'t str, u32>,
    events: HashMap<&'t str, u32>,
    flags: HashMap<&'t str, u32>,
    graphs: HashMap<&'t str, u32>,
    threads: HashMap<&'t str, u32>,
    sites: HashMap<&'t str, u32>,
}

impl<'t> Names<'t> {
    pub(crate) fn declare_stream(
        &mut self,
        program: &mut Program,
        name: &'t str,
        kind: StreamKind,
        device: DeviceId,
        origin: Origin,
    ) -> StreamRef {
        let decl = StreamDecl {
            name: name.to_owned(),
            kind,
            device,
            priority: 0,
            origin,
        };
        StreamRef(add(&mut self.streams, &mut program.streams, name, decl))
    }

    pub(crate) fn declare_buffer(
        &mut self,
        program: &mut Program,
        name: &'t str,
        memory: Memory,
        size_bytes: u64,
        implicit: bool,
    ) -> BufferRef {
        let decl = BufferDecl {
            name: name.to_owned(),
            memory,
            size_bytes,
            implicit,
        };
        BufferRef(add(&mut self.buffers, &mut program.buffers, name, decl))
    }

    pub(crate) fn declare_event(
        &mut self,
        program: &mut Program,
        name: &'t str,
        timing: bool,
        device: Option<DeviceId>,
        implicit: bool,
    ) -> EventId {
        let decl = EventDecl {
            name: name.to_owned(),
            timing,
            device,
            implicit,
        };
        EventId(add(&mut self.events, &mut program.events, name, decl))
    }

    /// Returns the stream with this name; none if it would need a declaration.
    pub(crate) fn stream(&mut self, program: &mut Program, name: &'t str) -> Option<StreamRef> {
        if let Some(&known) = self.streams.get(name) {
            return Some(StreamRef(known));
        }
        let kind = StreamKind::NonBlocking;
        is_implicit_stream(name)
            .then(|| self.declare_stream(program, name, kind, DeviceId(0), Origin::Implicit))
    }

    /// Returns the stream that a `pool_get` of a thread on this device names.
    pub(crate) fn pool_stream(
        &mut self,
        program: &mut Program,
        name: &'t str,
        device: DeviceId,
    ) -> StreamRef {
        if let Some(&known) = self.streams.get(name) {
            return StreamRef(known);
        }
        let kind = StreamKind::NonBlocking;
        self.declare_stream(program, name, kind, device, Origin::Pool)
    }

    /// Returns the buffer with this name; none if it would need a declaration.
    pub(crate) fn buffer(&mut self, program: &mut Program, name: &'t str) -> Option<BufferRef> {
        if let Some(&known) = self.buffers.get(name) {
            return Some(BufferRef(known));
        }
        let memory = implicit_memory(name)?;
        Some(self.declare_buffer(program, name, memory, DEFAULT_BYTES, true))
    }

    /// Returns whether a program may use a buffer with this name.
    pub(crate) fn knows_buffer(&self, name: &str) -> bool {
        self.buffers.contains_key(name) || implicit_memory(name).is_some()
    }

    pub(crate) fn event(&mut self, program: &mut Program, name: &'t str) -> EventId {
        match self.events.get(name) {
            Some(&known) => EventId(known),
            None => self.declare_event(program, name, true, None, true),
        }
    }

    /// Returns the flag with this name, and thus whether an earlier op raises it: only ops that raise a flag make it
    /// known.
    pub(crate) fn known_flag(&self, name: &str) -> Option<FlagId> {
        self.flags.get(name).copied().map(FlagId)
    }

    pub(crate) fn flag(&mut self, program: &mut Program, name: &'t str) -> FlagId {
        FlagId(number(&mut self.flags, &mut program.flags, name))
    }

    pub(crate) fn graph(&mut self, program: &mut Program, name: &'t str) -> GraphId {
        GraphId(number(&mut self.graphs, &mut program.graphs, name))
    }

    pub(crate) fn thread(&mut self, program: &mut Program, name: &'t str) -> ThreadId {
        ThreadId(number(&mut self.threads, &mut program.threads, name))
    }

    pub(crate) fn site(&mut self, program: &mut Program, name: &'t str) -> SiteId {
        SiteId(number(&mut self.sites, &mut program.sites, name))
    }
}

/// Returns the number of a name that needs no declaration, and adds it if it is new.
fn number<'t>(known: &mut HashMap<&'t str, u32>, table: &mut Vec<String>, name: &'t str) -> u32 {
    match known.get(name) {
        Some(&number) => number,
        None => add(known, table, name, name.to_owned()),
    }
}

/// Adds a name with its declaration, and returns its number.
fn add<'t, T>(
    known: &mut HashMap<&'t str, u32>,
    table: &mut Vec<T>,
    name: &'t str,
    entry: T,
) -> u32 {
    let number = table.len() as u32;
    table.push(entry);
    known.insert(name, number);
    number
}
