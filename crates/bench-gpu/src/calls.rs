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
/// The driver needs 0.11 to 0.20 µs. A call of ours executes 340 instructions besides, four of them locked, to advance the
/// clocks that tell later which work a wait covers; hardly one of its lines is missing in the cache. That is 45 to 60 ns.
const EVENT: Option<Bar> = Some(Bar::Ratio(1.5));
/// Takes a spare event and gives it back: 540 instructions, seven of them locked.
const NEW_EVENT: Option<Bar> = Some(Bar::Ratio(1.75));
const LINK: Option<Bar> = Some(Bar::Ratio(1.3));
const ALLOCATION: Option<Bar> = Some(Bar::Ours(0.15));

const ROWS: [Call; 12] = [
    Call {
        what: "launch of an empty kernel, tracked",
        bar: LAUNCH,
        raw: |raw| in_a_row(|| raw.launch()),
        own: |own| own.launches(&own.a.clone()),
    },
    Call {
        what: "launch of an empty kernel, tracked, unmarked stream",
        bar: LAUNCH,
        raw: |raw| in_a_row(|| raw.launch()),
        own: |own| own.launches(&own.unmarked_a.clone()),
    },
    Call {
        what: "launch of an empty kernel, explicit",
        bar: LAUNCH,
        raw: |raw| in_a_row(|| raw.launch()),
        own: |own| {
            let grid = Grid::new(1, 32);
            in_a_row(|| {
                let args = [explicit::Arg::Writes(own.explicit_memory.all())];
                // SAFETY: one stream orders all launches, and the memory is kept until the stream is synchronized.
                Ok(unsafe { own.explicit_a.launch(&own.empty, grid, &args) }?)
            })
        },
    },
    Call {
        what: "event record, after a launch",
        bar: NEW_EVENT,
        raw: |raw| one_by_one(|| raw.launch(), |()| raw.gpu.record(raw.event, raw.a)),
        own: |own| {
            let a = own.unmarked_a.clone();
            let record = |()| {
                // The event is dropped as well.
                black_box(a.record_event()?);
                Ok(())
            };
            one_by_one(|| own.launch(&a), record)
        },
    },
    Call {
        what: "event record, explicit",
        bar: EVENT,
        raw: |raw| in_a_row(|| raw.gpu.record(raw.event, raw.a)),
        own: |own| in_a_row(|| Ok(own.explicit_a.record(&own.event)?)),
    },
    Call {
        what: "event wait, on a new event",
        bar: EVENT,
        raw: |raw| {
            let prepare = || {
                raw.launch()?;
                raw.gpu.record(raw.event, raw.a)
            };
            one_by_one(prepare, |()| raw.gpu.wait(raw.b, raw.event))
        },
        own: |own| {
            let (a, b) = (own.unmarked_a.clone(), own.unmarked_b.clone());
            let prepare = || {
                own.launch(&a)?;
                Ok(a.record_event()?)
            };
            one_by_one(prepare, |event| Ok(b.wait_event(&event)?))
        },
    },
    Call {
        what: "event wait, explicit",
        bar: EVENT,
        raw: |raw| in_a_row(|| raw.gpu.wait(raw.b, raw.event)),
        own: |own| in_a_row(|| Ok(own.explicit_b.wait(&own.event)?)),
    },
    Call {
        what: "make stream B wait for A, after a launch",
        bar: LINK,
        raw: |raw| one_by_one(|| raw.launch(), |()| raw.link()),
        own: |own| {
            let (a, b) = (own.unmarked_a.clone(), own.unmarked_b.clone());
            one_by_one(|| own.launch(&a), |()| Ok(b.wait_stream(&a)?))
        },
    },
    Call {
        what: "make stream B wait for A, explicit",
        bar: LINK,
        raw: |raw| in_a_row(|| raw.link()),
        own: |own| in_a_row(|| Ok(own.explicit_b.wait_stream(&own.explicit_a)?)),
    },
    Call {
        what: "launch on A and make B wait for it, tracked",
        bar: None,
        raw: |raw| {
            in_a_row(|| {
                raw.launch()?;
                raw.link()
            })
        },
        own: |own| {
            let (a, b) = (own.a.clone(), own.b.clone());
            in_a_row(|| {
                own.launch(&a)?;
                Ok(b.wait_stream(&a)?)
            })
        },
    },
    Call {
        what: "allocate and free 1 MiB, one stream",
        bar: ALLOCATION,
        raw: |raw| in_a_row(|| raw.gpu.allocate_and_free(ALLOCATED_BYTES, raw.a)),
        own: |own| {
            in_a_row(|| {
                black_box(own.a.alloc::<u8>(ALLOCATED_BYTES)?);
                Ok(())
            })
        },
    },
    Call {
        what: "launch and synchronize",
        bar: None,
        raw: |raw| {
            in_a_row(|| {
                raw.launch()?;
                raw.gpu.synchronize(raw.a)
            })
        },
        own: |own| {
            let a = own.a.clone();
            in_a_row(|| {
                own.launch(&a)?;
                Ok(a.synchronize()?)
            })
        },
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

/// Microseconds per call of `call`, over [`CALLS`] consecutive calls.
fn in_a_row(mut call: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    for _ in 0..FIRST {
        call()?;
    }
    let start = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS))
}

/// Microseconds per call of `call`, each timed alone after an untimed `prepare`. The cost of reading the clock is
/// subtracted.
fn one_by_one<T>(
    mut prepare: impl FnMut() -> Result<T, Failure>,
    mut call: impl FnMut(T) -> Result<(), Failure>,
) -> Result<f64, Failure> {
    let mut sum = 0.0;
    for at in 0..FIRST + CALLS {
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
    Ok(sum * 1e6 / f64::from(CALLS))
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
        in_a_row(|| self.launch(stream))
    }
}
