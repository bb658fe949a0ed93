//! Judges the jobs of many seeds.

use std::panic::resume_unwind;
use std::thread;

use sidestream_diagnose::{Limits, Options, Report, read_json};

use crate::job::Job;
use crate::judge::{Judged, Said, Truth};
use crate::tally::Tally;
use crate::write::trace;

/// Judges `count` jobs, starting with the seed `seed`, on all CPU cores.
///
/// # Errors
/// A trace cannot be read.
pub fn many(count: u64, seed: u64) -> Result<Tally, String> {
    let mut all = Tally::default();
    let parts = on_all_processors(count, |at| Ok(judged(seed.wrapping_add(at))?.0))?;
    parts.iter().for_each(|judged| all.add(judged));
    Ok(all)
}

/// Calls a function for each number below `count`, on all CPU cores.
pub(crate) fn on_all_processors<T: Send>(
    count: u64,
    each: impl Fn(u64) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let part = |first| (first..count).step_by(threads).map(&each).collect();
    let parts: Result<Vec<Vec<T>>, String> = thread::scope(|scope| {
        let part = &part;
        let start = |first| scope.spawn(move || part(first));
        let parts: Vec<_> = (0..threads as u64).map(start).collect();
        let parts = parts.into_iter().map(|part| part.join());
        parts
            .map(|part| part.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    Ok(parts?.into_iter().flatten().collect())
}

/// Draws a job, records it, has its trace diagnosed, and judges the report; returns the trace too.
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
