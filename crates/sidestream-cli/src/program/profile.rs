//! `sidestream diagnose -- PROGRAM`: a trace of any CUDA program, in the form that PyTorch's profiler writes.
//!
//! Events are written while they arrive, so that a long recording takes no memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{env, process};

use flate2::Compression;
use flate2::write::GzEncoder;
use sidestream::check::counted;
use sidestream::log::Record;
use sidestream_inject::wire::{
    DEVICE, DEVICE_NAME, DRIVER, Head, KERNEL, KERNEL_NAME, MEMCPY, MEMSET, PEER, RUNTIME, SYNC,
    Tag,
};

use super::ring::text;
use super::session::{Options, Session};
use super::symbols::signature;
use super::translate::Hears;
use crate::failure::{Exit, Failure, shown, tell};
use crate::output::refuse_unwritable;

/// A program, and what of it is recorded.
#[derive(clap::Args, Default)]
pub struct Recorded {
    /// Keep the trace of PROGRAM in this file: Chrome JSON, compressed if the name ends with .gz
    #[arg(
        short,
        long,
        value_name = "FILE",
        requires = "program",
        conflicts_with = "traces"
    )]
    pub output: Option<PathBuf>,
    /// Record PROGRAM for this time, from its first CUDA call or from the range of --from-range; it runs on after the report
    #[arg(long, value_name = "SECONDS", requires = "program", conflicts_with = "traces", value_parser = seconds)]
    duration: Option<f64>,
    /// Record PROGRAM from the first NVTX range of this name on; a number after the name does not matter
    #[arg(
        long,
        value_name = "NAME",
        requires = "program",
        conflicts_with = "traces"
    )]
    from_range: Option<String>,
    /// Record PROGRAM until this number of ranges of --from-range has ended; it runs on after the report
    #[arg(long, value_name = "N", requires = "from_range", value_parser = clap::value_parser!(u32).range(1..))]
    steps: Option<u32>,
    /// Any CUDA program with its arguments: it runs on its GPU, and its trace is read
    ///
    /// CUPTI records its calls, kernels, copies and waits. Ranges that it names with NVTX (`torch.cuda.nvtx.range`) are its
    /// steps, if they recur. A profiler inside it gets no events of the GPU. With --json,
    /// its output goes to standard error. Exit code: the program's, if that is not 0.
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["traces", "against"])]
    pub program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok();
    let number = number.filter(|seconds| (0.001..=1e6).contains(seconds));
    number
        .ok_or_else(|| "this is not a time; write seconds from 0.001 to 1000000, such as 10".into())
}

/// Runs a program, and passes its traces to `report` when the recording or the program has ended: what to call each, and its
/// file.
pub fn main(
    asked: &Recorded,
    is_json: bool,
    report: impl FnOnce(Vec<(String, PathBuf)>) -> Result<Exit, Failure>,
) -> Result<Exit, Failure> {
    refuse_unwritable("--output", asked.output.as_deref())?;
    let milliseconds = asked.duration.map_or(0, |seconds| (seconds * 1e3) as u64);
    let range = asked.from_range.as_deref().unwrap_or("");
    let options = Options {
        profile: Some(format!(
            "{milliseconds},{},{range}",
            asked.steps.unwrap_or(0)
        )),
        is_quiet: is_json,
        ..Options::default()
    };
    let name = shown(Path::new(&asked.program[0]));
    let (output, program, files) = (asked.output.clone(), name.clone(), Rc::new(Cell::new(0)));
    let begin = move |pid, _| {
        Ok(Recording {
            output: output.clone(),
            name: program.clone(),
            files: Rc::clone(&files),
            pid,
            ..Recording::default()
        })
    };
    let session = Session::start(&asked.program, &options, begin)?;
    let mut code = Ok(0);
    let mut finished = session.listen_until(|all| {
        let closed = all.iter_mut().map(|(_, process)| process.told.close());
        let traces: Result<Vec<_>, _> = closed.filter_map(Result::transpose).collect();
        code = traces.and_then(|traces| {
            if traces.is_empty() {
                Ok(2)
            } else {
                report(traces)
            }
        });
    })?;
    if finished.tell()
        && finished
            .heard()
            .all(|(_, process)| process.told.events == 0)
    {
        tell(format_args!(
            "sidestream: {name} made no CUDA call while it was recorded"
        ));
    }
    Ok(finished.code(code?))
}

