//! The cost of the runtime itself, on a back end that does nothing.
//!
//!     cargo bench -p sidestream-benches --bench runtime
//!     cargo bench -p sidestream-benches --bench runtime --no-default-features
//!
//! The second command compiles the log out. Each figure is the median of many short runs, in nanoseconds per call;
//! the number of back-end calls is printed beside it.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sidestream::backend::{
    Address, Arg, Backend, Caps, Code, Create, Destroy, Done, Launch, Payload, Reserve,
};
use sidestream::buffer::Pinned;
use sidestream::device::{Device, Options};
use sidestream::error::Result;
use sidestream::explicit;
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::op::{
    Accesses, DeviceId, EventId, Kind, Memory, Mode, Op, OpId, SiteId, StreamId, ThreadId,
};

/// A back end that accepts everything and does nothing; every query finds the work complete, or none does.
struct Nothing {
    caps: Vec<Caps>,
    next: AtomicU64,
    is_over: bool,
    /// When the back end last received a batch of small copies.
    gathered: Mutex<Option<Instant>>,
}

impl Nothing {
    fn gathered(&self) -> Instant {
        self.gathered.lock().unwrap().unwrap()
    }
}

// SAFETY: the back end touches no memory, and no code touches the addresses that it returns.
unsafe impl Backend for Nothing {
    fn devices(&self) -> &[Caps] {
        &self.caps
    }
    unsafe fn create(&self, _: Create<'_>) -> Result<()> {
        Ok(())
    }
    unsafe fn destroy(&self, _: Destroy) {}
    fn reserve(&self, wanted: Reserve) -> Result<Address> {
        Ok(Address(
            self.next.fetch_add(wanted.bytes, Ordering::Relaxed),
        ))
    }
    unsafe fn unreserve(&self, _: Memory, _: DeviceId, _: Address) {}
    unsafe fn register(&self, _: Address, _: u64) -> Result<()> {
        Ok(())
    }
    unsafe fn unregister(&self, _: Address) {}
    fn prepare(&self, _: DeviceId, _: &Arc<Code>) -> Result<()> {
        Ok(())
    }
    #[inline(never)]
    unsafe fn submit(&self, op: &Op, payload: Payload<'_>) -> Result<()> {
        if let Payload::Gather(_) = payload {
            *self.gathered.lock().unwrap() = Some(Instant::now());
        }
        black_box((op, &payload));
        Ok(())
    }
    #[inline(never)]
    fn query(&self, op: &Op) -> Result<bool> {
        black_box(op);
        Ok(self.is_over)
    }
    #[inline(never)]
    fn peek(&self, op: &Op) -> Result<bool> {
        black_box(op);
        Ok(self.is_over)
    }
    fn wait(&self, _: &Op, _: Duration) -> Result<bool> {
        Ok(true)
    }
    fn elapsed_ns(&self, _: EventId, _: EventId) -> Result<f64> {
        Ok(0.0)
    }
    fn keep_times(&self, _: bool) {}
    fn take_times(&self, _: &mut Vec<Done>) {}
    fn raw_stream(&self, _: StreamId) -> Option<u64> {
        None
    }
}

fn nothing(is_over: bool) -> Arc<Nothing> {
    let caps = Caps {
        name: "nothing".into(),
        memory_bytes: 1 << 40,
        memory_bytes_per_s: 1e12,
        flops_per_s: 1e12,
        link_bytes_per_s: 1e10,
        priorities: (-5, 0),
        extends_memory: true,
        shares_events: false,
    };
    Arc::new(Nothing {
        caps: vec![caps],
        next: AtomicU64::new(1 << 40),
        is_over,
        gathered: Mutex::new(None),
    })
}

type Scale = Kernel<(Read<f32>, Write<f32>)>;

