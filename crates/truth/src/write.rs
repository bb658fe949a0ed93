//! Rows of a run, and how PyTorch's profiler writes them.

use std::io::{self, Write as _};

use serde_json::{Map, Value, json};
use sidestream::trace::{ChromeWriter, us};

use crate::draw::Draw;
use crate::job::Job;
use crate::ranks::Exchanged;
use crate::run::Ran;

/// A row of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub what: What,
    pub start_ns: f64,
    pub end_ns: f64,
    /// The number that joins calls and their work; 0 for none.
    pub number: u32,
    /// The exchange between ranks that it belongs to.
    pub exchange: Option<Exchanged>,
}

impl Row {
    pub(crate) fn new(start_ns: f64, end_ns: f64, what: What, number: u32) -> Row {
        Row {
            what,
            start_ns,
            end_ns,
            number,
            exchange: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    Step(usize),
    Range(&'static str),
    Operator(&'static str),
    Call(&'static str),
    /// Its name, stream, blocks and the threads of each, and its graph; 0 for none.
    Kernel(&'static str, u32, [u32; 2], u32),
    /// Its name, stream and bytes.
    Copy(&'static str, u32, u64),
    /// The stream that waits, and the call that recorded the event.
    Wait(u32, u32),
}

/// Names of copies.
pub(crate) const PINNED_UPLOAD: &str = "Memcpy HtoD (Pinned -> Device)";
pub(crate) const PAGEABLE_UPLOAD: &str = "Memcpy HtoD (Pageable -> Device)";
pub(crate) const PINNED_DOWNLOAD: &str = "Memcpy DtoH (Device -> Pinned)";
pub(crate) const PAGEABLE_DOWNLOAD: &str = "Memcpy DtoH (Device -> Pageable)";

/// The start of the trace, on its own clock.
const START_NS: u64 = 4_329_803_305_000_000;

/// Returns the trace of a recorded run, as JSON.
pub fn trace(job: &Job, ran: &Ran) -> Vec<u8> {
    let lost = job.recorder.lost;
    let is_kept = |at: usize, what: &What| {
        // Steps are few, and written last.
        let may_be_lost = !matches!(what, What::Step(_) | What::Range(_));
        !(may_be_lost && Draw::at(job.seed, at, u32::MAX).happens(lost))
    };
    let rows = ran.rows.iter().enumerate();
    let rows = rows.filter_map(|(at, row)| is_kept(at, &row.what).then_some(row));
    let unit_ns = if job.recorder.is_whole_us { 1000 } else { 1 };
    let device = (job.profile.name.as_str(), job.profile.sms as u32);
    let clock = |ns: f64| (START_NS + ns as u64) / unit_ns * unit_ns;
    written(4242, device, &json!({}), rows, |_| Map::new(), clock)
}

/// Writes the trace of a process: the name of its device and the number of its multiprocessors, further members of the
/// trace, and its rows. `more` returns further arguments of a row, and `clock` converts a time to the trace's.
pub(crate) fn written<'r>(
    process: u32,
    (name, sms): (&str, u32),
    members: &Value,
    rows: impl Iterator<Item = &'r Row>,
    more: impl Fn(&Row) -> Map<String, Value>,
    clock: impl Fn(f64) -> u64,
) -> Vec<u8> {
    let mut out = Vec::new();
    let write = |out: &mut Vec<u8>| -> io::Result<()> {
        let device = json!({"id": 0, "name": name, "numSms": sms});
        let mut writer = ChromeWriter::new(out, &[device])?;
        writer.process(process, "python", 0)?;
        for row in rows {
            let mut args = more(row);
            let (cat, name, stream) = described(&row.what, &mut args);
            let mut add = |key: &str, value: u32| args.insert(key.into(), value.into());
            let (pid, tid) = stream.map_or((process, process), |stream| (0, stream));
            if let Some(stream) = stream {
                add("device", 0);
                add("context", 1);
                add("stream", stream);
            }
            if stream.is_some() || matches!(row.what, What::Call(_)) {
                add("correlation", row.number);
            }
            let (start, end) = (clock(row.start_ns), clock(row.end_ns));
            writer.event(&json!({
                "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
                "ts": us(start), "dur": us(end.saturating_sub(start)), "args": args,
            }))?;
        }
        let members = members.as_object().into_iter().flatten();
        writer.finish(|out| {
            let mut members = members.map(|(key, value)| format!(",\n\"{key}\": {value}"));
            members.try_for_each(|member| out.write_all(member.as_bytes()))
        })
    };
    write(&mut out).expect("memory can be written");
    out
}

/// Returns the category of a row, its name, and its stream if it is the device's; adds its arguments.
fn described(what: &What, args: &mut Map<String, Value>) -> (&'static str, String, Option<u32>) {
    let mut add = |key: &str, value: Value| _ = args.insert(key.into(), value);
    match *what {
        What::Step(step) => ("user_annotation", format!("ProfilerStep#{step}"), None),
        What::Range(name) => ("user_annotation", name.into(), None),
        What::Operator(name) => ("cpu_op", name.into(), None),
        What::Call(name) => ("cuda_runtime", name.into(), None),
        What::Kernel(name, stream, [blocks, threads], graph) => {
            add("registers per thread", 32.into());
            add("shared memory", 0.into());
            add("grid", json!([blocks, 1, 1]));
            add("block", json!([threads, 1, 1]));
            if graph != 0 {
                add("graph id", graph.into());
            }
            ("kernel", name.into(), Some(stream))
        }
        What::Copy(name, stream, bytes) => {
            add("bytes", bytes.into());
            ("gpu_memcpy", name.into(), Some(stream))
        }
        What::Wait(stream, record) => {
            add("wait_on_stream", 0.into());
            add("wait_on_cuda_event_record_corr_id", record.into());
            ("cuda_sync", "Stream Wait Event".into(), Some(stream))
        }
    }
}
