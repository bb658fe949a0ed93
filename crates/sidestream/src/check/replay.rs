//! Checks a run from its log, in one pass.

use std::io::Read;

use super::run::Run;
use super::{Names, Report};
use crate::log::{Error, Reader, Record};

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