fn main() {
    let rounds = 400;
    println!(
        "log {}",
        if cfg!(feature = "observe") {
            "there, and off"
        } else {
            "compiled out"
        }
    );

    let backend = nothing(false);
    let device = Device::on(backend.clone(), &Options::new()).remove(0);
    // SAFETY: no work runs on this back end.
    let bare = Device::on(backend, &unsafe { Options::new().untracked() }).remove(0);
    let kernel = Scale::on_host("scale", |_, _| ());
    let grid = Grid::new(1, 32);

    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let (mut x, mut y) = (a.alloc(1024).unwrap(), a.alloc(1024).unwrap());
    let free = bare.stream("a").unwrap();
    let (from, mut to) = (free.alloc(1024).unwrap(), free.alloc(1024).unwrap());

    // Every figure below includes this: the op, its payload, and a call through the trait.
    let raw = nothing(false);
    let code = Arc::new(Code::new("scale"));
    show("launch, the back end alone", rounds, || {
        let kind = Kind::kernel(StreamId(0));
        let op = Op {
            id: OpId(0),
            thread: ThreadId(0),
            site: SiteId(0),
            kind,
            accesses: Accesses::new(),
        };
        let arg = |mode| Arg::Memory {
            at: Address(512),
            bytes: 4096,
            mode,
        };
        let args = [arg(Mode::Read), arg(Mode::Write)];
        let launch = Launch {
            code: &code,
            grid,
            args: &args,
        };
        let raw: &dyn Backend = black_box(&*raw);
        // SAFETY: no work runs on this back end.
        unsafe { raw.submit(&op, Payload::Launch(launch)).unwrap() };
    });
    show("launch, untracked", rounds, || {
        free.launch(&kernel, grid, (from.view(), to.view_mut()))
            .unwrap();
    });
    show("launch, tracked, one stream", rounds, || {
        a.launch(&kernel, grid, (x.view(), y.view_mut())).unwrap();
    });
    show(
        "two launches, tracked, x to y on a, y to x on b",
        rounds,
        || {
            a.launch(&kernel, grid, (x.view(), y.view_mut())).unwrap();
            b.launch(&kernel, grid, (y.view(), x.view_mut())).unwrap();
        },
    );
    show("memset, tracked, a quarter of 16", rounds, {
        let mut parts = a.alloc::<f32>(4096).unwrap();
        let (a, mut n) = (a.clone(), 0);
        move || {
            n = (n + 1) % 16;
            a.memset(parts.slice_mut(256 * n..256 * (n + 1)), 0)
                .unwrap();
        }
    });
    show("record_event after work", rounds, || {
        a.launch(&kernel, grid, (x.view(), y.view_mut())).unwrap();
        black_box(a.record_event().unwrap());
    });
    show("wait_stream, new work each time", rounds, || {
        a.launch(&kernel, grid, (x.view(), y.view_mut())).unwrap();
        b.wait_stream(&a).unwrap();
    });
    unmarked(&device, &kernel, rounds);
    explicit(&device, rounds);
    show("allocate and free, one stream", rounds, || {
        black_box(a.alloc::<f32>(1024).unwrap());
    });
    let over = nothing(true);
    let quick = Device::on(over.clone(), &Options::new()).remove(0);
    let (a, b) = (quick.stream("a").unwrap(), quick.stream("b").unwrap());
    show("allocate, two memsets on two streams, free", rounds, || {
        let mut z = a.alloc::<f32>(1024).unwrap();
        a.memset(z.view_mut(), 0).unwrap();
        b.memset(z.view_mut(), 0).unwrap();
    });
    pieces(&quick, &over, rounds);
    let mut graph = quick.graph();
    let (x, y) = (a.alloc(1024).unwrap(), a.alloc(1024).unwrap());
    let (x, y) = (graph.own(x).unwrap(), graph.own(y).unwrap());
    for _ in 0..100 {
        graph
            .launch(&kernel, grid, (x.view(), y.view_mut()))
            .unwrap();
    }
    let mut graph = graph.build().unwrap();
    show(
        "launch of a graph of 100 nodes, two buffers",
        rounds,
        || {
            black_box(graph.launch(&a).unwrap());
        },
    );
    threads();
}

