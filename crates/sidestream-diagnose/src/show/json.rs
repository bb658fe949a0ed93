//! The report as JSON, and one of its tables; docs/guide/diagnose.md lists the fields.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::columns::{KERNELS, OPERATORS, Sort, fields};
use super::table::{Table, View, kernels, operator_name, operators, range_name, ranges};
use super::why::why;
use crate::findings::{Evidence, Finding};
use crate::idle::Idle;
use crate::measure::{Blocking, Class, Copies, DeviceMemory, DeviceTime, Holder, Line};
use crate::replay::{Prediction, Replay};
use crate::report::{LISTED, Report};

/// The version of the JSON. Fields may be added within a version; none changes its meaning.
pub const SCHEMA: &str = "sidestream.diagnose/2";
/// The version of the JSON of one table.
pub const TABLE_SCHEMA: &str = "sidestream.diagnose.table/1";

/// The maximum number of rows of each table in the JSON of a report.
const IN_REPORT: usize = 100;

/// Returns one table as JSON.
pub fn table_json(report: &Report, view: &View) -> Value {
    let rows = match view.table {
        Table::Operators => report.operators_json(view.sort, view.limit, view.by_shape),
        Table::Ranges => report.ranges_json(view.sort, view.limit),
        Table::Kernels => report.kernels_json(view.sort, view.limit),
        Table::Memory => report.memory_json(view.limit),
    };
    json!({"schema": TABLE_SCHEMA, "table": view.table, "rows": rows})
}

/// Converts all elements of a list to values.
fn each<T>(list: &[T], one: impl Fn(&T) -> Value) -> Vec<Value> {
    list.iter().map(one).collect()
}

impl Report {
    /// Returns the report as JSON; docs/guide/diagnose.md lists the fields.
    pub fn json(&self) -> Value {
        let line = |line: &Line| {
            json!({"name": self.names.text(line.name), "calls": line.calls,
                   "total_ns": line.total_ns, "self_ns": line.self_ns})
        };
        let blocking = |b: &Blocking| {
            json!({"call": self.names.text(b.name), "count": b.count, "ns": b.duration_ns,
                   "idle_ns": b.idle_ns})
        };
        let copies = |copies: &Copies| {
            json!({"direction": copies.direction, "memory": copies.memory, "count": copies.count,
                   "bytes": copies.bytes, "ns": copies.duration_ns, "gb_per_s": copies.gb_per_s()})
        };
        let listed = |lines: &[Line]| each(&lines[..lines.len().min(LISTED)], line);
        let spread = self.steps.spread_ns();
        json!({
            "schema": SCHEMA,
            "source": {"kind": self.source, "events": self.events, "rank": self.rank,
                       "world": self.world},
            "devices": each(&self.devices, |(device, idle)| self.device(device, idle)),
            "steps": {
                "count": self.steps.steps.len(),
                "median_ns": self.steps.median_ns(),
                "mean_ns": self.steps.mean_ns(),
                "by": self.steps.by,
                "p10_ns": spread.map(|s| s.0),
                "p90_ns": spread.map(|s| s.1),
            },
            "unprofiled": self.base.measured(),
            "per_step": self.per_step,
            "copies": each(&self.copies, copies),
            "link": {"gb_per_s": self.link.0, "by": self.link.1},
            "launches": {
                "linked": self.launches.linked,
                "orphans": self.launches.orphans,
                "latency_ns": self.launches.latency_ns,
                "queue_depth": self.launches.queue_depth,
                "launch_bound_share": self.launches.launch_bound_per_mille as f64 / 1e3,
            },
            "blocking": each(&self.blocking, blocking),
            "kernels": listed(&self.kernels),
            "operators": listed(&self.operators),
            "tables": {
                "operators": self.operators_json(None, IN_REPORT, false),
                "ranges": self.ranges_json(None, IN_REPORT),
                "outside_ranges": self.ranges.outside,
                "kernels": self.kernels_json(None, IN_REPORT),
                "memory": self.memory_json(IN_REPORT),
            },
            "findings": each(&self.findings, |finding| self.finding(finding)),
            "replay": match &self.replay {
                Ok(replay) => replay_json(replay),
                Err(why) => json!({"ok": false, "why": why}),
            },
            "what_if": match &self.replay {
                Ok(replay) => each(&replay.predictions, |one| prediction_json(replay, one)),
                Err(_) => Vec::new(),
            },
            "warnings": self.warnings,
        })
    }