/// The trace of a process, which is written while records arrive.
#[derive(Default)]
struct Recording {
    /// The file to keep, if any.
    output: Option<PathBuf>,
    /// What to call the trace.
    name: String,
    /// How many processes have written a trace.
    files: Rc<Cell<u32>>,
    pid: u32,
    out: Option<Box<dyn Write>>,
    /// The file, once there is one.
    file: Option<File>,
    error: Option<io::Error>,
    events: u64,
    /// The time from which the trace counts.
    base: u64,
    /// The rank and the number of ranks, if they are known.
    rank: String,
    /// Names as JSON, by their numbers.
    names: HashMap<u64, String>,
    /// Descriptions of devices as JSON.
    devices: Vec<String>,
    /// By context: its device.
    contexts: HashMap<u32, u32>,
    /// By thread: calls of the driver that a call of the runtime may turn out to contain, with their starts and ends.
    inner: HashMap<u32, Vec<(u64, u64, String)>>,
    is_done: bool,
}

/// The largest number of calls of a thread that are kept back.
const MAX_INNER: usize = 64;
/// The largest number of names: what a program adds is called unknown.
const MAX_NAMES: usize = 1 << 20;

impl Hears for Recording {
    fn take(&mut self, _: &Record<'_>) {}

    fn activity(&mut self, head: Head, record: &[u64]) {
        match (head.tag, record) {
            (Tag::Name, [number, name @ ..]) if self.names.len() < MAX_NAMES => {
                let name = text(name, head.index);
                let name = signature(&name).unwrap_or(name);
                self.names.insert(*number, quoted(&name));
            }
            (Tag::Began, [now, rank @ ..]) => {
                self.base = *now;
                self.rank = text(rank, head.index);
            }
            (Tag::Range, [start, end, thread, name @ ..]) => {
                let place = (self.pid.into(), *thread);
                let name = quoted(&text(name, head.index));
                let event = self.json("user_annotation", &name, place, (*start, *end), "");
                self.write(&event);
            }
            (Tag::Activity, record) => self.record(&Fields(record)),
            (Tag::Dropped, [count, ..]) if *count > 0 => tell(format_args!(
                "sidestream: process {}: {} did not fit into CUPTI's memory and are missing",
                self.pid,
                counted(*count, "record")
            )),
            (Tag::Stopped, _) => self.is_done = true,
            _ => {}
        }
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

/// A record of CUPTI, whose fields are named by their offsets in bytes.
struct Fields<'a>(&'a [u64]);

impl Fields<'_> {
    fn long(&self, at: usize) -> u64 {
        self.0.get(at / 8).copied().unwrap_or(0)
    }

    fn int(&self, at: usize) -> u32 {
        (self.long(at) >> (at % 8 * 8)) as u32
    }

    /// The start and the end of the recorded time.
    fn times(&self, at: usize) -> (u64, u64) {
        (self.long(at), self.long(at + 8))
    }

    /// A kind of memory, as PyTorch's profiler names it.
    fn memory(&self, at: usize) -> &'static str {
        const KINDS: [&str; 8] = [
            "Unknown",
            "Pageable",
            "Pinned",
            "Device",
            "Array",
            "Managed",
            "Device Static",
            "Managed Static",
        ];
        KINDS
            .get(usize::from(self.int(at) as u8))
            .unwrap_or(&KINDS[0])
    }
}

