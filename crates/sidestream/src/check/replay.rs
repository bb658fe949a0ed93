//! Checks a recorded run from its log, in one pass.

use std::io::Read;

use super::run::Run;
use super::{Names, Report};
use crate::log::{Error, Reader, Record};

/// The result of checking a log.
#[derive(Debug)]
pub struct Replay {
    /// The findings.
    pub report: Report,
    /// The names that the log gives to its streams, threads, buffers and events.
    pub names: Names,
    /// The call sites, by id; an unknown one is empty.
    pub sites: Vec<String>,
    /// The number of operations checked.
    pub ops: u64,
    /// If the log was cut off: the place, and the remedy. The report then covers the records before that place.
    pub cut: Option<Error>,
}

/// Checks the operations of a log, one after the other, without keeping them: memory grows with the
/// declarations and with the findings, not with the length of the run.
///
/// A call that CUDA refuses ends the check; the rest of the log is not read.
///
/// # Errors
/// Any error of [`Reader`], except that a log that was cut off gives a report with [`Replay::cut`] set. Also if a
/// legacy stream is declared after its first use, or if the streams, threads, events and buffers of the log would
/// take more than `memory_bytes`. That figure is an estimate; it leaves out buffers that are accessed in many small
/// parts.
pub fn replay<R: Read>(mut log: Reader<R>, memory_bytes: u64) -> Result<Replay, Error> {
    let mut run = Run::new(memory_bytes);
    let mut record = Record::default();
    let cut = loop {
        match log.read_into(&mut record) {
            Ok(true) => {}
            Ok(false) => break None,
            Err(error) if error.is_cut() => break Some(error),
            Err(error) => return Err(error),
        }
        let taken = run.take(&record);
        taken.map_err(|problem| Error {
            offset: log.offset(),
            problem,
        })?;
        if run.checker.error.is_some() {
            break None;
        }
    };
    Ok(Replay {
        report: run.report(),
        names: run.names(),
        sites: run.sites,
        ops: run.ops,
        cut,
    })
}
