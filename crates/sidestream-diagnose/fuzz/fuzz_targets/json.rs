//! Any bytes are read as JSON or refused.
//!
//! `cargo +nightly fuzz run json` in the folder `fuzz`. Input that does not start like a trace is appended as events after a
//! valid one, so that it reaches the scanner of events at once.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream_diagnose::{Collectives, Limits, copies, devices, read_json};

/// The start of a trace, up to where a second event may follow.
const START: &[u8] = br#"{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"g"}],"traceEvents":[
{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"device":0,"stream":7,"correlation":1}},"#;

fuzz_target!(|bytes: &[u8]| {
    let text = match bytes.first() {
        Some(b'{' | b'[' | 0x1f) => bytes.to_vec(),
        _ => [START, bytes].concat(),
    };
    let limits = Limits {
        python: true,
        ..Limits::default()
    };
    if let Ok(trace) = read_json(&text, &limits) {
        // Every trace that was read can be measured.
        let devices = devices(&trace, &Collectives::of(&trace));
        for device in devices {
            assert!(device.busy_ns() <= device.span_ns);
            assert!(device.hidden_copy_ns <= device.host_copy_ns);
        }
        let _ = copies(&trace);
    }
});
