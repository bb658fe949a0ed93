//! The cost of single calls on the host.

use std::hint::black_box;
use std::time::Instant;

use sidestream::buffer::DeviceBuf;
use sidestream::device::Device;
use sidestream::explicit;
use sidestream::kernel::Grid;
use sidestream::ptx;
use sidestream::stream::Stream;
use sidestream_cli::failure::Failure;
use sidestream_cli::measure::raw::{self, Gpu};
use sidestream_cli::measure::rounds::{Side, interleaved};

use super::Bench;
use super::kernels::{self, Empty};
use super::table::{Bar, Row};

/// The number of calls in a batch: all fit in the driver's queue, so that none waits for the device.
const CALLS: u32 = 200;
/// The size of the memory that is allocated and freed.
const ALLOCATED_BYTES: usize = 1 << 20;

/// A call through the driver and through the runtime: microseconds each.
struct Call {
    what: &'static str,
    bar: Option<Bar>,
    raw: fn(&Raw<'_>) -> Result<f64, Failure>,
    own: fn(&mut Own) -> Result<f64, Failure>,
}

const LAUNCH: Option<Bar> = Some(Bar::Ratio(1.15));
const EVENT: Option<Bar> = Some(Bar::Ratio(1.2));
const LINK: Option<Bar> = Some(Bar::Ratio(1.3));
const ALLOCATION: Option<Bar> = Some(Bar::Ours(0.15));

const ROWS: [Call; 12] = [
    Call {
        what: "launch of an empty kernel, tracked",
        bar: LAUNCH,
        raw: |raw| raw.launches(),
        own: |own| own.launches(&own.a.clone()),
    },
    Call {
        what: "launch of an empty kernel, tracked, unmarked stream",
        bar: LAUNCH,
        raw: |raw| raw.launches(),
        own: |own| own.launches(&own.unmarked_a.clone()),
    },
    Call {
        what: "launch of an empty kernel, explicit",
        bar: LAUNCH,
        raw: |raw| raw.launches(),
        own: Own::explicit_launches,
    },
    Call {
        what: "event record, after a launch",
        bar: EVENT,
        raw: |raw| raw.records_behind_launches(),
        own: Own::records_behind_launches,
    },
    Call {
        what: "event record, explicit",
        bar: EVENT,
        raw: |raw| raw.records(),
        own: Own::explicit_records,
    },
    Call {
        what: "event wait, on a new event",
        bar: EVENT,
        raw: |raw| raw.waits_for_new_events(),
        own: Own::waits_for_new_events,
    },
    Call {
        what: "event wait, explicit",
        bar: EVENT,
        raw: |raw| raw.waits(),
        own: Own::explicit_waits,
    },
    Call {
        what: "make stream B wait for A, after a launch",
        bar: LINK,
        raw: |raw| raw.links_behind_launches(),
        own: Own::links_behind_launches,
    },
    Call {
        what: "make stream B wait for A, explicit",
        bar: LINK,
        raw: |raw| raw.links(),
        own: Own::explicit_links,
    },
    Call {
        what: "launch on A and make B wait for it, tracked",
        bar: None,
        raw: |raw| raw.launches_and_links(),
        own: Own::launches_and_links,
    },
    Call {
        what: "allocate and free 1 MiB, one stream",
        bar: ALLOCATION,
        raw: |raw| raw.allocations(),
        own: Own::allocations,
    },
    Call {
        what: "launch and synchronize",
        bar: None,
        raw: |raw| raw.round_trips(),
        own: Own::round_trips,
    },
];

/// All rows about calls.
pub fn rows(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let raw = bench.gpu.as_ref().map(Raw::new).transpose()?;
    let mut own = Own::new(&bench.own.device)?;
    let rows = ROWS.iter();
    rows.map(|call| compare(bench.rounds.calls, call, raw.as_ref(), &mut own))
        .collect()
}

fn compare(
    rounds: usize,
    call: &Call,
    raw: Option<&Raw<'_>>,
    own: &mut Own,
) -> Result<Row, Failure> {
    let mut sides: Vec<Side<'_>> = vec![Box::new(|| {
        let time = (call.own)(own)?;
        own.device.synchronize()?;
        Ok(time)
    })];
    if let Some(raw) = raw {
        sides.push(Box::new(|| {
            raw.gpu.enter()?;
            let time = (call.raw)(raw)?;
            raw.gpu.synchronize_all()?;
            Ok(time)
        }));
    }
    let times = interleaved(rounds, &mut sides)?;
    let raw = times.get(1).map(Vec::as_slice);
    Ok(Row::new(call.what, "us", raw, &times[0], call.bar))
}

