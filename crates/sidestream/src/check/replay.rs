//! Checks a run from its log, in one pass.

use std::io::Read;

use super::report::numbered;
use super::{BufferDecl, Checker, Names, Place, Report};
use crate::log::{Error, Problem, Reader, Record, Within};
use crate::op::{Kind, Op};

/// What a log says.
#[derive(Debug)]
pub struct Replay {
    /// What was found.
    pub report: Report,
    /// What the log calls its streams, threads, buffers and events.
    pub names: Names,
    /// The call sites, by id. A site without a text is empty.
    pub sites: Vec<String>,
    /// How many operations were checked.
    pub ops: u64,
    /// If the log was cut off: where, and what to do. The report is then about what came before.
    pub cut: Option<Error>,
}

/// What a check may hold in memory unless it is told otherwise: 8 GiB.
pub const MEMORY_BYTES: u64 = 8 << 30;

/// Checks the operations of a log, one after the other. None of them is kept: memory grows with
/// what is declared and with what is found, not with the length of the run.
///
/// A call that CUDA refuses ends the check, and the rest of the log is not read.
///
/// # Errors
/// What [`Reader`] finds wrong with the log, except that a log that was cut off gives a report and
/// says so in [`Replay::cut`]. Besides: a legacy stream that is declared after its first use, and
/// a log whose streams, threads, events and buffers would take more than `memory_bytes`. That is
/// an estimate, and leaves out memory that is used in many small parts at once.
pub fn replay<R: Read>(mut log: Reader<R>, memory_bytes: u64) -> Result<Replay, Error> {
    let mut run = Run {
        checker: Checker::new(),
        names: Names::default(),
        sites: Vec::new(),
        ops: 0,
        room: Room {
            limit_bytes: memory_bytes,
            ..Room::default()
        },
    };
    let mut record = Record::default();
    let cut = loop {
        match log.read_into(&mut record) {
            Ok(true) => {}
            Ok(false) => break None,
            Err(error) if error.is_cut() => break Some(error),
            Err(error) => return Err(error),
        }
        let taken = run.take(&mut record);
        taken.map_err(|problem| Error {
            offset: log.offset(),
            problem,
        })?;
        if run.checker.error.is_some() {
            break None;
        }
    };
    run.name_streams();
    Ok(Replay {
        report: run.checker.report(),
        names: run.names,
        sites: run.sites,
        ops: run.ops,
        cut,
    })
}

struct Run {
    checker: Checker,
    names: Names,
    sites: Vec<String>,
    ops: u64,
    room: Room,
}

impl Run {
    fn take(&mut self, record: &mut Record) -> Result<(), Problem> {
        match record {
            Record::Op(op) => return self.op(op),
            Record::Stream {
                id,
                kind,
                device,
                name,
            } => {
                self.room.chains += 1;
                let known = self.checker.order_mut().add_stream(*kind, *device);
                if known != *id {
                    return Err(Problem::LateLegacy);
                }
                self.names.streams.push(std::mem::take(name));
            }
            Record::Event {
                id,
                timing,
                device,
                name,
            } => {
                self.room.records += 1;
                self.room.fixed_bytes += EVENT_BYTES + name.len() as u64;
                self.checker.order_mut().add_event(*timing, *device);
                set(&mut self.names.events, "event", id.0, name);
            }
            Record::Buffer {
                id,
                memory,
                bytes,
                within,
                name,
            } => {
                self.room.fixed_bytes += BUFFER_BYTES + name.len() as u64;
                let place = match *within {
                    None => Place::Fresh,
                    Some(Within { buffer, start }) => Place::Within { buffer, start },
                };
                self.checker.add_buffer(BufferDecl {
                    memory: *memory,
                    bytes: *bytes,
                    place,
                });
                set(&mut self.names.buffers, "buffer", id.0, name);
            }
            Record::Thread { id, name } => {
                self.room.chains += 1;
                set(&mut self.names.threads, "t", id.0, name);
            }
            Record::Site { text, .. } => {
                self.room.fixed_bytes += SITE_BYTES + text.len() as u64;
                self.sites.push(std::mem::take(text));
            }
            Record::Pool { op, asked, size } => self.checker.note_pool(*op, *asked, *size),
        }
        self.room.check()
    }

