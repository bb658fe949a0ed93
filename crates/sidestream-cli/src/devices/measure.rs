//! `sidestream devices --measure`: the file of a device, with what can be measured on it.
//!
//! Every figure is what the library's explicit calls reach, so that a simulated device can be measured too: what
//! comes out there is what its own file says, which is how this is tested.

use std::fmt::Write as _;
use std::path::Path;

use sidestream::device::Device;
use sidestream::error::Result as Ran;
use sidestream::explicit::{self, Arg, DeviceMemory, Event, HostMemory, Stream};
use sidestream::kernel::library::{self, OverlapStep};
use sidestream::kernel::{Grid, Kernel, KernelCost, Work};
use sidestream::ptx;

use crate::device::Named;
use crate::failure::Failure;
use crate::measure::own::Own;
use crate::measure::raw::Gpu;
use crate::measure::raw::devices::Chip;
use crate::measure::rounds::median;

/// What is copied to see how fast a link is.
const LARGE: u64 = 64 << 20;
/// What is copied to see what a copy costs beside its bytes.
const SMALL: [u64; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Calls in a row: few enough that none waits for room in the driver's queue.
const CALLS: u32 = 200;
/// Each figure is the median of so many tries.
const ROUNDS: usize = 7;
/// Steps of a thread in a short and in a long kernel. Their difference has no beginning and no end.
const STEPS: [u32; 2] = [2_000, 10_000];
/// Steps of the kernel behind which a queue fills: milliseconds.
const HOLD: u32 = 4_000_000;

/// The text of a device file: what is measured on the device, the rest from the text of another one.
pub fn file(device: &Named, driver: Option<&Path>, like: &str) -> Result<String, Failure> {
    let (own, chip, name) = match device {
        Named::Cuda(number) => {
            let gpu = Gpu::open(driver, *number)?;
            let own = Own::cuda(&gpu, *number, driver)?;
            (own, gpu.chip()?, gpu.name)
        }
        Named::Simulated(profile) => {
            let (chip, name) = (Chip::of(profile), profile.name.clone());
            (Own::simulated((**profile).clone()), chip, name)
        }
    };
    let figures = Bench::new(own, &chip)?.all(&chip)?;
    Ok(written(&name, &figures, like))
}

/// A figure with its place in the file and where it comes from.
type Figure = (&'static str, f64, String);

/// The file `like` with these figures in the place of its own; of the others it says whose they are.
fn written(name: &str, figures: &[Figure], like: &str) -> String {
    let value = |line: &str| {
        let (_, rest) = line.split_once("= { value = ")?;
        Some(rest.split_once(", source = ")?.0.to_owned())
    };
    let of = like.lines().find_map(|line| line.strip_prefix("name = "));
    let of = of.unwrap_or("another device").trim_matches('"');
    let mut out =
        format!("# {name}, measured by `sidestream devices --measure`.\nname = {name:?}\n");
    let mut section = "";
    for line in like.lines() {
        if let Some(title) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = title;
            // Peaks by type cannot be measured here, and another device's are not this one's.
            if section != "tensor" || of == name {
                let _ = writeln!(out, "\n{line}");
            }
        } else if let (Some((field, _)), Some(value)) = (line.split_once(" = "), value(line)) {
            let place = format!("{section}.{field}");
            let _ = match figures.iter().find(|(at, ..)| *at == place) {
                Some((_, own, source)) => {
                    writeln!(out, "{field} = {{ value = {own}, source = {source:?} }}")
                }
                None if of == name => writeln!(out, "{line}"),
                None if section == "tensor" => Ok(()),
                None => writeln!(
                    out,
                    "{field} = {{ value = {value}, source = \"assumed: as on the {of}\" }}"
                ),
            };
        }
    }
    out
}

/// What is measured with.
struct Bench {
    device: Device,
    step: Kernel<OverlapStep>,
    empty: Kernel<()>,
    /// Blocks of 256 threads that fill the device, one thread in each place.
    full: Grid,
    a: Stream,
    b: Stream,
    /// Has no work but its events, so that they complete as soon as they are recorded.
    idle: Stream,
    start: Event,
    end: Event,
    link: Event,
    input: DeviceMemory,
    output: DeviceMemory,
    sent: HostMemory,
    back: HostMemory,
    pageable: HostMemory,
}

impl Bench {
    fn new(own: Own, chip: &Chip) -> Ran<Bench> {
        let device = own.device;
        Ok(Bench {
            // SAFETY: each launch below is told at most the values of its views.
            step: unsafe { library::overlap_step() },
            // SAFETY: the entry has no parameters and touches no memory.
            empty: unsafe { Kernel::from_ptx(&ptx::EMPTY, "empty") }
                .and_on_host(|_, ()| ())
                .with_cost(|_| KernelCost::Grid(Work::elementwise(0, 4, 0, 32, 1))),
            full: Grid::new((chip.sms * chip.threads_per_sm) as u32 / 256, 256),
            a: Stream::non_blocking(&device, "a", 0)?,
            b: Stream::non_blocking(&device, "b", 0)?,
            idle: Stream::non_blocking(&device, "idle", 0)?,
            start: Event::timed(&device)?,
            end: Event::timed(&device)?,
            link: Event::new(&device)?,
            input: DeviceMemory::malloc(&device, LARGE)?,
            output: DeviceMemory::malloc(&device, LARGE)?,
            sent: HostMemory::pinned(&device, LARGE)?,
            back: HostMemory::pinned(&device, LARGE)?,
            pageable: HostMemory::pageable(&device, LARGE)?,
            device,
        })
    }

    fn all(&self, chip: &Chip) -> Ran<Vec<Figure>> {
        let mut all = chip.figures();
        self.compute(chip, &mut all)?;
        self.link(&mut all)?;
        self.calls(&mut all)?;
        Ok(all)
    }

    fn compute(&self, chip: &Chip, all: &mut Vec<Figure>) -> Ran<()> {
        let one = Grid::new(1, 32);
        let alone = STEPS.map(|work| self.queued(20, || self.kernel(&self.a, one, work)));
        let chain_ns = per_step(alone)?;
        let wide = STEPS.map(|work| {
            self.across(|| {
                for _ in 0..8 {
                    self.kernel(&self.a, self.full, work)?;
                    self.kernel(&self.b, self.full, work)?;
                }
                Ok(())
            })
        });
        let issue_ns = per_step(wide)? / 16.0;
        // A multiprocessor has four schedulers, and each has so many warps of 32 threads.
        let warps = chip.threads_per_sm / 32.0 / 4.0;
        all.push((
            "compute.chain_cycles",
            rounded(chain_ns * chip.clock_ghz),
            format!("measured: {chain_ns:.3} ns for each dependent step of one warp"),
        ));
        all.push((
            "compute.issue_cycles",
            rounded(issue_ns * chip.clock_ghz / warps),
            format!(
                "measured: {issue_ns:.2} ns for each step of a full device, kernels on two streams"
            ),
        ));
        let empty = || self.empty(&self.a);
        let gap_ns = self.queued(500, empty)?;
        all.push(ns(
            "latency.kernel_gap_ns",
            gap_ns,
            "empty kernels in one stream, queued ahead",
        ));
        // A stream that waits for another, behind a kernel that is longer than what is timed.
        let beside_ns = self.tries(|| {
            self.kernel(&self.idle, Grid::new(1, 32), 2 * HOLD)?;
            self.idle.record(&self.link)?;
            self.b.wait(&self.link)?;
            self.timed(500, empty)
        })?;
        let waiting_ns = (beside_ns - gap_ns).max(0.0);
        all.push(ns(
            "latency.pending_wait_ns",
            waiting_ns,
            "empty kernels while another stream waits, against none that does",
        ));
        let hop_ns = self.queued(200, || {
            self.empty(&self.a)?;
            self.a.record(&self.link)?;
            self.b.wait(&self.link)?;
            self.empty(&self.b)?;
            self.b.record(&self.link)?;
            self.a.wait(&self.link)
        })?;
        all.push(ns(
            "latency.event_hop_ns",
            (hop_ns / 2.0 - beside_ns).max(0.0),
            "empty kernels in turn on two streams, against one stream beside which another waits",
        ));
        Ok(())
    }

    fn link(&self, all: &mut Vec<Figure>) -> Ran<()> {
        let up = |bytes| self.upload(&self.a, bytes);
        let down = |stream, bytes| self.download(stream, bytes);
        let large_ns = self.queued(16, || up(LARGE))?;
        let gb_s = LARGE as f64 / large_ns;
        all.push((
            "link.gb_s",
            rounded(gb_s),
            "measured: uploads of 64 MiB in one stream".into(),
        ));
        let both_ns = self.across(|| {
            for _ in 0..16 {
                up(LARGE)?;
                down(&self.b, LARGE)?;
            }
            Ok(())
        })? / 16.0;
        all.push((
            "link.both_ways",
            rounded((large_ns / both_ns).clamp(0.5, 1.0)),
            format!("measured: {large_ns:.0} ns for 64 MiB one way, {both_ns:.0} ns with both"),
        ));
        let uploads = self.by_size(&up)?;
        all.push(ns(
            "link.upload_setup_ns",
            at_zero(&uploads),
            "uploads of 64 KiB to 1 MiB back to back: a line through their times",
        ));
        let downloads = self.by_size(&|bytes| down(&self.a, bytes))?;
        all.push(ns(
            "link.download_setup_ns",
            at_zero(&downloads),
            "downloads of 64 KiB to 1 MiB back to back: a line through their times",
        ));
        // A copy, a kernel and a copy, again and again: what they take above their own times are three changes of engine.
        let bytes = SMALL[0];
        let kernel = || self.kernel(&self.a, Grid::new(1, 32), STEPS[0]);
        let gap_ns = self.queued(500, || self.empty(&self.a))?;
        let parts_ns = uploads[0].1 + downloads[0].1 + self.queued(100, kernel)? - gap_ns;
        let chain_ns = self.queued(100, || {
            up(bytes)?;
            kernel()?;
            down(&self.a, bytes)
        })?;
        let hop_ns = ((chain_ns - parts_ns) / 3.0).max(0.0);
        all.push(ns(
            "latency.engine_hop_ns",
            hop_ns,
            "upload, kernel and download of 64 KiB in one stream, against the three alone",
        ));
        let timed = |from: &dyn Fn() -> Ran<()>| {
            self.called(4, || {
                from()?;
                self.a.synchronize()
            })
        };
        let rate = |ns: f64| rounded(LARGE as f64 / ns);
        // SAFETY: the memory lives as long as this, and what uses it is waited for before anything else does.
        let slow_up = timed(&|| unsafe { self.a.memcpy(self.pageable.all(), self.input.all()) })?;
        // SAFETY: as above.
        let slow_down =
            timed(&|| unsafe { self.a.memcpy(self.output.all(), self.pageable.all()) })?;
        all.push((
            "link.pageable_upload_gb_s",
            rate(slow_up),
            "measured: 64 MiB, with the wait for it".into(),
        ));
        all.push((
            "link.pageable_download_gb_s",
            rate(slow_down),
            "measured: 64 MiB, with the wait for it".into(),
        ));
        Ok(())
    }

    fn calls(&self, all: &mut Vec<Figure>) -> Ran<()> {
        let a = &self.a;
        let mut call = |place, what, calls, each: &dyn Fn() -> Ran<()>| -> Ran<()> {
            let took = self.called(calls, each)?;
            all.push(ns(place, took, what));
            Ok(())
        };
        call(
            "calls.launch_ns",
            "launches of an empty kernel in a row",
            CALLS,
            &|| self.empty(a),
        )?;
        call(
            "calls.copy_ns",
            "uploads of 4 bytes in a row",
            CALLS,
            &|| self.upload(a, 4),
        )?;
        call(
            "calls.record_ns",
            "records of an event in a row",
            CALLS,
            &|| a.record(&self.link),
        )?;
        call(
            "calls.wait_ns",
            "waits for a recorded event in a row",
            CALLS,
            &|| self.b.wait(&self.link),
        )?;
        call(
            "calls.query_ns",
            "queries of an event in a row",
            CALLS,
            &|| self.link.query().map(drop),
        )?;
        // SAFETY: the function does nothing.
        let nothing = || unsafe { a.host_func(&[], &[], || ()) };
        call(
            "calls.host_func_ns",
            "host functions in a row",
            CALLS,
            &nothing,
        )?;
        call(
            "calls.sync_ns",
            "synchronising an idle stream",
            CALLS,
            &|| a.synchronize(),
        )?;
        let pair_ns = self.called(CALLS, || a.free_async(a.malloc_async(1 << 20)?))?;
        all.push(ns(
            "calls.malloc_async_ns",
            pair_ns / 2.0,
            "half of allocating and freeing 1 MiB in stream order",
        ));
        all.push(ns(
            "calls.free_async_ns",
            pair_ns / 2.0,
            "half of allocating and freeing 1 MiB in stream order",
        ));
        Ok(())
    }

    // ---------------------------------------------------------------- how

    /// The median of some tries, behind one that does not count.
    fn tries(&self, mut once: impl FnMut() -> Ran<f64>) -> Ran<f64> {
        once()?;
        let times = (0..ROUNDS).map(|_| once()).collect::<Ran<Vec<f64>>>()?;
        Ok(median(&times))
    }

    /// Nanoseconds of the device for each of so many calls on stream `a`.
    fn queued(&self, calls: u32, each: impl Fn() -> Ran<()>) -> Ran<f64> {
        self.tries(|| self.timed(calls, &each))
    }

    /// One try of [`Bench::queued`]: all calls are enqueued before the first starts.
    fn timed(&self, calls: u32, each: impl Fn() -> Ran<()>) -> Ran<f64> {
        self.kernel(&self.a, Grid::new(1, 32), HOLD)?;
        // The first follows other work.
        each()?;
        self.a.record(&self.start)?;
        (0..calls).try_for_each(|_| each())?;
        self.a.record(&self.end)?;
        explicit::synchronize(&self.device)?;
        self.end
            .elapsed_ns_since(&self.start)
            .map(|ns| ns / f64::from(calls))
    }

    /// Nanoseconds of the device for work of both streams, from where both begin to where both are complete.
    fn across(&self, work: impl Fn() -> Ran<()>) -> Ran<f64> {
        self.tries(|| {
            self.kernel(&self.a, Grid::new(1, 32), HOLD)?;
            self.a.record(&self.start)?;
            self.b.wait(&self.start)?;
            work()?;
            self.b.record(&self.link)?;
            self.a.wait(&self.link)?;
            self.a.record(&self.end)?;
            self.a.synchronize()?;
            self.end.elapsed_ns_since(&self.start)
        })
    }

    /// Nanoseconds of the host for each of so many calls: between two events of a stream that is idle.
    fn called(&self, calls: u32, each: impl Fn() -> Ran<()>) -> Ran<f64> {
        self.tries(|| {
            explicit::synchronize(&self.device)?;
            self.idle.record(&self.start)?;
            (0..calls).try_for_each(|_| each())?;
            self.idle.record(&self.end)?;
            self.idle.synchronize()?;
            Ok(self.end.elapsed_ns_since(&self.start)? / f64::from(calls))
        })
    }

    /// Bytes, and nanoseconds of the device for a copy of so many.
    fn by_size(&self, copy: &dyn Fn(u64) -> Ran<()>) -> Ran<Vec<(f64, f64)>> {
        let sizes = SMALL.into_iter();
        sizes
            .map(|bytes| Ok((bytes as f64, self.queued(100, || copy(bytes))?)))
            .collect()
    }

    /// A step kernel over one value for each thread.
    fn kernel(&self, on: &Stream, grid: Grid, work: u32) -> Ran<()> {
        let values = u64::from(grid.blocks[0]) * u64::from(grid.threads[0]);
        let (x, y) = (Arg::Reads(self.input.all()), Arg::Writes(self.output.all()));
        let args = [x, y, Arg::value(values), Arg::value(work)];
        // SAFETY: these are the kernel's arguments, and both memories have more values. What it writes is never
        // looked at, so that two of them may write it at once.
        unsafe { on.launch(&self.step, grid, &args) }
    }

    /// A kernel that does nothing.
    fn empty(&self, on: &Stream) -> Ran<()> {
        // SAFETY: it has no parameters and touches nothing.
        unsafe { on.launch(&self.empty, Grid::new(1, 32), &[]) }
    }

    fn upload(&self, on: &Stream, bytes: u64) -> Ran<()> {
        // SAFETY: the memory lives as long as this, and nothing looks at what is in it.
        unsafe { on.memcpy(self.sent.bytes(..bytes), self.input.bytes(..bytes)) }
    }

    fn download(&self, on: &Stream, bytes: u64) -> Ran<()> {
        // SAFETY: as above.
        unsafe { on.memcpy(self.output.bytes(..bytes), self.back.bytes(..bytes)) }
    }
}

fn ns(place: &'static str, ns: f64, how: &str) -> Figure {
    (place, ns.round(), format!("measured: {how}"))
}

/// Three decimals, which is more than a measurement has.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// What one more step takes, from the times of a short and a long kernel.
fn per_step([short, long]: [Ran<f64>; 2]) -> Ran<f64> {
    Ok((long? - short?) / f64::from(STEPS[1] - STEPS[0]))
}

/// Where the line through times over sizes, by least squares, meets the size of nothing.
fn at_zero(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let sum = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let (x, y, xx, xy) = (
        sum(|p| p.0),
        sum(|p| p.1),
        sum(|p| p.0 * p.0),
        sum(|p| p.0 * p.1),
    );
    let slope = (n * xy - x * y) / (n * xx - x * x);
    ((y - slope * x) / n).max(0.0)
}