/// The number of warm-up calls: the driver's memory pool, for one, is empty after each synchronization.
const FIRST: u32 = 10;

/// Microseconds per call of `call`, over this many consecutive calls.
fn in_a_row(calls: u32, mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    for _ in 0..FIRST {
        call()?;
    }
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls))
}

/// Microseconds per call of `call`, each timed alone after an untimed `prepare`. The cost of reading the clock is
/// subtracted.
fn one_by_one<T>(
    calls: u32,
    mut prepare: impl FnMut() -> Result<T, Failure>,
    mut call: impl FnMut(T) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for at in 0..FIRST + calls {
        let prepared = prepare()?;
        let start = Instant::now();
        call(prepared)?;
        let end = Instant::now();
        // The second pair of readings measures the cost of reading the clock.
        let own = end.elapsed();
        if at >= FIRST {
            sum += (end - start).saturating_sub(own).as_secs_f64();
        }
    }
    Ok(sum * 1e6 / f64::from(calls))
}

/// The driver's side.
struct Raw<'a> {
    gpu: &'a Gpu,
    empty: raw::Function,
    memory: raw::Memory,
    a: raw::Stream,
    b: raw::Stream,
    event: raw::Event,
}

impl Raw<'_> {
    fn new(gpu: &Gpu) -> Result<Raw<'_>, Failure> {
        let raw = Raw {
            gpu,
            empty: gpu.function(&ptx::EMPTY, "empty")?,
            memory: gpu.memory(1 << 20)?,
            a: gpu.stream()?,
            b: gpu.stream()?,
            event: gpu.event()?,
        };
        gpu.record(raw.event, raw.a)?;
        Ok(raw)
    }

    fn launch(&self) -> Result<(), Failure> {
        // SAFETY: the kernel has no parameters and touches no memory.
        unsafe {
            let args = [self.memory.address()];
            self.gpu.launch(self.empty, Grid::new(1, 32), args, self.a)
        }
    }

    fn link(&self) -> Result<(), Failure> {
        self.gpu.record(self.event, self.a)?;
        self.gpu.wait(self.b, self.event)
    }

    fn launches(&self) -> Result<f64, Failure> {
        in_a_row(CALLS, || self.launch())
    }

    fn records(&self) -> Result<f64, Failure> {
        in_a_row(CALLS, || self.gpu.record(self.event, self.a))
    }

    fn records_behind_launches(&self) -> Result<f64, Failure> {
        one_by_one(
            CALLS,
            || self.launch(),
            |()| self.gpu.record(self.event, self.a),
        )
    }

    fn waits(&self) -> Result<f64, Failure> {
        in_a_row(CALLS, || self.gpu.wait(self.b, self.event))
    }

    fn waits_for_new_events(&self) -> Result<f64, Failure> {
        let prepare = || {
            self.launch()?;
            self.gpu.record(self.event, self.a)
        };
        one_by_one(CALLS, prepare, |()| self.gpu.wait(self.b, self.event))
    }

    fn links(&self) -> Result<f64, Failure> {
        in_a_row(CALLS, || self.link())
    }

    fn links_behind_launches(&self) -> Result<f64, Failure> {
        one_by_one(CALLS, || self.launch(), |()| self.link())
    }

    fn launches_and_links(&self) -> Result<f64, Failure> {
        in_a_row(CALLS, || {
            self.launch()?;
            self.link()
        })
    }

    fn allocations(&self) -> Result<f64, Failure> {
        in_a_row(CALLS, || {
            self.gpu.allocate_and_free(ALLOCATED_BYTES, self.a)
        })
    }

    fn round_trips(&self) -> Result<f64, Failure> {
        in_a_row(CALLS, || {
            self.launch()?;
            self.gpu.synchronize(self.a)
        })
    }
}