impl Recording {
    /// Writes a record. The offsets are the same in all versions of CUPTI since CUDA 12.0.
    fn record(&mut self, of: &Fields<'_>) {
        const COPIES: [&str; 11] = [
            "", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
        ];
        const WAITS: [&str; 5] = [
            "Unknown",
            "Event Sync",
            "Stream Wait Event",
            "Stream Sync",
            "Context Sync",
        ];
        match of.int(0) {
            KERNEL => {
                let name = self.name(of.long(KERNEL_NAME * 8));
                let three = |at: usize| [0, 4, 8].map(|more| of.int(at + more));
                let shared = of.int(76).saturating_add(of.int(80));
                let more = format!(
                    ",\"registers per thread\":{},\"shared memory\":{shared},\"grid\":{:?},\"block\":{:?}",
                    of.int(6) as u16,
                    three(52),
                    three(64)
                );
                self.work("kernel", &name, of.times(16), [40, 44, 48, 92, 156].map(|at| of.int(at)), &more);
            }
            kind @ (MEMCPY | PEER) => {
                let direction = COPIES.get(usize::from(of.int(4) as u8)).unwrap_or(&COPIES[0]);
                let name = format!("\"Memcpy {direction} ({} -> {})\"", of.memory(5), of.memory(6));
                let (correlation, graph) = if kind == PEER { (60, 80) } else { (44, 72) };
                let place = [32, 36, 40, correlation, graph].map(|at| of.int(at));
                self.work("gpu_memcpy", &name, of.times(16), place, &format!(",\"bytes\":{}", of.long(8)));
            }
            MEMSET => {
                let name = format!("\"Memset ({})\"", of.memory(50));
                let place = [32, 36, 40, 44, 72].map(|at| of.int(at));
                self.work("gpu_memset", &name, of.times(16), place, &format!(",\"bytes\":{}", of.long(8)));
            }
            SYNC => {
                let name = WAITS.get(of.int(4) as usize).unwrap_or(&WAITS[0]);
                let (context, stream) = (of.int(28), of.int(32) as i32);
                let device = self.contexts.get(&context).copied().unwrap_or(0);
                let place = [device, context, stream as u32, of.int(24), 0];
                self.work("cuda_sync", &quoted(name), of.times(8), place, "");
            }
            kind @ (DRIVER | RUNTIME) => self.call(of, kind == DRIVER),
            DEVICE => self.devices.push(format!(
                "{{\"id\":{},\"name\":{},\"totalGlobalMem\":{},\"computeMajor\":{},\"computeMinor\":{},\"numSms\":{}}}",
                of.int(112),
                self.name(of.long(DEVICE_NAME * 8)),
                of.long(16),
                of.int(104),
                of.int(108),
                of.int(44)
            )),
            _ => {}
        }
    }

    fn name(&self, number: u64) -> String {
        self.names
            .get(&number)
            .map_or("\"(unknown)\"", |name| name)
            .to_owned()
    }

    /// Writes what a stream did. The place is its device, context, number, correlation and graph.
    fn work(&mut self, kind: &str, name: &str, times: (u64, u64), place: [u32; 5], more: &str) {
        let [device, context, stream, correlation, graph] = place;
        // What was not complete at the end has no times.
        if times.0 == 0 || times.1 < times.0 {
            return;
        }
        if kind != "cuda_sync" {
            self.contexts.insert(context, device);
        }
        let graph = if graph == 0 {
            String::new()
        } else {
            format!(",\"graph id\":{graph}")
        };
        let more = format!(
            "\"device\":{device},\"context\":{context},\"stream\":{},\"correlation\":{correlation}{graph}{more}",
            stream as i32
        );
        let event = self.json(kind, name, (device.into(), stream.into()), times, &more);
        self.write(&event);
    }

    /// Writes a call. One of the driver that a call of the runtime makes is left out; its record comes first.
    fn call(&mut self, of: &Fields<'_>, is_driver: bool) {
        let ((start, end), thread) = (of.times(8), of.int(28));
        let kind = if is_driver {
            "cuda_driver"
        } else {
            "cuda_runtime"
        };
        let (name, place) = (self.name(of.long(0)), (self.pid.into(), thread.into()));
        let correlation = format!("\"correlation\":{}", of.int(32));
        let event = self.json(kind, &name, place, (start, end), &correlation);
        let inner = self.inner.entry(thread).or_default();
        if !is_driver {
            inner.retain(|(inner_start, inner_end, _)| *inner_start < start || end < *inner_end);
        }
        inner.push((start, end, event));
        if !is_driver || inner.len() > MAX_INNER {
            let calls = std::mem::take(inner);
            calls.iter().for_each(|(.., event)| self.write(event));
        }
    }

