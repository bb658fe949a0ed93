//! The rows of a timeline, and how PyTorch's profiler writes them.

use std::io::{self, Write};

use indexmap::IndexSet;
use serde_json::json;
use sidestream::engine::{Engine, Profile, TaskId};
use sidestream::trace::{ChromeWriter, us};

use super::Lane;

/// The process of the host's rows. The device is a process too, with its index as id.
const HOST: u32 = 1;

/// All rows, in the order in which they were added.
#[derive(Default)]
pub struct Rows {
    names: IndexSet<String>,
    rows: Vec<Row>,
}

struct Row {
    category: &'static str,
    name: usize,
    lane: u32,
    span: Between,
    /// The number that joins calls and their work; 0 for none.
    number: u64,
    /// The bytes of a copy or a memset; for a wait, the number of the call that recorded the event.
    figure: u64,
}

/// The time of a row, by tasks.
#[derive(Clone, Copy)]
pub enum Between {
    /// As long as the task runs.
    Task(TaskId),
    /// From the end of a task and this many ns, to the end of another.
    Ends(TaskId, u64, TaskId),
}

impl Between {
    /// Returns the start and the end; `None` if they have not been computed.
    fn ns(self, engine: &Engine) -> Option<(u64, u64)> {
        match self {
            Between::Task(task) => engine
                .scheduled(task)
                .map(|span| (span.start_ns, span.end_ns)),
            Between::Ends(before, ns, task) => {
                let end_ns = engine.scheduled(task)?.end_ns;
                let start_ns = engine.scheduled(before)?.end_ns.saturating_add(ns);
                Some((start_ns.min(end_ns), end_ns))
            }
        }
    }
}

impl Rows {
    pub fn add(
        &mut self,
        category: &'static str,
        name: &str,
        lane: u32,
        span: Between,
        number: u64,
        figure: u64,
    ) {
        let name = match self.names.get_index_of(name) {
            Some(at) => at,
            None => self.names.insert_full(name.to_owned()).0,
        };
        self.rows.push(Row {
            category,
            name,
            lane,
            span,
            number,
            figure,
        });
    }

    /// Writes the rows that began at or after this time, and whose end is known.
    pub fn write(
        &self,
        out: impl Write,
        profile: &Profile,
        lanes: &[Lane],
        engine: &Engine,
        since_ns: u64,
    ) -> io::Result<()> {
        let device = json!({"id": 0, "name": profile.name, "numSms": profile.sms as u32, "totalGlobalMem": profile.memory_bytes()});
        let mut writer = ChromeWriter::new(out, &[device])?;
        writer.process(HOST, "python", 0)?;
        for lane in lanes {
            let process = if lane.is_thread { HOST } else { 0 };
            writer.thread(process, lane.number, &lane.name)?;
        }
        for row in &self.rows {
            let Some((start_ns, end_ns)) = row.span.ns(engine).filter(|ns| ns.0 >= since_ns) else {
                continue;
            };
            let lane = &lanes[row.lane as usize];
            let (process, mut args) = if lane.is_thread {
                (HOST, json!({}))
            } else {
                (0, json!({"device": 0, "context": 1, "stream": lane.number}))
            };
            if row.number > 0 {
                args["correlation"] = row.number.into();
            }
            match row.category {
                "gpu_memcpy" | "gpu_memset" => args["bytes"] = row.figure.into(),
                "cuda_sync" => args["wait_on_cuda_event_record_corr_id"] = row.figure.into(),
                _ => {}
            }
            writer.event(&json!({
                "ph": "X", "cat": row.category, "name": self.names[row.name], "pid": process, "tid": lane.number,
                "ts": us(start_ns), "dur": us(end_ns - start_ns), "args": args,
            }))?;
        }
        // No profiler has slowed this program down, and readers must not subtract the cost of PyTorch's.
        writer.finish(|out| out.write_all(b",\n\"sidestream\": {}"))
    }
}
