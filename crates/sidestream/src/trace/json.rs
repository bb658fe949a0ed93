//! Writes a trace as Chrome JSON, in Kineto's conventions.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Call, ChromeWriter, Place, Span, Stream, Trace, Waits, What, Work, us};
use crate::op::{Memory, OpId, StreamId};

/// The process id of the host's rows. Devices are processes too, with their index as id.
const HOST_PID: u32 = 1_000;
/// The id that CUPTI gives to the NULL stream in practice.
const LEGACY_TID: u32 = 7;
/// The id of the first other stream.
const FIRST_TID: u32 = 13;
/// The offset of the lanes in which Kineto puts calls that wait for a stream, separate from the stream's own lane: they
/// overlap its work, and rows of one lane must not overlap.
const SYNC_TID: u32 = 1_000_000;
/// The offset of the lanes of host functions, which are host lanes, since host functions are not device work.
const HOST_FUNC_TID: u32 = 2_000_000;

impl Trace {
    /// Writes the trace as Chrome JSON, one event per line.
    ///
    /// Calls are `cuda_runtime` rows of the host; kernels, copies and memsets are rows of their device and stream, linked to
    /// their call by `args.correlation` and an `ac2g` flow; waits are `cuda_sync` rows. A host function is a `cpu_op` of the host,
    /// in a lane for each stream. Times are microseconds with three decimals. A named span is a `user_annotation` of its thread
    /// and a `gpu_user_annotation` of each stream that worked for it. `args.op` is the number of the operation; both calls of an
    /// operation with several launches have it. The op log, if there is one, is `sidestream.op_log` in base64, which viewers
    /// ignore.
    ///
    /// # Errors
    /// An error of the writer.
    pub fn write_json(&self, out: impl Write) -> io::Result<()> {
        let devices: Vec<Value> = self.devices.iter().map(device_properties).collect();
        let mut writer = ChromeWriter::new(out, &devices)?;
        self.write_names(&mut writer)?;
        let mut event = |value: Value| writer.event(&value);
        for span in &self.spans {
            event(self.span_row(span))?;
        }
        let mut before = None;
        for call in &self.calls {
            let is_further = before.replace(call.op) == Some(call.op);
            event(call_row(call, is_further))?;
            if let Some(waits) = call.waits {
                event(self.host_wait_row(call, waits))?;
            }
        }
        before = None;
        for work in &self.work {
            let (pid, tid) = self.lane(work);
            let is_further = before.replace(work.op) == Some(work.op);
            event(work_row(work, is_further, pid, tid))?;
            // A flow from the call to the work; a wait is not work.
            let call = self.call_of(work, is_further);
            if let Some(call) = call.filter(|_| work.what.engine().is_some()) {
                let category = match work.what {
                    What::HostFunc => "async",
                    _ => "ac2g",
                };
                let flow = |ph: &str, pid: u32, tid: u32, start_ns: u64| {
                    json!({"ph": ph, "id": number(work.op, is_further), "pid": pid, "tid": tid,
                           "ts": us(start_ns), "cat": category, "name": category})
                };
                event(flow("s", HOST_PID, call.thread.0, call.start_ns))?;
                let mut end = flow("f", pid, tid, work.start_ns);
                // "bp": "e" binds the flow to the row that encloses its end, not to the next one.
                end["bp"] = "e".into();
                event(end)?;
            }
        }
        writer.finish(|out| match &self.log {
            Some(log) => super::embedded::write(log, out),
            None => Ok(()),
        })
    }

    /// Writes the names of processes and threads, and their order in viewers.
    fn write_names(&self, writer: &mut ChromeWriter<impl Write>) -> io::Result<()> {
        // The host is shown above the devices, although its id is higher.
        writer.process(HOST_PID, "host", -1)?;
        for thread in &self.threads {
            writer.thread(HOST_PID, thread.id.0, &thread.name)?;
        }
        for device in &self.devices {
            let label = format!("GPU {} {}", device.id.0, device.name);
            let place = i64::from(device.id.0);
            writer.process(device.id.0, label.trim_end(), place)?;
        }
        for stream in &self.streams {
            let (pid, tid, name) = (stream.device.0, tid_of(stream), &stream.name);
            writer.thread(pid, tid, &format!("stream {tid} {name}"))?;
            let waits = Some(Waits::Stream(stream.id));
            if self.calls.iter().any(|call| call.waits == waits) {
                let label = format!("stream {tid} {name} (sync)");
                writer.thread(pid, SYNC_TID + tid, &label)?;
            }
            let is_theirs = |w: &Work| w.stream == stream.id && w.what == What::HostFunc;
            if self.work.iter().any(is_theirs) {
                let label = format!("host functions of stream {tid} {name}");
                writer.thread(HOST_PID, HOST_FUNC_TID + tid, &label)?;
            }
        }
        Ok(())
    }

    /// Returns the process and the thread of a row of work.
    fn lane(&self, work: &Work) -> (u32, u32) {
        let tid = self.tid(work.stream);
        match work.what {
            What::HostFunc => (HOST_PID, HOST_FUNC_TID + tid),
            _ => (work.device.0, tid),
        }
    }

    fn span_row(&self, span: &Span) -> Value {
        let (cat, pid, tid) = match span.place {
            Place::Thread(thread) => ("user_annotation", HOST_PID, thread.0),
            Place::Stream(device, stream) => ("gpu_user_annotation", device.0, self.tid(stream)),
        };
        // Kineto links the two sides of an annotation by this id.
        json!({"ph": "X", "cat": cat, "name": span.name, "pid": pid, "tid": tid,
               "ts": us(span.start_ns), "dur": us(span.end_ns - span.start_ns),
               "args": {"External id": span.number + 1}})
    }