/// The runtime's side.
struct Own {
    device: Device,
    empty: Empty,
    memory: DeviceBuf<u32>,
    a: Stream,
    b: Stream,
    /// Streams whose calls record no events, so that a later dependency records one itself.
    unmarked_a: Stream,
    unmarked_b: Stream,
    explicit_a: explicit::Stream,
    explicit_b: explicit::Stream,
    explicit_memory: explicit::DeviceMemory,
    event: explicit::Event,
}

impl Own {
    fn new(device: &Device) -> Result<Own, Failure> {
        let a = device.stream("a")?;
        let own = Own {
            device: device.clone(),
            empty: kernels::empty(),
            memory: a.alloc(1024)?,
            b: device.stream("b")?,
            a,
            unmarked_a: device.unmarked_stream("unmarked a")?,
            unmarked_b: device.unmarked_stream("unmarked b")?,
            explicit_a: explicit::Stream::non_blocking(device, "explicit a", 0)?,
            explicit_b: explicit::Stream::non_blocking(device, "explicit b", 0)?,
            explicit_memory: explicit::DeviceMemory::malloc(device, 4096)?,
            event: explicit::Event::new(device)?,
        };
        own.explicit_a.record(&own.event)?;
        Ok(own)
    }

    fn launch(&mut self, stream: &Stream) -> Result<(), Failure> {
        let grid = Grid::new(1, 32);
        Ok(stream.launch(&self.empty, grid, (self.memory.view_mut(),))?)
    }

    fn launches(&mut self, stream: &Stream) -> Result<f64, Failure> {
        in_a_row(CALLS, || self.launch(stream))
    }

    fn explicit_launches(&mut self) -> Result<f64, Failure> {
        let grid = Grid::new(1, 32);
        in_a_row(CALLS, || {
            let args = [explicit::Arg::Writes(self.explicit_memory.all())];
            // SAFETY: one stream orders all launches, and the memory is kept until the stream is synchronized.
            Ok(unsafe { self.explicit_a.launch(&self.empty, grid, &args) }?)
        })
    }

    fn explicit_records(&mut self) -> Result<f64, Failure> {
        in_a_row(CALLS, || Ok(self.explicit_a.record(&self.event)?))
    }

    /// The event is dropped as well.
    fn records_behind_launches(&mut self) -> Result<f64, Failure> {
        let a = self.unmarked_a.clone();
        one_by_one(
            CALLS,
            || self.launch(&a),
            |()| {
                black_box(a.record_event()?);
                Ok(())
            },
        )
    }

    fn explicit_waits(&mut self) -> Result<f64, Failure> {
        in_a_row(CALLS, || Ok(self.explicit_b.wait(&self.event)?))
    }

    fn waits_for_new_events(&mut self) -> Result<f64, Failure> {
        let (a, b) = (self.unmarked_a.clone(), self.unmarked_b.clone());
        let prepare = || {
            self.launch(&a)?;
            Ok(a.record_event()?)
        };
        one_by_one(CALLS, prepare, |event| Ok(b.wait_event(&event)?))
    }

    fn explicit_links(&mut self) -> Result<f64, Failure> {
        in_a_row(CALLS, || {
            Ok(self.explicit_b.wait_stream(&self.explicit_a)?)
        })
    }

    fn links_behind_launches(&mut self) -> Result<f64, Failure> {
        let (a, b) = (self.unmarked_a.clone(), self.unmarked_b.clone());
        one_by_one(CALLS, || self.launch(&a), |()| Ok(b.wait_stream(&a)?))
    }

    fn launches_and_links(&mut self) -> Result<f64, Failure> {
        let (a, b) = (self.a.clone(), self.b.clone());
        in_a_row(CALLS, || {
            self.launch(&a)?;
            Ok(b.wait_stream(&a)?)
        })
    }

    fn allocations(&mut self) -> Result<f64, Failure> {
        in_a_row(CALLS, || {
            black_box(self.a.alloc::<u8>(ALLOCATED_BYTES)?);
            Ok(())
        })
    }

    fn round_trips(&mut self) -> Result<f64, Failure> {
        let a = self.a.clone();
        in_a_row(CALLS, || {
            self.launch(&a)?;
            Ok(a.synchronize()?)
        })
    }
}
