//! Writes the trace around its median step again, for Perfetto and similar viewers, with the findings where their evidence is,
//! idle time by its cause, and the step as each change would make it.
//!
//! Slices of one row must follow each other or nest, as viewers require. A slice that would overlap another without nesting
//! goes to a further row of the same name.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};
use sidestream::trace::{ChromeWriter, us};

use crate::excerpt::Excerpt;
use crate::findings::{Finding, time};
use crate::model::{Call, Name, RangeKind, What, Work};
use crate::replay::{Change, Prediction, Replay};
use crate::report::Report;
use crate::sort::order_by;
use crate::timeline::Drawn;

/// The processes of a viewer, from top to bottom.
const FINDINGS: u32 = 1;
const IDLE: u32 = 2;
const FIRST_HOST: u32 = 10_000;
const FIRST_DEVICE: u32 = 20_000;
const FIRST_CHANGE: u32 = 30_000;

/// The maximum number of rows of one stream or thread: slices that overlap with all of them are left out.
const MOST_ROWS: usize = 64;
/// The maximum number of changes that are drawn.
const MOST_CHANGES: usize = 16;
/// The maximum number of characters in a name; names of templates have thousands.
const NAME_LETTERS: usize = 256;

/// Writes the trace around the median step as Chrome JSON, together with the findings of a report.
///
/// A trace of up to 50,000 rows is written whole; of a longer one, the median step with the steps before and after it, and at
/// most 50,000 rows. Times count from the start of what is written; `diagnose.start_ns` is that start in the trace.
///
/// # Errors
/// An error of the writer.
pub fn annotated(title: &str, report: &Report, out: impl Write) -> io::Result<()> {
    let excerpt = &report.excerpt;
    let devices = excerpt.devices.iter().map(|device| {
        json!({"id": device.id, "name": cut(&device.name), "numSms": device.sms,
               "totalGlobalMem": device.memory_bytes})
    });
    let devices: Vec<Value> = devices.collect();
    let mut viewer = Viewer {
        writer: ChromeWriter::new(out, &devices)?,
        report,
        rows: 0,
        arrows: 0,
        left_out: 0,
    };
    viewer.findings()?;
    viewer.idle()?;
    let callers = viewer.host()?;
    viewer.devices(&callers)?;
    viewer.changes()?;
    let about = json!({
        "file": title,
        "start_ns": excerpt.start_ns,
        "whole": excerpt.is_whole,
        "left_out": viewer.left_out,
    });
    viewer
        .writer
        .finish(|out| write!(out, ",\n\"diagnose\": {about}"))
}

/// A slice of a row, with times from the start of the excerpt.
struct Slice {
    start_ns: u64,
    end_ns: u64,
    category: &'static str,
    name: String,
    args: Value,
}

/// Which slices may share a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Slices that follow each other.
    InTurn,
    /// Nested slices, too.
    Nested,
}

/// The slice of each call, for the arrow to its work.
type Callers = HashMap<u32, Option<(u32, u32, u64)>>;

struct Viewer<'r, W: Write> {
    writer: ChromeWriter<W>,
    report: &'r Report,
    /// Number of rows: each has a unique number.
    rows: u32,
    arrows: u32,
    left_out: usize,
}

