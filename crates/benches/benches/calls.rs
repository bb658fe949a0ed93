//! Counts the instructions that a call of the runtime executes itself, through the back end for CUDA: the driver's
//! instructions are not counted. The driver may be the stand-in, so that no GPU is needed.
//!
//!     cargo build -p sidestream-stand-in --lib
//!     cargo bench -p sidestream-benches --bench calls -- --driver target/debug/libsidestream_stand_in.so
//!
//! The program runs itself under callgrind (valgrind), twice for each row, with few calls and with many: the
//! difference is due to the calls alone. Functions of the driver are recognized by name, and counting stops while one
//! runs. Locked instructions are listed separately, since one takes as long as dozens of others.
//!
//! To see where the instructions are: `--keep FOLDER`, then `callgrind_annotate` on a file there (best from a build
//! with line numbers, `cargo bench --profile profiling`).

use std::env;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use sidestream::device::{Device, Options};
use sidestream::error::Result;
use sidestream::explicit;
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::pipeline::{Pipeline, per_row};
use sidestream::ptx;
use sidestream::stream::Stream;

/// A row: its name, a function that makes the counted calls a given number of times, and the row whose count is
/// subtracted.
struct Row {
    what: &'static str,
    run: fn(&Bench, usize) -> Result<()>,
    less: Option<&'static str>,
}

const fn row(what: &'static str, run: fn(&Bench, usize) -> Result<()>) -> Row {
    let less = None;
    Row { what, run, less }
}

const fn behind(
    less: &'static str,
    what: &'static str,
    run: fn(&Bench, usize) -> Result<()>,
) -> Row {
    let less = Some(less);
    Row { what, run, less }
}

const LAUNCH: &str = "launch, unmarked stream";
const NEW_EVENT: &str = "launch and record_event, unmarked stream";

const ROWS: &[Row] = &[
    row("launch", |bench, calls| bench.launches(&bench.a, calls)),
    row(LAUNCH, |bench, calls| {
        bench.launches(&bench.unmarked_a, calls)
    }),
    row("explicit launch", Bench::explicit_launches),
    row("explicit record", Bench::explicit_records),
    row("explicit wait", Bench::explicit_waits),
    row("explicit wait_stream", Bench::explicit_links),
    row("explicit query of an event", Bench::explicit_queries),
    row(NEW_EVENT, Bench::records),
    behind(LAUNCH, "record_event after a launch", Bench::records),
    behind(NEW_EVENT, "wait_event for a new event", Bench::waits),
    behind(LAUNCH, "wait_stream after a launch", Bench::links),
    behind(NEW_EVENT, "query of a new event", Bench::queries),
    row("memset", Bench::memsets),
    row("allocate and free", Bench::allocations),
    row("an item of 64 KiB through a pipeline", Bench::items),
];

const FEW: usize = 500;
const MANY: usize = 1_500;
const BYTES: usize = 64 << 10;

type Empty = Kernel<(Read<u8>, Write<u8>)>;

struct Bench {
    device: Device,
    empty: Empty,
    a: Stream,
    unmarked_a: Stream,
    unmarked_b: Stream,
    explicit_a: explicit::Stream,
    explicit_b: explicit::Stream,
    event: explicit::Event,
}

impl Bench {
    fn open(driver: &Path) -> Result<Bench> {
        // SAFETY: the user of this program names the driver, or the stand-in.
        let options = unsafe { Options::new().driver(driver) };
        let device = Device::open_with("cuda:0", &options)?;
        let explicit = |name| explicit::Stream::non_blocking(&device, name, 0);
        Ok(Bench {
            // SAFETY: the entry has no parameters and touches no memory.
            empty: unsafe { Empty::from_ptx(&ptx::EMPTY, "empty") },
            a: device.stream("a")?,
            unmarked_a: device.unmarked_stream("unmarked a")?,
            unmarked_b: device.unmarked_stream("unmarked b")?,
            explicit_a: explicit("explicit a")?,
            explicit_b: explicit("explicit b")?,
            event: explicit::Event::new(&device)?,
            device,
        })
    }

    /// Launches, each followed by a call of `behind`.
    fn launches_and(
        &self,
        stream: &Stream,
        calls: usize,
        mut behind: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let (x, mut y) = (stream.alloc(1024)?, stream.alloc(1024)?);
        for _ in 0..calls {
            stream.launch(&self.empty, Grid::new(1, 32), (x.view(), y.view_mut()))?;
            behind()?;
        }
        Ok(())
    }

    fn launches(&self, stream: &Stream, calls: usize) -> Result<()> {
        self.launches_and(stream, calls, || Ok(()))
    }

    fn explicit_launches(&self, calls: usize) -> Result<()> {
        let memory = explicit::DeviceMemory::malloc(&self.device, 4096)?;
        for _ in 0..calls {
            let args = [explicit::Arg::Writes(memory.all())];
            // SAFETY: the kernel touches no memory.
            unsafe { (self.explicit_a).launch(&self.empty, Grid::new(1, 32), &args)? };
        }
        self.device.synchronize()
    }

    fn explicit_records(&self, calls: usize) -> Result<()> {
        (0..calls).try_for_each(|_| self.explicit_a.record(&self.event))
    }

    fn explicit_waits(&self, calls: usize) -> Result<()> {
        self.explicit_a.record(&self.event)?;
        (0..calls).try_for_each(|_| self.explicit_b.wait(&self.event))
    }

