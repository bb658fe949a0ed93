//! A program as the op log of its run.

use sidestream::log::{Error, Within, Writer};
use sidestream::op::OpId;

use crate::lower::{Command, POOL_STREAMS, lower};
use crate::program::Program;

/// The log of a program: what a run of it would have recorded. Checking the log finds what checking
/// the program finds.
///
/// # Errors
/// If the program does not keep to the conditions of a log: a buffer that is larger than the bytes
/// it lies over, or more of something than a log may hold.
pub fn record(program: &Program) -> Result<Vec<u8>, Error> {
    let lowered = lower(program);
    let mut log = Writer::new(Vec::new())?;
    for stream in &lowered.streams {
        log.stream(stream.kind, stream.device, &stream.name)?;
    }
    for (&(timing, device), event) in lowered.events.iter().zip(&program.events) {
        log.event(timing, device, &event.name)?;
    }
    for buffer in &lowered.buffers {
        let within = buffer.over.map(|(buffer, start)| Within { buffer, start });
        let name = &program.buffers[buffer.name.0 as usize].name;
        log.buffer(buffer.memory, buffer.size_bytes, within, name)?;
    }
    for thread in &program.threads {
        log.thread(thread)?;
    }
    for site in &program.sites {
        log.site(site)?;
    }
    // An op without a site is its own, and its line says where.
    for op in &program.ops {
        log.site(&format!("line {}", op.line))?;
    }
    for (at, command) in lowered.commands.iter().enumerate() {
        match command {
            Command::Op(op) => log.op(op)?,
            Command::PoolGet { asked } => {
                let asked = u32::try_from(*asked).unwrap_or(u32::MAX);
                log.pool(OpId(at as u32), asked, POOL_STREAMS)?;
            }
            _ => {}
        }
    }
    log.finish()
}