/// Streams whose calls record no events: a later dependency records one itself.
fn unmarked(device: &Device, kernel: &Scale, rounds: usize) {
    let grid = Grid::new(1, 32);
    let (a, b) = (
        device.unmarked_stream("unmarked a").unwrap(),
        device.unmarked_stream("unmarked b").unwrap(),
    );
    let (x, mut y) = (a.alloc(1024).unwrap(), a.alloc(1024).unwrap());
    let mut launch = || a.launch(kernel, grid, (x.view(), y.view_mut())).unwrap();
    show("unmarked: launch", rounds, &mut launch);
    show("unmarked: launch, record_event", rounds, || {
        launch();
        black_box(a.record_event().unwrap());
    });
    show("unmarked: launch, record_event, wait_event", rounds, || {
        launch();
        let event = a.record_event().unwrap();
        b.wait_event(&event).unwrap();
    });
    show("unmarked: launch, wait_stream", rounds, || {
        launch();
        b.wait_stream(&a).unwrap();
    });
}

/// Records and waits in the explicit style.
fn explicit(device: &Device, rounds: usize) {
    let stream = |name| explicit::Stream::non_blocking(device, name, 0).unwrap();
    let (a, b) = (stream("explicit a"), stream("explicit b"));
    let event = explicit::Event::new(device).unwrap();
    show("explicit record", rounds, || a.record(&event).unwrap());
    show("explicit wait", rounds, || b.wait(&event).unwrap());
    show("explicit wait_stream", rounds, || {
        b.wait_stream(&a).unwrap()
    });
}

/// Many pieces in one call: the time before the back end gets the call, for which the device has to wait, and the
/// whole time.
fn pieces(device: &Device, nothing: &Nothing, rounds: usize) {
    const PIECES: usize = 500;
    let stream = device.stream("pieces").unwrap();
    let mut to = stream.alloc::<u32>(PIECES * 64).unwrap();
    let pieces = (0..PIECES).map(|_| device.pinned(64).unwrap());
    let mut pieces: Vec<Pinned<u32>> = pieces.collect();
    let (mut before, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let pending = stream.upload_pieces(pieces, to.view_mut()).unwrap();
        whole.push(start.elapsed());
        before.push(nothing.gathered().duration_since(start));
        pieces = pending.synchronize().unwrap();
    }
    tell("upload_pieces of 500, before the back end", &mut before);
    tell("upload_pieces of 500", &mut whole);
}

/// Launches on eight streams by as many threads, compared with one thread on one stream.
fn threads() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let per_thread = 400_000;
    let run = |threads: usize| {
        let device = Device::on(nothing(false), &Options::new()).remove(0);
        let kernel = Scale::on_host("scale", |_, _| ());
        let start = Instant::now();
        std::thread::scope(|scope| {
            for n in 0..threads {
                let (device, kernel) = (&device, &kernel);
                scope.spawn(move || {
                    let stream = device.stream(&format!("s{n}")).unwrap();
                    let (x, mut y) = (stream.alloc(64).unwrap(), stream.alloc(64).unwrap());
                    for _ in 0..per_thread {
                        let args = (x.view(), y.view_mut());
                        stream.launch(kernel, Grid::new(1, 32), args).unwrap();
                    }
                });
            }
        });
        (threads * per_thread) as f64 / start.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..5).map(|_| run(8) / run(1)).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "eight threads on eight streams: {:.2} x one thread, on {cores} cores ({:.2} x the cores)",
        ratios[2],
        ratios[2] / cores as f64
    );
}

/// The median over `rounds` runs of 500 calls.
fn show(what: &str, rounds: usize, mut call: impl FnMut()) {
    const CALLS: u32 = 500;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        times.push(start.elapsed() / CALLS);
    }
    tell(what, &mut times);
}

fn tell(what: &str, times: &mut [Duration]) {
    times.sort();
    let tenth = times[times.len() / 10];
    println!(
        "{:>6} ns (fast tenth {:>5})  {what}",
        times[times.len() / 2].as_nanos(),
        tenth.as_nanos()
    );
}
