//! Reads what an export states about streams, devices and threads, and about itself.

use super::rows::small;
use super::*;
use crate::model::{Device, StreamFlag, ThreadIndex};

/// The maximum number of devices of a machine, with a wide margin.
const MOST_DEVICES: usize = 256;
/// The maximum number of messages of the profiler that are passed on; a file may have thousands.
const MOST_COMPLAINTS: usize = 8;
const LONGEST_COMPLAINT: usize = 200;
/// The severity of an error.
const ERROR: i64 = 3;

impl Reader<'_> {
    /// Adds the statements of the file besides its rows of activity.
    pub(super) fn describe(&mut self) {
        self.streams_by(STREAMS, "streamId", |kinds, row| {
            kinds.stream(row.integer(4))
        });
        self.streams_by(NULL_STREAMS, "streamId", |_, _| StreamFlag::Null);
        self.streams_by(CONTEXTS, "nullStreamId", |_, _| StreamFlag::Null);
        self.devices();
        self.thread_names();
        self.graphs();
        self.complaints();
        let missing = self.strings.missing();
        if missing > 0 {
            let text = format!(
                "{missing} names are not in the file, or too long; they are shown as (other)"
            );
            self.builder.warn("MISSING_NAMES", text);
        }
    }

    /// Adds flags and priorities of streams that have rows, from a table of streams.
    fn streams_by(
        &mut self,
        table: &str,
        number: &'static str,
        flag: impl Fn(&Kinds, &Row) -> StreamFlag,
    ) {
        let columns = [
            integer("processId"),
            integer("contextId"),
            integer(number),
            integer("priority"),
            integer("flag"),
        ];
        // A table without this column applies to all processes.
        let has_process = self.database.has_column(table, "processId");
        let has_context = self.database.has_column(table, "contextId");
        let mut wanted: HashMap<_, Vec<StreamIndex>> = HashMap::new();
        let indices = (0..).map(StreamIndex);
        for (index, (process, context, number)) in indices.zip(&self.streams) {
            let key = (
                process.filter(|_| has_process),
                Some(*context).filter(|_| has_context),
                Some(*number),
            );
            wanted.entry(key).or_default().push(index);
        }
        let (kinds, builder) = (&self.kinds, &mut self.builder);
        self.database.rows(table, &columns, |row| {
            let key = (row.integer(0), row.integer(1), row.integer(2));
            for index in wanted.remove(&key).unwrap_or_default() {
                let Some(stream) = builder.trace.streams.get_mut(index.0 as usize) else {
                    continue;
                };
                let flag = flag(kinds, row);
                if stream.flag == StreamFlag::Unknown {
                    stream.flag = flag;
                }
                // Negative numbers are written as large unsigned ones.
                let priority = row.integer(3).map(|priority| priority as u32 as i32);
                stream.priority = stream.priority.or(priority);
            }
            proceed()
        });
    }

    fn devices(&mut self) {
        let mut cuda = HashMap::new();
        let columns = [integer("gpuId"), integer("cudaId")];
        self.database.rows(CUDA_DEVICES, &columns, |row| {
            if let (Some(gpu), Some(number)) = (row.integer(0), row.integer(1)) {
                cuda.entry(gpu).or_insert(number);
            }
            enough(cuda.len() >= MOST_DEVICES)
        });
        let columns = [
            integer("id"),
            integer("cuDevice"),
            text("name"),
            integer("smCount"),
            integer("totalMemory"),
            integer("computeMajor"),
            integer("computeMinor"),
            integer("asyncEngines"),
        ];
        let mut seen = Vec::new();
        let builder = &mut self.builder;
        self.database.rows(GPUS, &columns, |row| {
            let id = row.integer(0);
            // The operating system and CUDA number the GPUs differently.
            let number = id.and_then(|id| cuda.get(&id).copied());
            let number = number.or(row.integer(1)).or(id);
            let Some(number) = number.filter(|number| !seen.contains(number)) else {
                return proceed();
            };
            seen.push(number);
            let positive = |at| Some(small(row.integer(at))).filter(|n| *n > 0);
            builder.device(Device {
                id: number,
                name: row.text(2).map(|name| clean(&name)).unwrap_or_default(),
                sms: positive(3),
                memory_bytes: row.integer(4).and_then(|n| u64::try_from(n).ok()),
                compute: positive(5).map(|major| (major, small(row.integer(6)))),
                copy_engines: positive(7),
            });
            enough(seen.len() >= MOST_DEVICES)
        });
    }

    fn thread_names(&mut self) {
        let indices = (0..).map(ThreadIndex);
        let threads: HashMap<(i64, i64), ThreadIndex> =
            self.threads.iter().copied().zip(indices).collect();
        let columns = [integer("globalTid"), integer("nameId")];
        let (builder, strings) = (&mut self.builder, &mut self.strings);
        self.database.rows(THREADS, &columns, |row| {
            let global = row.integer(0).unwrap_or(0);
            let key = (rows::process(global), global & 0xFF_FFFF);
            if let Some(index) = threads.get(&key) {
                strings.text(builder, row.integer(1), |builder, name| {
                    if let Some(thread) = builder.trace.threads.get_mut(index.0 as usize) {
                        thread.name = clean(name);
                    }
                });
            }
            proceed()
        });
    }

    /// Adds a warning where graphs hide the operations that ran in them.
    fn graphs(&mut self) {
        let mut is_whole = false;
        let columns = [text("name"), text("value")];
        self.database.rows(CAPTURE, &columns, |row| {
            let is_mode = |name: &str| name.ends_with("CUDA_GRAPH_TRACE_OPTIONS:MODE");
            if row.text(0).is_some_and(|name| is_mode(&name)) {
                is_whole |= row.text(1).is_some_and(|v| v.eq_ignore_ascii_case("graph"));
            }
            proceed()
        });
        let remedy = "record with `--cuda-graph-trace=node` to see inside";
        if self.whole_graphs > 0 {
            let text = format!(
                "{} graph launches are in the trace as one row each, and count as kernels; {remedy}",
                self.whole_graphs
            );
            self.builder.warn("WHOLE_GRAPHS", text);
        } else if is_whole && (self.has_graph_launch || self.builder.rows().calls == 0) {
            let text = format!("the operations inside graphs are not in the trace; {remedy}");
            self.builder.warn("WHOLE_GRAPHS", text);
        }
    }

    /// Adds what the profiler itself reported as an error.
    fn complaints(&mut self) {
        let columns = [integer("severity"), text("text")];
        let builder = &mut self.builder;
        let mut count = 0;
        self.database.rows(DIAGNOSTICS, &columns, |row| {
            if row.integer(0) == Some(ERROR)
                && let Some(text) = row.text(1)
            {
                count += 1;
                builder.warn("PROFILER", format!("Nsight Systems says: {}", clean(&text)));
            }
            enough(count >= MOST_COMPLAINTS)
        });
    }
}

fn proceed() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn enough(is_enough: bool) -> ControlFlow<()> {
    if is_enough {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

/// Returns a string from the file for display: short, and without terminal control characters.
fn clean(text: &str) -> String {
    let letters = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let short: String = letters.take(LONGEST_COMPLAINT).collect();
    short.trim().to_owned()
}