    fn explicit_links(&self, calls: usize) -> Result<()> {
        (0..calls).try_for_each(|_| self.explicit_b.wait_stream(&self.explicit_a))
    }

    fn explicit_queries(&self, calls: usize) -> Result<()> {
        self.explicit_a.record(&self.event)?;
        (0..calls).try_for_each(|_| self.event.query().map(|over| _ = black_box(over)))
    }

    fn records(&self, calls: usize) -> Result<()> {
        let a = &self.unmarked_a;
        self.launches_and(a, calls, || {
            a.record_event().map(|event| _ = black_box(event))
        })
    }

    fn waits(&self, calls: usize) -> Result<()> {
        let (a, b) = (&self.unmarked_a, &self.unmarked_b);
        self.launches_and(a, calls, || b.wait_event(&a.record_event()?))
    }

    fn links(&self, calls: usize) -> Result<()> {
        let (a, b) = (&self.unmarked_a, &self.unmarked_b);
        self.launches_and(a, calls, || b.wait_stream(a))
    }

    fn queries(&self, calls: usize) -> Result<()> {
        let a = &self.unmarked_a;
        self.launches_and(a, calls, || {
            a.record_event()?.query().map(|over| _ = black_box(over))
        })
    }

    fn memsets(&self, calls: usize) -> Result<()> {
        let mut x = self.a.alloc::<u8>(BYTES)?;
        (0..calls).try_for_each(|_| self.a.memset(x.view_mut(), 0))
    }

    fn allocations(&self, calls: usize) -> Result<()> {
        (0..calls).try_for_each(|_| self.a.alloc::<u8>(BYTES).map(|x| _ = black_box(x)))
    }

    fn items(&self, items: usize) -> Result<()> {
        let empty = self.empty.clone();
        let running = Pipeline::new(&self.device, BYTES)
            .upload(per_row::<u8>(1))
            .stage("empty", per_row::<u8>(1), move |at, x, y| {
                (at.stream()).launch(&empty, Grid::new(1, 32), (x.view(), y.view_mut()))
            })
            .download(per_row::<u8>(1), |(_, y)| y)
            .depth(4)
            .fill(move |index, _| Ok((index < items as u64).then_some(BYTES)));
        running.run(|_| Ok(())).expect("nothing fails");
        Ok(())
    }
}

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let (mut driver, mut keep, mut only, mut calls) = (None, None, None, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--driver" => driver = args.next().map(PathBuf::from),
            "--keep" => keep = args.next().map(PathBuf::from),
            "--row" => only = args.next(),
            "--calls" => calls = args.next().and_then(|calls| calls.parse().ok()),
            // Arguments for cargo's and criterion's harness.
            _ => {}
        }
    }
    let Some(driver) = driver.map(|file| from_the_root(&file)) else {
        println!(
            "instructions of calls are counted with --driver FILE; the documentation at the top of this program says how"
        );
        return ExitCode::SUCCESS;
    };
    let is_wanted = |row: &&Row| only.as_ref().is_none_or(|only| only == row.what);
    if let Some(calls) = calls {
        let bench = Bench::open(&driver).expect("the driver opens");
        let mut rows = ROWS.iter().filter(is_wanted);
        rows.try_for_each(|row| (row.run)(&bench, calls))
            .expect("no call fails");
        return ExitCode::SUCCESS;
    }
    println!("{:>12} {:>7}", "instructions", "locked");
    for row in ROWS.iter().filter(is_wanted) {
        let less = row
            .less
            .and_then(|less| ROWS.iter().find(|row| row.what == less));
        let mut counts = a_call(row, &driver, keep.as_deref());
        if let Some(less) = less {
            let less = a_call(less, &driver, None);
            counts = [counts[0] - less[0], counts[1] - less[1]];
        }
        println!("{:>12.0} {:>7.1}  {}", counts[0], counts[1], row.what);
    }
    ExitCode::SUCCESS
}

/// Cargo runs a bench in the folder of its package.
fn from_the_root(file: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if file.is_file() {
        file.to_owned()
    } else {
        root.join(file)
    }
}

/// The instructions of a call, and how many of them are locked.
fn a_call(row: &Row, driver: &Path, keep: Option<&Path>) -> [f64; 2] {
    let (few, many) = (
        counted(row, FEW, driver, None),
        counted(row, MANY, driver, keep),
    );
    [0, 1].map(|of| (many[of] - few[of]) / (MANY - FEW) as f64)
}

fn counted(row: &Row, calls: usize, driver: &Path, keep: Option<&Path>) -> [f64; 2] {
    let file = format!("{}.callgrind", row.what.replace([' ', ','], "-"));
    let file = keep.map_or_else(env::temp_dir, Path::to_owned).join(file);
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-bus=yes"])
        // The order matters: the first option turns counting off at the start.
        .args(["--toggle-collect=cu*", "--collect-atstart=yes"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(env::current_exe().expect("this program has a file"))
        .args(["--row", row.what, "--calls", &calls.to_string(), "--driver"])
        .arg(driver)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .expect("valgrind runs");
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let text = std::fs::read_to_string(&file).expect("callgrind wrote its file");
    let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let mut totals = totals.expect("it has totals").split(' ');
    let mut next = || {
        totals
            .next()
            .and_then(|n| n.parse().ok())
            .expect("two numbers")
    };
    [next(), next()]
}
