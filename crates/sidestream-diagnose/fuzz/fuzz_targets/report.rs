//! No trace makes the report panic, and idle time is always attributed exactly once.
//!
//! `cargo +nightly fuzz run report` in the folder `fuzz`. Input that does not start like a trace is appended as its events,
//! after a few valid ones.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream_diagnose::{
    Limits, Options, Report, Table, View, annotated, html, read_json, table_text,
};

/// A call, its kernel, a copy and a step.
const START: &str = r#"{"traceEvents": [
{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":1.5,"dur":5,"args":{"correlation":1}},
{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":10,"dur":5,"args":{"device":0,"context":1,"stream":7,"correlation":1,"grid":[1,1,1],"block":[32,1,1]}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD (Pageable -> Device)","pid":0,"tid":7,"ts":90,"dur":5,"args":{"stream":7,"bytes":64}},
{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":1.2,"dur":8,"args":{"Input Dims":[[2,3],[3]]}},
{"ph":"i","cat":"cpu_instant_event","name":"[memory]","pid":9,"tid":9,"ts":2,"args":{"Addr":64,"Bytes":512,"Total Allocated":1024,"Device Id":0,"Device Type":1}},
{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":9,"tid":9,"ts":1,"dur":50},
"#;

fuzz_target!(|bytes: &[u8]| {
    let is_whole = matches!(bytes.first(), Some(b'{' | b'[' | 0x1f));
    let text = match is_whole {
        true => bytes.to_vec(),
        false => [START.as_bytes(), bytes].concat(),
    };
    let limits = Limits {
        needs_work: bytes.len() % 3 > 0,
        rows_bytes: 1 << 24,
        python: bytes.len() % 2 == 1,
        ..Limits::default()
    };
    // An error is a valid result, like a trace.
    let Ok(trace) = read_json(&text, &limits) else {
        return;
    };
    let report = Report::of(trace, &Options::default());
    for (device, idle) in &report.devices {
        let sum: u64 = idle.by_cause.values().sum();
        assert_eq!(sum, device.idle_ns());
    }
    let _ = report.json().to_string();
    let ranges = &report.ranges;
    let given: u64 = ranges.nodes.iter().map(|node| node.own.device_ops).sum();
    let works: usize = report.devices.iter().map(|device| device.0.gpu_ops).sum();
    assert_eq!(given + ranges.outside.device_ops, works as u64);
    for table in Table::ALL {
        let view = View {
            table,
            sort: None,
            limit: 1 + bytes.len() % 100,
            by_shape: false,
        };
        let _ = table_text("x", &report, &view, Some(20 + view.limit));
    }
    assert!(html("x", &report).len() < 2_000_000);
    let mut written = Vec::new();
    annotated("x", &report, &mut written).expect("memory takes everything");
});
