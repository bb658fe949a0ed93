//! The streams, by their handles, and their names: the check's own, and those in the program.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use sidestream::log::Record;
use sidestream::op::{DeviceId, StreamId, StreamKind};

use super::reduce::Told;
use super::spine::Core;

/// A handle that no real stream has: the stream of a process group's collectives.
pub const COLLECTIVES: u64 = 1 << 62;

/// A stream as PyTorch identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RawStream {
    /// The device of the stream.
    pub device: u32,
    /// The handle of the stream.
    pub raw: u64,
}

impl RawStream {
    pub fn of(device: u32, raw: u64) -> RawStream {
        RawStream { device, raw }
    }

    /// The handle under which the stream is known. Handles 0 and 1 are the default stream of the device, 2 that of the
    /// thread. Any other handle belongs to one stream of one device.
    fn key(self) -> RawStream {
        match self.raw {
            0 | 1 => RawStream { raw: 0, ..self },
            2 => self,
            raw if raw & COLLECTIVES != 0 => self,
            raw => RawStream::of(0, raw),
        }
    }
}

/// A stream that was observed.
pub struct Stream {
    pub raw: RawStream,
    pub name: String,
    /// The program's name for the stream, if it is known.
    pub called: Option<String>,
    /// The stacks at which that name was already looked up.
    asked: HashSet<u32>,
}

/// All streams, by number.
#[derive(Default)]
pub struct Streams {
    known: HashMap<RawStream, StreamId>,
    pub all: Vec<Stream>,
    /// The handles of streams that PyTorch did not make and for which the default stream waits.
    blocking: Vec<u64>,
}

impl Streams {
    /// The number of a stream, which is declared to the checker when it is new. All streams that PyTorch makes are
    /// non-blocking (R51).
    pub fn of(&mut self, raw: RawStream, sink: &mut Told) -> StreamId {
        if let Some(&known) = self.known.get(&raw.key()) {
            return known;
        }
        let id = StreamId(self.all.len() as u32);
        let (kind, name) = match raw.raw {
            0 | 1 => (StreamKind::Legacy, "default".to_owned()),
            2 => (StreamKind::PerThread, "per_thread".to_owned()),
            handle if self.blocking.contains(&handle) => {
                (StreamKind::Blocking, format!("stream{}", id.0))
            }
            handle if handle & COLLECTIVES != 0 => {
                (StreamKind::NonBlocking, format!("collectives{}", id.0))
            }
            _ => (StreamKind::NonBlocking, format!("stream{}", id.0)),
        };
        let name = match raw.device {
            0 => name,
            device => format!("{name}_of_cuda{device}"),
        };
        sink.take(&Record::stream(kind, DeviceId(raw.device), &name));
        self.known.insert(raw.key(), id);
        let (called, asked) = (None, HashSet::new());
        self.all.push(Stream {
            raw,
            name,
            called,
            asked,
        });
        id
    }

    pub fn get(&self, id: StreamId) -> Option<&Stream> {
        self.all.get(id.0 as usize)
    }

    /// The stream's name in the report: the program's name for it, unless another stream has this name, too.
    pub fn name(&self, id: StreamId) -> String {
        let Some(known) = self.get(id) else {
            return format!("stream{}", id.0);
        };
        let is_others = |name: &String| {
            let is_called =
                |other: &Stream| other.raw != known.raw && other.called.as_ref() == Some(name);
            let mut all = self.all.iter();
            all.any(|other| is_called(other) || other.name == *name)
        };
        let called = known.called.as_ref().filter(|name| !is_others(name));
        called.unwrap_or(&known.name).clone()
    }

    /// The stream's name in a call that a user can copy into the program.
    pub fn in_code(&self, id: StreamId) -> String {
        let name = self.name(id);
        match self.get(id).map(|known| (known.raw, known.name == name)) {
            Some((
                RawStream {
                    device: 0,
                    raw: 0 | 1,
                },
                true,
            )) => "torch.cuda.default_stream()".to_owned(),
            Some((RawStream { device, raw: 0 | 1 }, true)) => {
                format!("torch.cuda.default_stream({device})")
            }
            _ => name,
        }
    }

    /// Whether a stream is that of a group's collectives.
    pub fn is_collectives(&self, id: StreamId) -> bool {
        self.get(id)
            .is_some_and(|known| known.raw.raw & COLLECTIVES != 0)
    }

    /// The streams for the report.
    pub fn shown(&self) -> Value {
        let all = (0..self.all.len() as u32).map(StreamId);
        let all = all.filter(|id| !self.is_collectives(*id)).map(|id| {
            let RawStream { device, raw } = self.all[id.0 as usize].raw;
            json!({"name": self.name(id), "device": device, "handle": raw})
        });
        all.collect()
    }

    /// The number of a stream that PyTorch made, if the stream was observed.
    pub fn known(&self, handle: u64) -> Option<StreamId> {
        self.known.get(&RawStream::of(0, handle)).copied()
    }

    /// Whether the program's name for a stream is unknown, and was not yet looked up at this stack.
    pub fn lacks_name(&mut self, id: StreamId, stack: u32) -> bool {
        let stream = &mut self.all[id.0 as usize];
        stream.called.is_none() && stream.asked.insert(stack)
    }

    /// Learns the program's name for a stream. The first name is kept, since it was already reported.
    pub fn learn_name(&mut self, id: StreamId, name: String) {
        self.all[id.0 as usize].called.get_or_insert(name);
    }

    /// Marks a stream that PyTorch did not make as blocking: the default stream waits for it.
    pub fn note_blocking(&mut self, handle: u64) {
        if !self.blocking.contains(&handle) {
            self.blocking.push(handle);
        }
    }
}

impl Core {
    /// Learns the program's name for a stream.
    pub fn learn_name(&mut self, stream: RawStream, name: Option<String>) {
        // `torch.cuda.default_stream()` is a call, not a name in the program.
        if let Some(name) = name.filter(|name| !name.contains('(')) {
            let id = self.stream(stream);
            self.streams.learn_name(id, name);
        }
    }
}