    fn found_bytes(&self) -> u64 {
        let races = self.checker.races.len() as u64 * RACE_BYTES;
        races + self.checker.lints.list.len() as u64 * LINT_BYTES
    }

    /// The log need not name its streams, nor declare a legacy stream that only blocking calls use.
    fn name_streams(&mut self) {
        let mut streams = Names::of_legacy_streams(self.checker.order()).streams;
        let given = self.names.streams.drain(..);
        for (name, given) in streams.iter_mut().zip(given) {
            if !given.is_empty() {
                *name = given;
            }
        }
        self.names.streams = streams;
    }

    #[inline]
    fn op(&mut self, op: &Op) -> Result<(), Problem> {
        // What these freeze is kept: a record for each flag and graph, and one for each stream that
        // the free of a buffer has to mind.
        match op.kind {
            Kind::RecordStream { .. } => self.room.add_record()?,
            Kind::HostFunc {
                raises: Some(flag), ..
            }
            | Kind::SetFlag { flag }
            | Kind::WaitFlag { flag } => self.room.flag(flag.0)?,
            Kind::GraphLaunch { graph, .. } => self.room.graph(graph.0)?,
            _ => {}
        }
        self.ops += 1;
        // A refused call is in the report.
        let _refused = self.checker.push(op);
        let found = self.found_bytes();
        if found > self.room.found_bytes {
            self.room.found_bytes = found;
            self.room.check()?;
        }
        self.room.steps += self.checker.steps.len() as u64;
        if self.room.steps > MAX_STEPS {
            let (what, limit) = ("steps of streams and threads", MAX_STEPS);
            return Err(Problem::TooMuch { what, limit });
        }
        Ok(())
    }
}

/// Names an id, and those before it that have no name by their number.
fn set(names: &mut Vec<String>, what: &str, id: u32, name: &mut String) {
    if name.is_empty() {
        return;
    }
    while names.len() < id as usize {
        let unnamed = names.len() as u32;
        names.push(numbered(what, unnamed));
    }
    names.push(std::mem::take(name));
}

// ------------------------------------------------------------------ memory

/// Clocks count the steps of a chain in 32 bits. All chains together stay below that, so each does.
const MAX_STEPS: u64 = u32::MAX as u64 - (1 << 24);

// What the tables of checker and rule book take for each, about.
const EVENT_BYTES: u64 = 160;
const BUFFER_BYTES: u64 = 500;
const SITE_BYTES: u64 = 64;
const RACE_BYTES: u64 = 300;
const LINT_BYTES: u64 = 16;

/// How much memory a check may come to take for what was declared. Clocks are the large part: one
/// for every chain and every record, with an entry for every chain.
#[derive(Default)]
struct Room {
    limit_bytes: u64,
    fixed_bytes: u64,
    chains: u64,
    records: u64,
    found_bytes: u64,
    flags: u32,
    graphs: u32,
    steps: u64,
}

impl Room {
    fn check(&self) -> Result<(), Problem> {
        // A record keeps a clock and, in a capture, the nodes that it has seen.
        let clocks = self.chains * (self.chains + 2 * self.records) * 4;
        let needed_bytes = self.fixed_bytes + self.found_bytes + clocks;
        if needed_bytes > self.limit_bytes {
            let limit_bytes = self.limit_bytes;
            return Err(Problem::Memory { limit_bytes });
        }
        Ok(())
    }

    #[cold]
    fn add_record(&mut self) -> Result<(), Problem> {
        self.records += 1;
        self.check()
    }

    #[inline]
    fn flag(&mut self, id: u32) -> Result<(), Problem> {
        if id < self.flags {
            return Ok(());
        }
        self.records += u64::from(id + 1 - self.flags);
        self.flags = id + 1;
        self.check()
    }

    #[inline]
    fn graph(&mut self, id: u32) -> Result<(), Problem> {
        if id < self.graphs {
            return Ok(());
        }
        self.records += u64::from(id + 1 - self.graphs);
        self.graphs = id + 1;
        self.check()
    }
}
