//! `sidestream devices --measure`: prints a device file with the figures that can be measured on a device.
//!
//! Every figure is measured with the library's explicit calls, so that a simulated device can be measured too. The tests do
//! that and compare the result with the file of the simulated device.

use std::fmt::Write as _;
use std::path::Path;

use sidestream::device::Device;
use sidestream::engine::Profile;
use sidestream::error::Result as Ran;
use sidestream::explicit::{self, Arg, DeviceMemory, Event, HostMemory, Region, Stream};
use sidestream::kernel::library::{self, OverlapStep};
use sidestream::kernel::{Grid, Kernel, KernelCost, Work};
use sidestream::ptx;

use crate::device::Named;
use crate::failure::Failure;
use crate::measure::own::Own;
use crate::measure::raw::Gpu;
use crate::measure::raw::devices::chip;
use crate::measure::rounds::median;

/// Bytes of the copies that measure the bandwidth of a link.
const LARGE: u64 = 64 << 20;
/// Bytes of the copies that measure the fixed cost of a copy.
const SMALL: [u64; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Calls in a row: few enough that the driver's queue does not fill and block a call.
const CALLS: u32 = 200;
/// Each figure is the median of this many rounds.
const ROUNDS: usize = 7;
/// Steps per thread of a short and of a long kernel. The difference of their times contains neither start nor end.
const STEPS: [u32; 2] = [2_000, 10_000];
/// Steps of the kernel during which a queue fills: it takes milliseconds.
const HOLD: u32 = 4_000_000;

/// Returns the text of a device file: the figures measured on the device, and the rest from the file `like`; by default from
/// that of the same model, or else of the H200.
pub fn file(device: &Named, driver: Option<&Path>, like: Option<&str>) -> Result<String, Failure> {
    let (own, profile, said, kind) = match device {
        Named::Cuda(number) => {
            let gpu = Gpu::open_or(driver, *number, "`sidestream devices --measure sim:h200`")?;
            let own = Own::cuda(&gpu, *number, driver)?;
            (own, gpu.described()?, "reported by the driver", "")
        }
        Named::Simulated(profile) => {
            let profile = Profile::clone(profile);
            let own = Own::simulated(profile.clone());
            (own, profile, "the simulated device's own", "a simulated ")
        }
    };
    let figures = Bench::new(own, &profile)?.all(&profile, said)?;
    let name = &profile.name;
    let head = format!("# {kind}{name}, measured by `sidestream devices --measure`.\n");
    let plain = name.to_lowercase().replace(' ', "");
    let same = Profile::NAMES
        .into_iter()
        .filter(|model| plain.contains(model));
    let same = same
        .max_by_key(|model| model.len())
        .filter(|_| matches!(device, Named::Cuda(_)));
    let like = like.or(Profile::text(same.unwrap_or(Profile::NAMES[0])));
    Ok(head + &written(name, &figures, like.unwrap_or_default()))
}

/// A figure: its place in the file, its value and its source.
type Figure = (&'static str, f64, String);

/// Takes a measured figure and how it was measured.
type Put<'a> = &'a mut dyn FnMut(&'static str, f64, &str);

/// Returns the file `like` with these figures in place of its own; the source of each other figure names the device it is
/// assumed from.
fn written(name: &str, figures: &[Figure], like: &str) -> String {
    let value = |line: &str| {
        let (_, rest) = line.split_once("= { value = ")?;
        Some(rest.split_once(", source = ")?.0.to_owned())
    };
    let of = like.lines().find_map(|line| line.strip_prefix("name = "));
    let of = of.unwrap_or("another device").trim_matches('"');
    let mut out = format!("name = {name:?}\n");
    let mut section = "";
    for line in like.lines() {
        if let Some(title) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = title;
            // Peaks by type cannot be measured here, and another device's do not apply.
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

/// The device, streams, kernels and memory that the measurements use.
struct Bench {
    device: Device,
    step: Kernel<OverlapStep>,
    empty: Kernel<()>,
    /// A grid of blocks of 256 threads that fills every thread slot of the device exactly once.
    full: Grid,
    a: Stream,
    b: Stream,
    /// A stream in which only events are recorded, so that they complete at once.
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
    fn new(own: Own, chip: &Profile) -> Ran<Bench> {
        let device = own.device;
        Ok(Bench {
            // SAFETY: each launch below passes at most the number of values in its views.
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

    fn all(&self, profile: &Profile, said: &str) -> Ran<Vec<Figure>> {
        let mut all = chip(profile, said);
        let mut put = |place, value: f64, how: &str| {
            // More digits than the measurement justifies.
            let digits = if value < 100.0 { 1e3 } else { 1.0 };
            all.push((
                place,
                (value * digits).round() / digits,
                format!("measured: {how}"),
            ));
        };
        self.compute(profile, &mut put)?;
        self.link(&mut put)?;
        self.calls(&mut put)?;
        Ok(all)
    }

    fn compute(&self, chip: &Profile, put: Put<'_>) -> Ran<()> {
        let warp = Grid::new(1, 32);
        let chain_ns =
            per_step(STEPS.map(|work| self.queued(20, || self.kernel(&self.a, warp, work))))?;
        let both = |work| {
            self.kernel(&self.a, self.full, work)?;
            self.kernel(&self.b, self.full, work)
        };
        let issue_ns = per_step(STEPS.map(|work| self.across(8, || both(work))))? / 2.0;
        // A multiprocessor has four schedulers; this is the number of 32-thread warps for each.
        let warps = chip.threads_per_sm / 32.0 / 4.0;
        let how = "a long chain of dependent steps less a short one, of one warp";
        put("compute.chain_cycles", chain_ns * chip.clock_ghz, how);
        let how = "the same difference on a full device, on two streams";
        put(
            "compute.issue_cycles",
            issue_ns * chip.clock_ghz / warps,
            how,
        );

        let empty = || self.empty(&self.a);
        let gap_ns = self.queued(500, empty)?;
        put(
            "latency.kernel_gap_ns",
            gap_ns,
            "empty kernels in one stream, queued ahead",
        );
        // Stream `b` waits for stream `idle`, in which a kernel runs for longer than the timed calls take.
        let beside_ns = self.tries(|| {
            self.kernel(&self.idle, warp, 2 * HOLD)?;
            self.idle.record(&self.link)?;
            self.b.wait(&self.link)?;
            self.timed(500, empty)
        })?;
        let how = "empty kernels while another stream waits, compared with no waiting stream";
        put(
            "latency.pending_wait_ns",
            (beside_ns - gap_ns).max(0.0),
            how,
        );
        let turn = |one: &Stream, other: &Stream| {
            self.empty(one)?;
            one.record(&self.link)?;
            other.wait(&self.link)
        };
        let turns_ns = self.queued(200, || {
            turn(&self.a, &self.b)?;
            turn(&self.b, &self.a)
        })?;
        let how =
            "empty kernels in turn on two streams, compared with one stream while another waits";
        put(
            "latency.event_hop_ns",
            (turns_ns / 2.0 - beside_ns).max(0.0),
            how,
        );
        Ok(())
    }

    fn link(&self, put: Put<'_>) -> Ran<()> {
        let up = |bytes| self.upload(&self.a, bytes);
        let down = |bytes| self.download(&self.a, bytes);
        let one_ns = self.queued(16, || up(LARGE))?;
        let both_ns = self.across(16, || {
            up(LARGE)?;
            self.download(&self.b, LARGE)
        })?;
        put(
            "link.gb_s",
            LARGE as f64 / one_ns,
            "uploads of 64 MiB in one stream",
        );
        let how = "uploads of 64 MiB, alone and concurrent with downloads of 64 MiB";
        put("link.both_ways", (one_ns / both_ns).clamp(0.5, 1.0), how);
        let (uploads, downloads) = (self.by_size(&up)?, self.by_size(&down)?);
        let how = "64 KiB to 1 MiB back to back: a line through the times";
        put("link.upload_setup_ns", at_zero(&uploads), how);
        put("link.download_setup_ns", at_zero(&downloads), how);

        // A copy, a kernel and a copy, repeated: the time beyond their own times is that of three changes of engine.
        let kernel = || self.kernel(&self.a, Grid::new(1, 32), STEPS[0]);
        let gap_ns = self.queued(500, || self.empty(&self.a))?;
        let parts_ns = uploads[0].1 + downloads[0].1 + self.queued(100, kernel)? - gap_ns;
        let chain_ns = self.queued(100, || {
            up(SMALL[0])?;
            kernel()?;
            down(SMALL[0])
        })?;
        let how = "upload, kernel and download of 64 KiB in one stream, against the three alone";
        put(
            "latency.engine_hop_ns",
            ((chain_ns - parts_ns) / 3.0).max(0.0),
            how,
        );

        let pageable = |from: Region<'_>, to: Region<'_>| {
            // SAFETY: the memory lives as long as `self`, and each operation that uses it is waited for before the next.
            unsafe { self.a.memcpy(from, to) }?;
            self.a.synchronize()
        };
        let gb_s = |ns: f64| LARGE as f64 / ns;
        let (host, how) = (self.pageable.all(), "64 MiB, with the wait for it");
        let up_ns = self.called(4, || pageable(host, self.input.all()))?;
        put("link.pageable_upload_gb_s", gb_s(up_ns), how);
        let down_ns = self.called(4, || pageable(self.output.all(), host))?;
        put("link.pageable_download_gb_s", gb_s(down_ns), how);
        Ok(())
    }

    fn calls(&self, put: Put<'_>) -> Ran<()> {
        let (a, b, event) = (&self.a, &self.b, &self.link);
        let mut call = |place, how, each: &dyn Fn() -> Ran<()>| -> Ran<()> {
            put(place, self.called(CALLS, each)?, how);
            Ok(())
        };
        call(
            "calls.launch_ns",
            "launches of an empty kernel in a row",
            &|| self.empty(a),
        )?;
        call("calls.copy_ns", "uploads of 4 bytes in a row", &|| {
            self.upload(a, 4)
        })?;
        call("calls.record_ns", "records of an event in a row", &|| {
            a.record(event)
        })?;
        call(
            "calls.wait_ns",
            "waits for a recorded event in a row",
            &|| b.wait(event),
        )?;
        call("calls.query_ns", "queries of an event in a row", &|| {
            event.query().map(drop)
        })?;
        // SAFETY: the function does nothing.
        let nothing = || unsafe { a.host_func(&[], &[], || ()) };
        call("calls.host_func_ns", "host functions in a row", &nothing)?;
        call("calls.sync_ns", "synchronising an idle stream", &|| {
            a.synchronize()
        })?;
        let pair_ns = self.called(CALLS, || a.free_async(a.malloc_async(1 << 20)?))?;
        let how = "half of allocating and freeing 1 MiB in stream order";
        put("calls.malloc_async_ns", pair_ns / 2.0, how);
        put("calls.free_async_ns", pair_ns / 2.0, how);
        Ok(())
    }

    // ---------------------------------------------------------------- how it is measured

    /// Returns the median of several tries, after a first one that does not count.
    fn tries(&self, mut once: impl FnMut() -> Ran<f64>) -> Ran<f64> {
        once()?;
        let times = (0..ROUNDS).map(|_| once()).collect::<Ran<Vec<f64>>>()?;
        Ok(median(&times))
    }

    /// Returns the device nanoseconds per call for `calls` calls on stream `a`.
    fn queued(&self, calls: u32, each: impl Fn() -> Ran<()>) -> Ran<f64> {
        self.tries(|| self.timed(calls, &each))
    }

    /// Runs one try of [`Bench::queued`]: all calls are enqueued before the first starts.
    fn timed(&self, calls: u32, each: impl Fn() -> Ran<()>) -> Ran<f64> {
        self.kernel(&self.a, Grid::new(1, 32), HOLD)?;
        // The first call is not timed: it follows other work.
        each()?;
        self.a.record(&self.start)?;
        (0..calls).try_for_each(|_| each())?;
        self.a.record(&self.end)?;
        explicit::synchronize(&self.device)?;
        self.end
            .elapsed_ns_since(&self.start)
            .map(|ns| ns / f64::from(calls))
    }

    /// Returns the device nanoseconds per call for `calls` calls that put work on both streams.
    fn across(&self, calls: u32, each: impl Fn() -> Ran<()>) -> Ran<f64> {
        self.tries(|| {
            self.kernel(&self.a, Grid::new(1, 32), HOLD)?;
            self.a.record(&self.start)?;
            self.b.wait(&self.start)?;
            (0..calls).try_for_each(|_| each())?;
            self.b.record(&self.link)?;
            self.a.wait(&self.link)?;
            self.a.record(&self.end)?;
            explicit::synchronize(&self.device)?;
            Ok(self.end.elapsed_ns_since(&self.start)? / f64::from(calls))
        })
    }

    /// Returns the host nanoseconds per call for `calls` calls, measured between two events of an idle stream.
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

    /// Returns, for each size of a copy, its bytes and its nanoseconds on the device.
    fn by_size(&self, copy: &dyn Fn(u64) -> Ran<()>) -> Ran<Vec<(f64, f64)>> {
        let sizes = SMALL.into_iter();
        sizes
            .map(|bytes| Ok((bytes as f64, self.queued(100, || copy(bytes))?)))
            .collect()
    }

    /// Launches a step kernel over one value for each thread.
    fn kernel(&self, on: &Stream, grid: Grid, work: u32) -> Ran<()> {
        let values = u64::from(grid.blocks[0]) * u64::from(grid.threads[0]);
        let (x, y) = (Arg::Reads(self.input.all()), Arg::Writes(self.output.all()));
        let args = [x, y, Arg::value(values), Arg::value(work)];
        // SAFETY: these are the kernel's arguments, and both buffers have more values. Nothing reads what it writes, so two of
        // these kernels may write it concurrently.
        unsafe { on.launch(&self.step, grid, &args) }
    }

    /// Launches a kernel that does nothing.
    fn empty(&self, on: &Stream) -> Ran<()> {
        // SAFETY: it has no parameters and touches nothing.
        unsafe { on.launch(&self.empty, Grid::new(1, 32), &[]) }
    }

    fn upload(&self, on: &Stream, bytes: u64) -> Ran<()> {
        // SAFETY: the memory lives as long as `self`, and nothing reads its contents.
        unsafe { on.memcpy(self.sent.bytes(..bytes), self.input.bytes(..bytes)) }
    }

    fn download(&self, on: &Stream, bytes: u64) -> Ran<()> {
        // SAFETY: as above.
        unsafe { on.memcpy(self.output.bytes(..bytes), self.back.bytes(..bytes)) }
    }
}

/// Returns the time of one more step, from the times of a short and a long kernel.
fn per_step([short, long]: [Ran<f64>; 2]) -> Ran<f64> {
    Ok((long? - short?) / f64::from(STEPS[1] - STEPS[0]))
}

/// Returns where the least-squares line through times over sizes meets size 0.
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