    fn device(&self, device: &DeviceTime, idle: &Idle) -> Value {
        let streams = device.streams.iter().map(|load| {
            let stream = self.streams.get(load.stream.0 as usize);
            json!({"stream": stream.map(|s| s.number), "context": stream.map(|s| s.context),
                   "gpu_ops": load.gpu_ops, "busy_ns": load.busy_ns})
        });
        let by_class = |row: [u64; Class::ALL.len()]| -> BTreeMap<Class, u64> {
            Class::ALL.into_iter().zip(row).collect()
        };
        let overlap = device.overlap_ns.map(by_class);
        json!({
            "process": device.process,
            "device": device.device,
            "name": device.name,
            "gpu_ops": device.gpu_ops,
            "span_ns": device.span_ns,
            "busy_ns": device.busy_ns(),
            "idle_ns": device.idle_ns(),
            "kernel_ns": device.kernel_ns(),
            "host_copy_ns": device.host_copy_ns,
            "hidden_copy_ns": device.hidden_copy_ns,
            "gaps_10us": device.gaps_10us,
            "gaps_1ms": device.gaps_1ms,
            "idle_by_cause": idle.by_cause,
            "streams": streams.collect::<Vec<_>>(),
            "overlap_ns": Class::ALL.into_iter().zip(overlap).collect::<BTreeMap<_, _>>(),
        })
    }

    fn finding(&self, finding: &Finding) -> Value {
        let evidence = |evidence: &Evidence| {
            let (offset_ns, step) = self.place(evidence.start_ns);
            json!({"what": evidence.what, "start_ns": evidence.start_ns, "offset_ns": offset_ns,
                   "step": step, "duration_ns": evidence.duration_ns, "is_gap": evidence.is_gap,
                   "call": evidence.call, "operators": evidence.operators})
        };
        json!({"code": finding.code, "is_aside": finding.code.is_aside(), "text": finding.text,
               "share": finding.share, "changes": finding.changes, "saving_ns": finding.saving_ns, "floor_ns": finding.floor_ns,
               "evidence": each(&finding.evidence, evidence)})
    }

    fn operators_json(&self, sort: Option<Sort>, limit: usize, by_shape: bool) -> Vec<Value> {
        each(&operators(self, sort, limit, by_shape), |row| {
            let shapes = row.shape.map(|shape| self.names.text(shape));
            let head = json!({"name": operator_name(&self.names, row), "kind": row.kind,
                              "shapes": shapes, "calls": row.calls});
            fields(head, OPERATORS.iter().rev(), self, row)
        })
    }

    fn ranges_json(&self, sort: Option<Sort>, limit: usize) -> Vec<Value> {
        each(&ranges(self, sort, limit), |row| {
            let thread = self.threads.get(row.thread.0 as usize);
            json!({"name": range_name(&self.names, row), "depth": row.depth, "calls": row.calls,
                   "process": thread.map(|thread| thread.process),
                   "thread": thread.map(|thread| thread.thread), "total": row.total, "own": row.own})
        })
    }

    fn kernels_json(&self, sort: Option<Sort>, limit: usize) -> Vec<Value> {
        each(&kernels(self, sort, limit), |row| {
            let why = self.launched.get(&row.name).and_then(|l| why(l, self.sms));
            let (why, measure) = why.unzip();
            let head = json!({"name": self.names.text(row.name), "calls": row.calls, "why": why,
                              "measure": measure});
            fields(head, KERNELS.iter(), self, row)
        })
    }

    fn memory_json(&self, limit: usize) -> Vec<Value> {
        let text = |name| self.names.text(name);
        let holder = |holder: &Holder| {
            json!({"operator": holder.operator.map(text), "range": holder.range.map(text),
                   "pieces": holder.pieces, "bytes": holder.bytes})
        };
        each(&self.memory, |of: &DeviceMemory| {
            let (offset_ns, step) = self.place(of.peak_ns);
            json!({"device": of.device, "peak_bytes": of.peak_bytes, "peak_offset_ns": offset_ns,
                   "step": step, "before_bytes": of.before_bytes, "taken": of.taken,
                   "given_back": of.given_back,
                   "holders": each(&of.holders[..of.holders.len().min(limit)], holder),
                   "points": each(&of.points, |(at, bytes)| json!([self.place(*at).0, bytes]))})
        })
    }
}

fn replay_json(replay: &Replay) -> Value {
    json!({
        "measured_ns": replay.measured_ns,
        "replayed_ns": replay.replayed_ns,
        "median_error": replay.error(),
        "steps": replay.steps,
        "explained_share": replay.explained_share,
        "unprofiled_ns": replay.unprofiled_ns,
        "base": match replay.base.measured() {
            Some(_) => "measured",
            None => "estimated",
        },
        "unprofiled_between_ns": replay.unprofiled_between_ns,
        "ok": replay.is_ok(),
    })
}

fn prediction_json(replay: &Replay, prediction: &Prediction) -> Value {
    json!({"changes": prediction.changes,
           "step_ns": {"low": prediction.low_ns, "likely": prediction.likely_ns,
                       "high": prediction.high_ns},
           "ratio": prediction.likely_ns as f64 / replay.unprofiled_ns.max(1) as f64})
}
