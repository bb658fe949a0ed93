//! The trace of a timeline, as PyTorch's profiler writes it.

use std::io::{self, Write};

use serde_json::json;
use sidestream::engine::{Engine, Profile, Span, TaskId};
use sidestream::trace::{ChromeWriter, us};

use super::Lane;

/// The process of the host's rows. The device is a process too, with its index as id.
const HOST: u32 = 1;

/// A row of the trace.
pub struct Row {
    pub category: &'static str,
    pub name: String,
    pub lane: u32,
    /// The task at whose end a row of a thread begins, and the one with which the row ends; for work of a stream, both are
    /// this work.
    pub tasks: (TaskId, TaskId),
    /// The number that joins a call and its work.
    pub number: u64,
    /// The bytes of a copy or a memset; for a wait, the number of the call that recorded the event.
    pub figure: u64,
}

/// Writes the rows that began at or after this time and are complete.
pub fn write(
    out: impl Write,
    (profile, about, lanes): (&Profile, &str, &[Lane]),
    rows: &[Row],
    engine: &Engine,
    since_ns: u64,
) -> io::Result<()> {
    let device = json!({"id": 0, "name": profile.name, "numSms": profile.sms as u32,
                        "totalGlobalMem": profile.memory_bytes(), "simulated": about});
    let mut writer = ChromeWriter::new(out, &[device])?;
    let process = |lane: &Lane| if lane.is_thread { HOST } else { 0 };
    writer.process(HOST, "python", -1)?;
    for lane in lanes {
        writer.thread(process(lane), lane.number, &lane.name)?;
    }
    for row in rows {
        let lane = &lanes[row.lane as usize];
        let spans = (engine.scheduled(row.tasks.0), engine.scheduled(row.tasks.1));
        let (Some(first), Some(Span { end_ns, .. })) = spans else {
            continue;
        };
        let start_ns = if lane.is_thread {
            first.end_ns
        } else {
            first.start_ns
        };
        if start_ns < since_ns {
            continue;
        }
        let mut args = json!({"correlation": row.number});
        if !lane.is_thread {
            args = json!({"device": 0, "context": 1, "stream": lane.number, "correlation": row.number,
                          "bytes": row.figure});
        }
        if row.category == "cuda_sync" {
            args["wait_on_cuda_event_record_corr_id"] = row.figure.into();
        }
        writer.event(
            &json!({"ph": "X", "cat": row.category, "name": row.name, "pid": process(lane),
                           "tid": lane.number, "ts": us(start_ns), "dur": us(end_ns - start_ns),
                           "args": args}),
        )?;
    }
    // Readers subtract the cost of PyTorch's profiler from its traces; no profiler slowed this program down.
    writer.finish(|out| out.write_all(b",\n\"sidestream\": {}"))
}
