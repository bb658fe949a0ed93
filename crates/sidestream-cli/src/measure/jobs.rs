//! Runs the overlap job with the library's pipelines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sidestream::kernel::Kernel;
use sidestream::kernel::library::{self, OverlapStep};
use sidestream::pipeline::{BoxError, Failed, Pipeline, Running, per_row};

use super::own::Own;
use super::raw::job::grid;
use crate::failure::Failure;
use crate::overlap::job::Job;

/// Items that go through the pipeline before the clock starts, so that its slots already exist. The streams and the memory of
/// the driver's arrangements exist then too.
const BEFORE: u64 = 12;

/// Returns the milliseconds of a job in a pipeline of `slots` slots: from before the first call until the last result is ready.
/// The pinned memory is not refilled.
pub fn on_streams(own: &Own, job: &Job, slots: u32) -> Result<f64, Failure> {
    let (rows, work) = (job.batch_bytes as usize / 4, job.work);
    let kernel = step();
    let grid = grid(job.batch_bytes, own.sms);
    let source = Source::new(job);
    let running = Pipeline::new(&own.device, rows)
        .upload(per_row::<f32>(1))
        .stage("kernel", per_row::<f32>(1), move |at, x, y| {
            let args = (x.view(), y.view_mut(), at.rows() as u64, work);
            at.stream().launch(&kernel, grid, args)
        })
        .download(per_row::<f32>(1), |(_, y)| y)
        .depth(slots as usize)
        .fill(source.fill(own, rows));
    source.time(own, running)
}

/// Like [`on_streams`], but with a graph in each slot.
pub fn on_graphs(own: &Own, job: &Job, slots: u32) -> Result<f64, Failure> {
    let (rows, work) = (job.batch_bytes as usize / 4, job.work);
    let kernel = step();
    let grid = grid(job.batch_bytes, own.sms);
    let source = Source::new(job);
    let host = own.device.clone();
    let running = Pipeline::new(&own.device, rows)
        .graphs(
            per_row::<f32>(1),
            per_row::<f32>(1),
            move |stream, nodes| {
                let x = nodes.own(stream.alloc(rows)?)?;
                let y = nodes.own(stream.alloc(rows)?)?;
                let sent = nodes.own_pinned(host.pinned(rows)?)?;
                let back = nodes.own_pinned(host.pinned(rows)?)?;
                nodes.upload(sent, x.view_mut())?;
                let args = (x.view(), y.view_mut(), rows as u64, work);
                nodes.launch(&kernel, grid, args)?;
                nodes.download(y.view(), back)?;
                Ok((sent, back))
            },
        )
        .depth(slots as usize)
        .fill(source.fill(own, rows));
    source.time(own, running)
}

/// Returns the kernel of the overlap job: input, output, elements, work.
fn step() -> Kernel<OverlapStep> {
    // SAFETY: the pipelines pass the rows of their buffers, or fewer.
    unsafe { library::overlap_step() }
}

/// The source of the items, and the time at which the first measured item was requested.
struct Source {
    items: u64,
    start_ns: Arc<AtomicU64>,
}

type Fill<T> = Box<dyn FnMut(u64, &mut T) -> Result<Option<usize>, BoxError> + Send>;

impl Source {
    fn new(job: &Job) -> Source {
        Source {
            items: BEFORE + u64::from(job.count),
            start_ns: Arc::default(),
        }
    }

    fn fill<T>(&self, own: &Own, rows: usize) -> Fill<T> {
        let (device, clock) = (own.device.clone(), own.clock.clone());
        let (items, start_ns) = (self.items, Arc::clone(&self.start_ns));
        Box::new(move |index, _| {
            if index == BEFORE {
                device.synchronize()?;
                start_ns.store(clock.now_ns(), Ordering::Relaxed);
            }
            Ok((index < items).then_some(rows))
        })
    }

    fn time<I: Send + 'static, O: Send + 'static, H>(
        &self,
        own: &Own,
        running: Running<I, O, H>,
    ) -> Result<f64, Failure> {
        let (last, mut end_ns) = (self.items - 1, 0);
        let ran: Result<_, Failed> = running.run(|item| {
            if item.index() == last {
                end_ns = own.clock.now_ns();
            }
            Ok(())
        });
        ran.map_err(Failure::input)?;
        let start_ns = self.start_ns.load(Ordering::Relaxed);
        Ok(end_ns.saturating_sub(start_ns) as f64 / 1e6)
    }
}
