//! The trace as Chrome JSON, in Kineto's conventions.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{Call, Stream, Trace, Waits, What, Work};
use crate::op::{Memory, StreamId};

/// The process of the host's rows. Devices are processes too, under their index.
const HOST_PID: u32 = 1_000;
/// CUPTI's number for the NULL stream in practice.
const LEGACY_TID: u32 = 7;
/// Other streams count from here.
const FIRST_TID: u32 = 13;

impl Trace {
    /// Writes the trace as Chrome JSON, one event a line.
    ///
    /// Calls are `cuda_runtime` rows of the host; kernels, copies and memsets are rows of their
    /// device and stream, joined to their call by `args.correlation` and an `ac2g` flow; waits are
    /// `cuda_sync` rows. Times are microseconds with three decimals. The op log, where there is one,
    /// is `sidestream.op_log` in base64; viewers pass over it.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn write_json(&self, out: impl Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        let devices: Vec<Value> = self.devices.iter().map(device_properties).collect();
        writeln!(out, "{{")?;
        writeln!(out, "\"schemaVersion\": 1,")?;
        writeln!(out, "\"deviceProperties\": {},", Value::Array(devices))?;
        writeln!(out, "\"displayTimeUnit\": \"ns\",")?;
        write!(out, "\"traceEvents\": [")?;
        let mut separator = "\n";
        let mut event = |value: Value| -> io::Result<()> {
            let result = write!(out, "{separator}{value}");
            separator = ",\n";
            result
        };
        for value in self.names() {
            event(value)?;
        }
        for call in &self.calls {
            event(call_row(call))?;
            if let Some(waits) = call.waits {
                event(self.host_wait_row(call, waits))?;
            }
        }
        for work in &self.work {
            let tid = self.tid(work.stream);
            event(work_row(work, tid))?;
            // A flow from the call to the work; a wait is no work.
            if let Some(call) = self.call_of(work).filter(|_| work.what.engine().is_some()) {
                let flow = |ph: &str, pid: u32, tid: u32, start_ns: u64| {
                    json!({"ph": ph, "id": work.op.0, "pid": pid, "tid": tid, "ts": us(start_ns),
                           "cat": "ac2g", "name": "ac2g", "bp": "e"})
                };
                event(flow("s", HOST_PID, call.thread.0, call.start_ns))?;
                event(flow("f", work.device.0, tid, work.start_ns))?;
            }
        }
        write!(out, "\n]")?;
        if let Some(log) = &self.log {
            super::embedded::write(log, &mut out)?;
        }
        writeln!(out, "\n}}")?;
        out.flush()
    }

    /// The names of processes and threads, for viewers.
    fn names(&self) -> Vec<Value> {
        let name = |what: &str, pid: u32, tid: u32, name: String| {
            json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": us(0),
                   "args": {"name": name}})
        };
        let mut names = vec![name("process_name", HOST_PID, 0, "host".into())];
        for thread in &self.threads {
            names.push(name(
                "thread_name",
                HOST_PID,
                thread.id.0,
                thread.name.clone(),
            ));
        }
        for device in &self.devices {
            let label = format!("GPU {} {}", device.id.0, device.name);
            names.push(name("process_name", device.id.0, 0, label));
        }
        for stream in &self.streams {
            let tid = tid_of(stream);
            let label = format!("stream {tid} {}", stream.name);
            names.push(name("thread_name", stream.device.0, tid, label));
        }
        names
    }

    fn host_wait_row(&self, call: &Call, waits: Waits) -> Value {
        let (name, pid, tid, recorded_by) = match waits {
            Waits::Stream(stream) => {
                let device = self.stream(stream).map_or(0, |s| s.device.0);
                ("Stream Sync", device, i64::from(self.tid(stream)), None)
            }
            Waits::Event { recorded_by } => ("Event Sync", 0, -1, recorded_by),
            Waits::Device(device) => ("Context Sync", device.0, -1, None),
        };
        json!({"ph": "X", "cat": "cuda_sync", "name": name, "pid": pid, "tid": tid,
               "ts": us(call.start_ns), "dur": us(call.end_ns - call.start_ns),
               "args": {"cuda_sync_kind": name, "stream": tid, "correlation": call.op.0,
                        "device": pid, "context": 1,
                        "wait_on_cuda_event_record_corr_id": corr(recorded_by)}})
    }

    /// The call that submitted some work. Calls are in the order of their operations.
    fn call_of(&self, work: &Work) -> Option<&Call> {
        let at = self.calls.partition_point(|call| call.op < work.op);
        self.calls.get(at).filter(|call| call.op == work.op)
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
    json!({"id": device.id.0, "name": device.name, "numSms": device.sms,
           "totalGlobalMem": device.memory_bytes})
}

fn call_row(call: &Call) -> Value {
    json!({"ph": "X", "cat": "cuda_runtime", "name": call.name, "pid": HOST_PID,
           "tid": call.thread.0, "ts": us(call.start_ns), "dur": us(call.end_ns - call.start_ns),
           "args": {"correlation": call.op.0}})
}

fn work_row(work: &Work, tid: u32) -> Value {
    let duration_ns = work.end_ns - work.start_ns;
    let mut args = json!({"device": work.device.0, "context": 1, "stream": tid,
                          "correlation": work.op.0});
    let (cat, name) = match work.what {
        What::Kernel => ("kernel", work.name.clone()),
        What::Copy { from, to, bytes } => {
            args["bytes"] = bytes.into();
            if duration_ns > 0 {
                let rate = bytes as f64 / duration_ns as f64;
                args["memory bandwidth (GB/s)"] = rate.into();
            }
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
        What::HostFunc => ("gpu_user_annotation", work.name.clone()),
        What::Wait { recorded_by } => {
            args["cuda_sync_kind"] = "Stream Wait Event".into();
            args["wait_on_cuda_event_record_corr_id"] = corr(recorded_by);
            ("cuda_sync", "Stream Wait Event".to_owned())
        }
    };
    args["label"] = work.name.clone().into();
    json!({"ph": "X", "cat": cat, "name": name, "pid": work.device.0, "tid": tid,
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

/// Kineto writes -1 where it knows no record.
fn corr(op: Option<crate::op::OpId>) -> Value {
    op.map_or(Value::from(-1), |op| Value::from(op.0))
}

/// Nanoseconds as microseconds with three decimals, exactly.
fn us(ns: u64) -> Value {
    let text = format!("{}.{:03}", ns / 1_000, ns % 1_000);
    // Three decimals of a whole number of digits are a JSON number.
    serde_json::from_str(&text).unwrap_or(Value::Null)
}
