//! Random logs of every kind of record.

use std::borrow::Cow;

use sidestream::backend::Done;
use sidestream::log::{Error, Record, Within, Writer, limits};
use sidestream::op::*;

use crate::drawn::Random;

impl Random {
    fn id(&mut self, bound: u32) -> u32 {
        self.below(u64::from(bound)) as u32
    }

    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Returns a number of random length.
    fn wide(&mut self) -> u64 {
        let bits = self.below(62);
        self.next() & ((1 << bits) - 1)
    }

    fn name(&mut self) -> String {
        let names = ["", "upload", "train.py:12", "größe", "λ → μ"];
        names[self.below(names.len() as u64) as usize].to_owned()
    }

    fn memory(&mut self) -> Memory {
        use Memory::{Device, Managed, Pageable, Pinned};
        [Device, Pinned, Pageable, Managed][self.below(4) as usize]
    }

    /// Returns a log of this many records: first some of each declaration, then random ones.
    pub fn records(&mut self, count: usize) -> Vec<Record<'static>> {
        let mut known = Known::default();
        let mut records = Vec::new();
        for declare in [
            Random::stream,
            Random::event,
            Random::buffer,
            Random::thread,
            Random::site,
        ] {
            records.push(declare(self, &mut known));
        }
        while records.len() < count {
            let record = match self.below(28) {
                0 => self.stream(&mut known),
                1 => self.event(&mut known),
                2 => self.buffer(&mut known),
                3 => self.thread(&mut known),
                4 => self.site(&mut known),
                5 => Record::Pool {
                    op: OpId(self.next() as u32),
                    asked: self.wide() as u32,
                    size: self.wide() as u32,
                },
                6 | 7 => self.span(&mut known),
                8 | 9 if known.next > 0 => self.done(&known),
                _ => Record::Op(Cow::Owned(self.op(&mut known))),
            };
            records.push(record);
        }
        records
    }

    fn stream(&mut self, known: &mut Known) -> Record<'static> {
        let device = DeviceId(self.id(3));
        let kind = match self.below(4) {
            0 => StreamKind::NonBlocking,
            1 => StreamKind::Blocking,
            2 if !known.legacy[device.0 as usize] => {
                known.legacy[device.0 as usize] = true;
                StreamKind::Legacy
            }
            _ => StreamKind::PerThread,
        };
        known.streams += 1;
        Record::Stream {
            kind,
            device,
            name: self.name().into(),
        }
    }

    fn event(&mut self, known: &mut Known) -> Record<'static> {
        known.events += 1;
        Record::Event {
            timing: self.yes(),
            device: self.yes().then(|| DeviceId(self.id(256))),
            name: self.name().into(),
        }
    }

    fn buffer(&mut self, known: &mut Known) -> Record<'static> {
        let within = (self.yes() && !known.buffers.is_empty()).then(|| {
            let buffer = self.id(known.buffers.len() as u32);
            let start = self.below(known.buffers[buffer as usize] + 1);
            let buffer = BufferId(buffer);
            Within { buffer, start }
        });
        let bytes = match within {
            None => self.wide(),
            Some(Within { buffer, start }) => {
                self.below(known.buffers[buffer.0 as usize] - start + 1)
            }
        };
        known.buffers.push(bytes);
        Record::Buffer {
            memory: self.memory(),
            bytes,
            within,
            name: self.name().into(),
        }
    }

    fn thread(&mut self, known: &mut Known) -> Record<'static> {
        known.threads += 1;
        Record::Thread {
            name: self.name().into(),
        }
    }

    fn site(&mut self, known: &mut Known) -> Record<'static> {
        known.sites += 1;
        Record::Site {
            text: self.name().into(),
        }
    }

    fn span(&mut self, known: &mut Known) -> Record<'static> {
        let thread = self.id(known.threads);
        known.depths.resize(known.threads as usize, 0);
        let depth = &mut known.depths[thread as usize];
        let enters = *depth == 0 || (*depth < limits::SPAN_DEPTH && self.yes());
        *depth = if enters { *depth + 1 } else { *depth - 1 };
        Record::Span {
            thread: ThreadId(thread),
            enters: enters.then(|| self.name().into()),
        }
    }

    fn done(&mut self, known: &Known) -> Record<'static> {
        let mut times = || {
            let start = self.wide() / 2;
            self.yes().then(|| (start, start + self.wide() / 2))
        };
        let (call_ns, work_ns) = (times(), times());
        let op = OpId(known.next - 1 - self.id(known.next));
        Record::Done(Done {
            op,
            call_ns,
            work_ns,
        })
    }

    fn op(&mut self, known: &mut Known) -> Op {
        if self.below(8) == 0 {
            known.next += self.id(1000);
        }
        known.next += 1;
        let mut accesses = Accesses::new();
        for _ in 0..self.below(5) {
            let buffer = self.id(known.buffers.len() as u32);
            let bytes = known.buffers[buffer as usize];
            let (mut start, mut end) = (0, bytes);
            if self.yes() {
                start = self.below(bytes + 1);
                end = start + self.below(bytes - start + 1);
            }
            let mode =
                [Mode::Read, Mode::Write, Mode::MayWrite, Mode::Atomic][self.below(4) as usize];
            let buffer = BufferId(buffer);
            accesses.push(Access {
                buffer,
                start,
                end,
                mode,
            });
        }
        Op {
            id: OpId(known.next - 1),
            thread: ThreadId(self.id(known.threads)),
            site: SiteId(self.id(known.sites)),
            kind: self.kind(known),
            accesses,
        }
    }

    fn kind(&mut self, known: &Known) -> Kind {
        let stream = StreamId(self.id(known.streams));
        let source = StreamId(self.id(known.streams));
        let event = EventId(self.id(known.events));
        let other = EventId(self.id(known.events));
        let buffer = BufferId(self.id(known.buffers.len() as u32));
        let earlier = BufferId(self.id(known.buffers.len() as u32));
        let flag = FlagId(self.id(20));
        let device = DeviceId(self.id(5));
        let (from, to) = (self.memory(), self.memory());
        let (yes, done) = (self.yes(), self.yes());
        match self.below(41) {
            0 => Kind::Kernel {
                stream,
                launches: 1 + self.wide() as u32 / 2,
            },
            1 => Kind::Copy { stream, from, to },
            2 => Kind::Memset { stream },
            3 => Kind::CopyBlocking { from, to },
            4 => Kind::MemsetBlocking { to },
            5 => Kind::HostFunc {
                stream,
                raises: yes.then_some(flag),
            },
            6 => Kind::GraphLaunch {
                stream,
                graph: GraphId(self.id(10)),
            },
            7 => Kind::MallocAsync { stream },
            8 => Kind::FreeAsync { stream },
            9 => Kind::Record { event, stream },
            10 => Kind::Wait { stream, event },
            11 => Kind::WaitStream { stream, source },
            12 => Kind::SyncStream { stream },
            13 => Kind::SyncEvent { event },
            14 => Kind::SyncDevice {
                device: yes.then_some(device),
            },
            15 => Kind::QueryStream { stream, done },
            16 => Kind::QueryEvent { event, done },
            17 => Kind::SetFlag { flag },
            18 => Kind::WaitFlag { flag },
            19 => Kind::HostAccess,
            20 => Kind::Alloc {
                buffer,
                stream: yes.then_some(stream),
                saw_events_of: done.then_some(earlier),
            },
            21 => Kind::RecordStream { buffer, stream },
            22 => Kind::Free { buffer },
            23 => Kind::CudaMalloc,
            24 => Kind::CudaFree {
                stream_ordered: yes,
            },
            25 => Kind::FreePinned,
            26 => Kind::Elapsed {
                from: event,
                to: other,
            },
            27 => Kind::CreateEvent { event },
            28 => Kind::DestroyEvent { event },
            29 => Kind::CreateStream { stream },
            30 => Kind::DestroyStream { stream },
            31 => Kind::SetDevice { device },
            32 => Kind::BeginCapture { stream },
            33 => Kind::EndCapture { stream },
            34 => Kind::CopyBatch {
                stream,
                from,
                to,
                source: match (yes, done) {
                    (true, _) => SourceOrder::Any,
                    (false, true) => SourceOrder::DuringCall,
                    (false, false) => SourceOrder::Stream,
                },
            },
            35 => Kind::WriteValue {
                stream,
                word: flag,
                value: self.wide() as u32,
                fenced: yes,
            },
            36 => Kind::WaitValue {
                stream,
                word: flag,
                value: self.wide() as u32,
                compare: match (yes, done) {
                    (true, true) => Compare::AtLeast,
                    (true, false) => Compare::Equal,
                    (false, true) => Compare::And,
                    (false, false) => Compare::Nor,
                },
            },
            37 => Kind::WaitOutside {
                stream: yes.then_some(stream),
            },
            38 => Kind::DependentKernel {
                stream,
                may_wait: yes,
            },
            39 => Kind::HostUnregister,
            _ => Kind::CopyPeer {
                stream,
                peer: device,
            },
        }
    }
}

#[derive(Default)]
struct Known {
    streams: u32,
    events: u32,
    threads: u32,
    sites: u32,
    buffers: Vec<u64>,
    legacy: [bool; 3],
    next: u32,
    /// By thread: the number of spans that the thread is in.
    depths: Vec<u32>,
}

/// Writes records.
pub fn write(records: &[Record<'_>]) -> Result<Vec<u8>, Error> {
    let mut log = Writer::new(Vec::new())?;
    for record in records {
        log.take(record)?;
    }
    log.finish()
}
