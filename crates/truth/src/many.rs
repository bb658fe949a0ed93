//! From seeds to what they come to.

use std::thread;

use sidestream_diagnose::{Limits, Options, Report, read_json};

use crate::job::Job;
use crate::judge::{Judged, Said, Truth};
use crate::tally::Tally;
use crate::write::trace;

/// Judges so many jobs, from a seed on, on all processors.
///
/// # Errors
/// A trace cannot be read.
pub fn many(count: u64, seed: u64) -> Result<Tally, String> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = |first: u64| -> Result<Tally, String> {
        let mut tally = Tally::default();
        for at in (first..count).step_by(threads as usize) {
            tally.add(&judged(seed.wrapping_add(at))?.0);
        }
        Ok(tally)
    };
    thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|at| scope.spawn(move || part(at)))
            .collect();
        let mut all = Tally::default();
        for part in parts {
            match part.join() {
                Ok(tally) => all.merge(tally?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}

/// Draws a job, records it, has its trace diagnosed, and judges what is said; with that trace.
///
/// # Errors
/// The trace cannot be read.
pub fn judged(seed: u64) -> Result<(Judged, Vec<u8>), String> {
    let job = Job::drawn(seed);
    let ran = job.recorded();
    let json = trace(&job, &ran);
    let read = read_json(&json, &Limits::default());
    let read = read.map_err(|why| format!("seed {seed}: the trace cannot be read: {why}"))?;
    let report = Report::of(read, &Options::default());
    let said = Said::of(&report, &job, &ran);
    Ok((Judged::of(&job, &Truth::of(&job), said), json))
}
