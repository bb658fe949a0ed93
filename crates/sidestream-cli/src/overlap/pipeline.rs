//! Runs the job with the library's pipeline.

use sidestream::engine::Profile;
use sidestream::error::{Error, Result};
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::pipeline::{Cause, Pipeline, per_row};

use super::job::Job;
use crate::measure::own::Own;

/// The number of slots of the pipeline.
pub const SLOTS: u32 = 4;

/// Returns the time of the job in nanoseconds; `None` if the slots do not fit into this machine's memory. Only times are
/// simulated, and the pinned buffers need not be filled, as in the other arrangements.
pub fn time_ns(job: &Job, profile: &Profile) -> Result<Option<u64>> {
    let own = Own::simulated(profile.clone());
    let cost = job.kernel(profile);
    let kernel = Kernel::<(Read<u8>, Write<u8>)>::on_host("kernel", |_, _| ());
    let kernel = kernel.with_cost(move |_| cost);
    let (bytes, count) = (job.batch_bytes as usize, u64::from(job.count));
    let running = Pipeline::new(&own.device, bytes)
        .upload(per_row::<u8>(1))
        .stage("kernel", per_row::<u8>(1), move |at, x, y| {
            let grid = Grid::new(1, 256);
            at.stream().launch(&kernel, grid, (x.view(), y.view_mut()))
        })
        .download(per_row::<u8>(1), |(_, y)| y)
        .depth(SLOTS as usize)
        .fill(move |index, _| Ok((index < count).then_some(bytes)));
    match running.run(|_| Ok(())) {
        Ok(_) => Ok(Some(own.clock.now_ns())),
        Err(failed) => match failed.cause {
            Cause::Runtime(Error::OutOfMemory(_)) => Ok(None),
            Cause::Runtime(error) => Err(error),
            _ => Ok(None),
        },
    }
}