    /// Returns an event. The place is a process and a thread, or a device and a stream.
    fn json(
        &self,
        kind: &str,
        name: &str,
        place: (u64, u64),
        times: (u64, u64),
        arguments: &str,
    ) -> String {
        let (pid, tid) = place;
        let microseconds = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
        let start = microseconds(times.0.saturating_sub(self.base));
        let duration = microseconds(times.1.saturating_sub(times.0));
        format!(
            "{{\"ph\":\"X\",\"cat\":\"{kind}\",\"name\":{name},\"pid\":{pid},\"tid\":{tid},\"ts\":{start},\"dur\":{duration},\
             \"args\":{{{arguments}}}}}"
        )
    }

    fn write(&mut self, event: &str) {
        self.events += 1;
        if self.error.is_none() {
            self.error = self.written(event).err();
        }
    }

    fn written(&mut self, event: &str) -> io::Result<()> {
        if let Some(out) = &mut self.out {
            return write!(out, ",\n{event}");
        }
        let others = self.files.replace(self.files.get() + 1);
        let (name, pid) = (self.name.clone(), self.pid);
        if others > 0 {
            self.name = format!("{name}, process {pid}");
        }
        let file = match &mut self.output {
            None => unnamed()?,
            Some(output) => {
                if others > 0 {
                    let name = output
                        .file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned();
                    let (stem, ending) = name.split_once('.').unwrap_or((&name, "json"));
                    output.set_file_name(format!("{stem}.{pid}.{ending}"));
                }
                self.name = output.display().to_string();
                File::create(output)?
            }
        };
        let buffer = BufWriter::with_capacity(1 << 20, file.try_clone()?);
        self.file = Some(file);
        let is_packed = self.name.ends_with(".gz") && self.output.is_some();
        let mut out: Box<dyn Write> = if is_packed {
            Box::new(GzEncoder::new(buffer, Compression::fast()))
        } else {
            Box::new(buffer)
        };
        write!(out, "{{\"traceEvents\":[\n{event}")?;
        self.out = Some(out);
        Ok(())
    }

    /// Completes the trace, and returns what to call it and its file; `None` if nothing was recorded.
    fn close(&mut self) -> Result<Option<(String, PathBuf)>, Failure> {
        for (.., event) in std::mem::take(&mut self.inner).into_values().flatten() {
            self.write(&event);
        }
        let (rank, ranks) = self.rank.split_once(' ').unwrap_or_default();
        let rank = match (rank.parse::<u32>(), ranks.parse::<u32>()) {
            (Ok(rank), Ok(ranks)) => {
                format!(",\"distributedInfo\":{{\"rank\":{rank},\"world_size\":{ranks}}}")
            }
            _ => String::new(),
        };
        let devices = self.devices.join(",");
        let end = format!("\n],\"deviceProperties\":[{devices}]{rank}}}\n");
        let written = match (self.error.take(), &mut self.out) {
            (Some(error), _) => Err(error),
            (None, Some(out)) => out.write_all(end.as_bytes()).and_then(|()| out.flush()),
            (None, None) => return Ok(None),
        };
        // What compresses the trace ends it now.
        self.out = None;
        let file = self.output.clone().or_else(|| {
            let file = self.file.as_ref()?.as_raw_fd();
            Some(PathBuf::from(format!("/proc/self/fd/{file}")))
        });
        written.map_err(|error| {
            Failure::input(format!("cannot write the trace {}: {error}", self.name))
        })?;
        Ok(Some((self.name.clone(), file.unwrap_or_default())))
    }
}

/// Creates a file without a name, which is gone when the command ends, however it ends.
fn unnamed() -> io::Result<File> {
    let path = env::temp_dir().join(format!("sidestream-trace-{}", process::id()));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