    fn host_wait_row(&self, call: &Call, waits: Waits) -> Value {
        // Kineto writes -1 where no stream is named.
        let (name, pid, tid, stream, recorded_by) = match waits {
            Waits::Stream(stream) => {
                let device = self.stream(stream).map_or(0, |s| s.device.0);
                let tid = self.tid(stream);
                let lane = i64::from(SYNC_TID + tid);
                ("Stream Sync", device, lane, i64::from(tid), None)
            }
            Waits::Event { recorded_by } => ("Event Sync", 0, -1, -1, recorded_by),
            Waits::Device(device) => ("Context Sync", device.0, -1, -1, None),
        };
        json!({"ph": "X", "cat": "cuda_sync", "name": name, "pid": pid, "tid": tid,
               "ts": us(call.start_ns), "dur": us(call.end_ns - call.start_ns),
               "args": {"cuda_sync_kind": name, "stream": stream, "op": call.op.0,
                        "correlation": correlation(call.op), "device": pid, "context": 1,
                        "wait_on_cuda_event_record_corr_id": recorded(recorded_by)}})
    }

    /// Returns the call that submitted some work: the second one of its operation if `is_further`, else the first. Calls are in
    /// the order of their operations.
    fn call_of(&self, work: &Work, is_further: bool) -> Option<&Call> {
        let at = self.calls.partition_point(|call| call.op < work.op);
        let of_it = self.calls.get(at + usize::from(is_further));
        of_it.filter(|call| call.op == work.op)
    }

    fn stream(&self, id: StreamId) -> Option<&Stream> {
        self.streams.iter().find(|s| s.id == id)
    }

    fn tid(&self, id: StreamId) -> u32 {
        self.stream(id).map_or(FIRST_TID + id.0, tid_of)
    }
}

fn tid_of(stream: &Stream) -> u32 {
    if stream.is_legacy {
        LEGACY_TID
    } else {
        FIRST_TID + stream.id.0
    }
}

fn device_properties(device: &super::Device) -> Value {
    let mut properties = json!({"id": device.id.0, "name": device.name});
    // Omitted if unknown, since readers would take a zero for a measured value.
    if device.sms > 0 {
        properties["numSms"] = device.sms.into();
    }
    if device.memory_bytes > 0 {
        properties["totalGlobalMem"] = device.memory_bytes.into();
    }
    properties
}

fn call_row(call: &Call, is_further: bool) -> Value {
    let mut args = json!({"op": call.op.0});
    let category = if call.name.starts_with("cuda") {
        args["correlation"] = number(call.op, is_further).into();
        "cuda_runtime"
    } else {
        // Work of the host itself, such as reading a buffer, is not a CUDA call.
        "cpu_op"
    };
    json!({"ph": "X", "cat": category, "name": call.name, "pid": HOST_PID,
           "tid": call.thread.0, "ts": us(call.start_ns), "dur": us(call.end_ns - call.start_ns),
           "args": args})
}

fn moved(args: &mut Value, bytes: u64, duration_ns: u64) {
    args["bytes"] = bytes.into();
    if duration_ns > 0 {
        let rate = bytes as f64 / duration_ns as f64;
        args["memory bandwidth (GB/s)"] = rate.into();
    }
}

fn work_row(work: &Work, is_further: bool, pid: u32, tid: u32) -> Value {
    let duration_ns = work.end_ns - work.start_ns;
    let mut args = json!({"device": work.device.0, "context": 1, "stream": tid,
                          "op": work.op.0, "correlation": number(work.op, is_further)});
    let (cat, name) = match work.what {
        What::Kernel => ("kernel", work.name.clone()),
        What::CopyPeer { bytes } => {
            moved(&mut args, bytes, duration_ns);
            ("gpu_memcpy", "Memcpy PtoP (Device -> Device)".to_owned())
        }
        What::Copy { from, to, bytes } => {
            moved(&mut args, bytes, duration_ns);
            let side = |memory: Memory| if memory.is_host() { 'H' } else { 'D' };
            let name = format!(
                "Memcpy {}to{} ({} -> {})",
                side(from),
                side(to),
                kineto_memory(from),
                kineto_memory(to)
            );
            ("gpu_memcpy", name)
        }
        What::Memset { bytes } => {
            args["bytes"] = bytes.into();
            ("gpu_memset", "Memset (Device)".to_owned())
        }
        What::HostFunc => {
            // The row has no stream and no correlation, so that readers do not take it for device work.
            args = json!({"op": work.op.0});
            ("cpu_op", work.name.clone())
        }
        What::Wait { recorded_by } => {
            args["cuda_sync_kind"] = "Stream Wait Event".into();
            args["wait_on_cuda_event_record_corr_id"] = recorded(recorded_by);
            ("cuda_sync", "Stream Wait Event".to_owned())
        }
    };
    args["label"] = work.label.clone().into();
    json!({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
           "ts": us(work.start_ns), "dur": us(duration_ns), "args": args})
}

fn kineto_memory(memory: Memory) -> &'static str {
    match memory {
        Memory::Device => "Device",
        Memory::Pinned => "Pinned",
        Memory::Pageable => "Pageable",
        Memory::Managed => "Managed",
    }
}

/// Returns the correlation id of an operation. As in CUPTI, ids start at one, since readers take 0 for "none".
fn correlation(op: OpId) -> u64 {
    u64::from(op.0) + 1
}

/// Like [`correlation`], but the second call of an operation has an id that no operation has.
fn number(op: OpId, is_further: bool) -> u64 {
    correlation(op) | u64::from(is_further) << 31
}

/// Returns the id of the operation that recorded an event; -1 if unknown, as in Kineto.
fn recorded(op: Option<OpId>) -> Value {
    op.map_or(Value::from(-1), |op| correlation(op).into())
}
