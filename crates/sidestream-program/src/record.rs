//! Converts a program to the records of its run.

use sidestream::log::{Error, Record, Within, Writer};
use sidestream::op::OpId;

use crate::lower::{Command, Lowered, POOL_STREAMS, lower};
use crate::program::Program;

/// Returns the log that a run of a program would have recorded. A check of the log finds what a check of the program
/// finds.
///
/// # Errors
/// If the program violates the conditions of a log: a buffer is larger than the bytes that it uses, or the program
/// exceeds another limit of a log.
pub fn record(program: &Program) -> Result<Vec<u8>, Error> {
    let lowered = lower(program);
    let mut log = Writer::new(Vec::new())?;
    for record in records(program, &lowered) {
        log.take(&record)?;
    }
    log.finish()
}

/// Returns the declarations of a program, then its calls.
pub(crate) fn records<'a>(
    program: &'a Program,
    lowered: &'a Lowered,
) -> impl Iterator<Item = Record<'a>> {
    let streams = lowered.streams.iter();
    let streams = streams.map(|stream| Record::stream(stream.kind, stream.device, &stream.name));
    let events = lowered.events.iter().zip(&program.events);
    let events =
        events.map(|(&(timing, device), event)| Record::event(timing, device, &event.name));
    let buffers = lowered.buffers.iter().map(|buffer| {
        let within = buffer.over.map(|(buffer, start)| Within { buffer, start });
        let name = &program.buffers[buffer.name.0 as usize].name;
        Record::buffer(buffer.memory, buffer.size_bytes, within, name)
    });
    let threads = program.threads.iter().map(Record::thread);
    let sites = program.sites.iter().map(Record::site);
    // An op without a site is its own site, which its line identifies.
    let lines = program
        .ops
        .iter()
        .map(|op| Record::site(format!("line {}", op.line)));
    let calls = (0..)
        .zip(&lowered.commands)
        .filter_map(|(at, command)| match command {
            Command::Op(op) => Some(Record::op(op)),
            Command::PoolGet { asked } => Some(Record::Pool {
                op: OpId(at),
                asked: u32::try_from(*asked).unwrap_or(u32::MAX),
                size: POOL_STREAMS,
            }),
            Command::Hold(_) | Command::Release(_) | Command::SetCapacity { .. } => None,
        });
    let places = threads.chain(sites).chain(lines);
    streams
        .chain(events)
        .chain(buffers)
        .chain(places)
        .chain(calls)
}