impl<W: Write> Viewer<'_, W> {
    fn findings(&mut self) -> io::Result<()> {
        let excerpt = &self.report.excerpt;
        self.writer.process(FINDINGS, "findings", 0)?;
        if let Some((start_ns, end_ns)) = excerpt.step_ns {
            let step = Slice {
                start_ns: since(excerpt, start_ns),
                end_ns: since(excerpt, end_ns),
                category: "step",
                name: format!("median step, {}", time(end_ns.abs_diff(start_ns))),
                args: json!({}),
            };
            self.track(FINDINGS, "median step", Share::InTurn, vec![step])?;
        }
        for finding in &self.report.findings {
            let slices = finding_slices(excerpt, finding);
            let code = finding.code.as_str();
            self.track(FINDINGS, code, Share::InTurn, slices)?;
        }
        Ok(())
    }

    fn idle(&mut self) -> io::Result<()> {
        let report = self.report;
        self.writer.process(IDLE, "idle by cause", 1)?;
        for (at, (device, _)) in report.devices.iter().enumerate() {
            let gaps = report.excerpt.idle.iter().filter(|gap| gap.device == at);
            let slices: Vec<Slice> = gaps
                .map(|gap| {
                    let because = gap.stretch.because.map(|because| self.name(because.name));
                    let start_ns = since(&report.excerpt, gap.stretch.start_ns);
                    Slice {
                        start_ns,
                        end_ns: start_ns.saturating_add(gap.stretch.duration_ns),
                        category: "idle",
                        name: gap.cause.as_str().to_owned(),
                        args: json!({"because": because}),
                    }
                })
                .collect();
            let name = device_name(device.process, device.device, report.devices.len() > 1);
            self.track(IDLE, &format!("{name} idle"), Share::InTurn, slices)?;
        }
        Ok(())
    }

    /// Writes the host threads; returns the slice of each call.
    fn host(&mut self) -> io::Result<Callers> {
        let excerpt = &self.report.excerpt;
        let mut threads: BTreeMap<(i64, usize), Vec<Slice>> = BTreeMap::new();
        let key = |thread: u16| {
            let process = excerpt.threads.get(thread as usize).map(|t| t.process);
            (process.unwrap_or(0), thread as usize)
        };
        for range in &excerpt.ranges {
            let slice = Slice {
                start_ns: since(excerpt, range.start_ns),
                end_ns: since(excerpt, range.end_ns()),
                category: match range.kind {
                    RangeKind::Operator => "cpu_op",
                    RangeKind::Overhead => "overhead",
                    RangeKind::Annotation | RangeKind::Step => "user_annotation",
                    RangeKind::Python => "python_function",
                    RangeKind::System => "osrt",
                },
                name: self.name(range.name),
                args: json!({}),
            };
            threads.entry(key(range.thread.0)).or_default().push(slice);
        }
        for call in &excerpt.calls {
            let slice = self.call(call);
            threads.entry(key(call.thread.0)).or_default().push(slice);
        }
        let mut callers = Callers::new();
        let mut processes: Vec<i64> = threads.keys().map(|key| key.0).collect();
        processes.dedup();
        for ((process, thread), slices) in threads {
            let place = processes.iter().position(|p| *p == process).unwrap_or(0);
            let pid = FIRST_HOST + place as u32;
            let described = excerpt.threads.get(thread);
            let number = described.map_or(0, |thread| thread.thread);
            let name = described.map_or("", |thread| &thread.name);
            self.writer
                .process(pid, &format!("host process {process}"), 10 + place as i64)?;
            let name = format!("host thread {number} {}", cut(name));
            let placed = self.track(pid, name.trim_end(), Share::Nested, slices)?;
            for (tid, start_ns, args) in placed {
                let Some(correlation) = args["correlation"].as_u64() else {
                    continue;
                };
                // If two processes use the same number, the work cannot be assigned to either.
                let entry = callers.entry(correlation as u32);
                entry
                    .and_modify(|caller| *caller = None)
                    .or_insert(Some((pid, tid, start_ns)));
            }
        }
        Ok(callers)
    }

    fn call(&self, call: &Call) -> Slice {
        let name = self.name(call.name);
        let is_driver = name.starts_with("cu") && !name.starts_with("cuda");
        Slice {
            start_ns: since(&self.report.excerpt, call.start_ns),
            end_ns: since(&self.report.excerpt, call.end_ns()),
            category: if is_driver {
                "cuda_driver"
            } else {
                "cuda_runtime"
            },
            name,
            args: match call.correlation {
                0 => json!({}),
                correlation => json!({"correlation": correlation}),
            },
        }
    }

    fn devices(&mut self, callers: &Callers) -> io::Result<()> {
        let report = self.report;
        let mut streams: BTreeMap<usize, Vec<Slice>> = BTreeMap::new();
        for work in &report.excerpt.work {
            let slice = self.work(work);
            streams
                .entry(work.stream.0 as usize)
                .or_default()
                .push(slice);
        }
        for (at, (device, _)) in report.devices.iter().enumerate() {
            let pid = FIRST_DEVICE + at as u32;
            let name = device_name(device.process, device.device, report.devices.len() > 1);
            let name = format!("{name} {}", cut(&device.name));
            self.writer
                .process(pid, name.trim_end(), 1_000 + at as i64)?;
            let mine = report.streams.iter().enumerate().filter(|(_, stream)| {
                (stream.process, stream.device) == (device.process, device.device)
            });
            for (stream, described) in mine {
                let Some(slices) = streams.remove(&stream) else {
                    continue;
                };
                let name = format!("stream {}", described.number);
                let placed = self.track(pid, &name, Share::InTurn, slices)?;
                for (tid, start_ns, args) in placed {
                    let correlation = args["correlation"].as_u64().unwrap_or(0) as u32;
                    if let Some(Some(caller)) = callers.get(&correlation) {
                        self.arrow(*caller, (pid, tid, start_ns))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn work(&self, work: &Work) -> Slice {
        let stream = self.report.streams.get(work.stream.0 as usize);
        let mut args = json!({
            "device": stream.map(|s| s.device),
            "context": stream.map(|s| s.context),
            "stream": stream.map(|s| s.number),
        });
        if work.correlation != 0 {
            args["correlation"] = work.correlation.into();
        }
        let category = match work.what {
            What::Kernel(kernel) => {
                if kernel.blocks > 0 {
                    args["blocks"] = kernel.blocks.into();
                    args["threads"] = kernel.threads.into();
                }
                "kernel"
            }
            What::Copy { bytes, .. } => {
                args["bytes"] = bytes.into();
                "gpu_memcpy"
            }
            What::Memset { bytes, .. } => {
                args["bytes"] = bytes.into();
                "gpu_memset"
            }
        };
        Slice {
            start_ns: since(&self.report.excerpt, work.start_ns),
            end_ns: since(&self.report.excerpt, work.end_ns()),
            category,
            name: self.name(work.name),
            args,
        }
    }

    /// Writes an arrow from a call to its work. A graph has many operations, so each arrow has its own number.
    fn arrow(&mut self, from: (u32, u32, u64), to: (u32, u32, u64)) -> io::Result<()> {
        self.arrows += 1;
        let number = self.arrows;
        let end = |ph: &str, (pid, tid, at_ns): (u32, u32, u64)| {
            json!({"ph": ph, "id": number, "pid": pid, "tid": tid, "ts": us(at_ns),
                   "cat": "ac2g", "name": "ac2g"})
        };
        self.writer.event(&end("s", from))?;
        let mut to = end("f", to);
        // "bp": "e" binds the arrow to the slice that encloses its end, not to the next one.
        to["bp"] = "e".into();
        self.writer.event(&to)
    }

    /// Writes the step as each change would make it, below the measured one.
    fn changes(&mut self) -> io::Result<()> {
        let report = self.report;
        let (Ok(replay), Some((start_ns, _))) = (&report.replay, report.excerpt.step_ns) else {
            return Ok(());
        };
        let start_ns = since(&report.excerpt, start_ns);
        for (at, prediction) in replay.predictions.iter().take(MOST_CHANGES).enumerate() {
            self.change(at, replay, prediction, start_ns)?;
        }
        Ok(())
    }

    fn change(
        &mut self,
        at: usize,
        replay: &Replay,
        prediction: &Prediction,
        start_ns: u64,
    ) -> io::Result<()> {
        let pid = FIRST_CHANGE + at as u32;
        let changes = Change::names(&prediction.changes);
        let (likely, now) = (time(prediction.likely_ns), time(replay.unprofiled_ns));
        let name = format!("what-if {changes}: {likely} instead of {now}");
        self.writer.process(pid, &name, 2_000 + at as i64)?;
        let timeline = &prediction.timeline;
        let step = Slice {
            start_ns,
            end_ns: start_ns.saturating_add(timeline.length_ns),
            category: "what_if",
            name: format!("step with {changes}"),
            args: json!({"low_ns": prediction.low_ns, "likely_ns": prediction.likely_ns,
                         "high_ns": prediction.high_ns, "unmodified_ns": replay.unprofiled_ns}),
        };
        self.track(pid, "predicted step", Share::InTurn, vec![step])?;
        for lane in &timeline.lanes {
            let slice = |span: &Drawn| Slice {
                start_ns: start_ns.saturating_add(span.start_ns),
                end_ns: start_ns.saturating_add(span.end_ns()),
                category: "what_if",
                name: span
                    .name
                    .map_or_else(|| span.shade.as_str().to_owned(), |name| self.name(name)),
                args: json!({"kind": span.shade.as_str(), "count": span.count}),
            };
            let slices = lane.spans.iter().map(slice).collect();
            self.track(pid, &lane.name, Share::Nested, slices)?;
        }
        Ok(())
    }

    /// Writes slices into as many rows as they need; returns the row, the start and the arguments of each.
    fn track(
        &mut self,
        pid: u32,
        name: &str,
        share: Share,
        mut slices: Vec<Slice>,
    ) -> io::Result<Vec<(u32, u64, Value)>> {
        // An outer slice comes before those inside it.
        order_by(&mut slices, |slice| (slice.start_ns, Reverse(slice.end_ns)));
        let mut rows: Vec<(u32, Row)> = Vec::new();
        let mut placed = Vec::with_capacity(slices.len());
        for slice in slices {
            let mut free = rows.iter_mut();
            let free = free.position(|(_, row)| row.has_room(&slice, share));
            let tid = match free {
                Some(at) => {
                    rows[at].1.open.push(slice.end_ns);
                    rows[at].0
                }
                None if rows.len() < MOST_ROWS => {
                    self.rows += 1;
                    let label = match rows.len() {
                        0 => name.to_owned(),
                        more => format!("{name} ({})", more + 1),
                    };
                    self.writer.thread(pid, self.rows, &label)?;
                    let open = vec![slice.end_ns];
                    rows.push((self.rows, Row { open }));
                    self.rows
                }
                None => {
                    self.left_out += 1;
                    continue;
                }
            };
            self.writer.event(&json!({
                "ph": "X", "cat": slice.category, "name": slice.name, "pid": pid, "tid": tid,
                "ts": us(slice.start_ns), "dur": us(slice.end_ns - slice.start_ns),
                "args": slice.args,
            }))?;
            placed.push((tid, slice.start_ns, slice.args));
        }
        Ok(placed)
    }

    fn name(&self, name: Name) -> String {
        cut(self.report.names.text(name))
    }
}

/// The open slices of a row, the innermost last.
struct Row {
    open: Vec<u64>,
}

impl Row {
    fn has_room(&mut self, slice: &Slice, share: Share) -> bool {
        while self
            .open
            .pop_if(|end_ns| *end_ns <= slice.start_ns)
            .is_some()
        {}
        match self.open.last() {
            None => true,
            Some(end_ns) => share == Share::Nested && slice.end_ns <= *end_ns,
        }
    }
}

/// Returns the slices of a finding, at its evidence. A finding without evidence in the excerpt covers all of it.
fn finding_slices(excerpt: &Excerpt, finding: &Finding) -> Vec<Slice> {
    let saving = finding.saving_ns;
    let args = |evidence: Option<&str>| {
        json!({"text": finding.text, "share": finding.share, "evidence": evidence,
               "saving_ns": {"low": saving.low, "likely": saving.likely, "high": saving.high}})
    };
    let inside = |at_ns: i64| excerpt.start_ns <= at_ns && at_ns < excerpt.end_ns;
    let evidence = finding.evidence.iter().filter(|e| inside(e.start_ns));
    let mut slices: Vec<Slice> = evidence
        .map(|evidence| {
            let start_ns = since(excerpt, evidence.start_ns);
            Slice {
                start_ns,
                end_ns: start_ns.saturating_add(evidence.duration_ns),
                category: "finding",
                name: finding.code.as_str().to_owned(),
                args: args(Some(&cut(&evidence.what))),
            }
        })
        .collect();
    if slices.is_empty() {
        slices.push(Slice {
            start_ns: 0,
            end_ns: since(excerpt, excerpt.end_ns),
            category: "finding",
            name: if finding.evidence.is_empty() {
                finding.code.as_str().to_owned()
            } else {
                format!("{}, evidence is elsewhere", finding.code.as_str())
            },
            args: args(None),
        });
    }
    slices
}

/// Returns a moment relative to the start of the excerpt.
fn since(excerpt: &Excerpt, at_ns: i64) -> u64 {
    if at_ns >= excerpt.start_ns {
        at_ns.abs_diff(excerpt.start_ns)
    } else {
        0
    }
}

fn device_name(process: Option<i64>, device: i64, several: bool) -> String {
    match process.filter(|_| several) {
        Some(process) => format!("GPU {device} of process {process}"),
        None => format!("GPU {device}"),
    }
}

fn cut(text: &str) -> String {
    let mut letters = text.chars();
    let mut short: String = letters.by_ref().take(NAME_LETTERS).collect();
    if letters.next().is_some() {
        short.push('…');
    }
    short
}
