//! The op log that is embedded in a trace.

use sidestream::trace::{Trace, embedded_log};

fn written(log: Option<&[u8]>) -> Vec<u8> {
    let trace = Trace {
        log: log.map(<[u8]>::to_vec),
        ..Trace::default()
    };
    let mut json = Vec::new();
    trace.write_json(&mut json).unwrap();
    json
}

fn refused(json: &str) -> String {
    embedded_log(json.as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_trace_carries_its_log() {
    let every_byte: Vec<u8> = (0..=255).collect();
    for log in [&b""[..], b"S", b"SI", b"SID", &every_byte] {
        let json = written(Some(log));
        // Viewers read the trace as JSON.
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert!(value["sidestream"]["op_log"].is_string());
        assert!(value["traceEvents"].is_array());
        let found = embedded_log(&json[..]).unwrap();
        assert_eq!(found.as_deref(), Some(log));
    }
}

#[test]
fn a_trace_without_a_log_has_none() {
    assert_eq!(embedded_log(&written(None)[..]).unwrap(), None);
    for json in [
        "[]",
        "[{\"sidestream\": {\"op_log\": \"AAAA\"}}]",
        "{\"traceEvents\": [{\"op_log\": \"AAAA\"}], \"op_log\": \"AAAA\"}",
        "{\"sidestream\": {}}",
        "{\"sidestream\": {\"version\": [1, 2]}}",
    ] {
        assert_eq!(embedded_log(json.as_bytes()).unwrap(), None, "{json}");
    }
}

#[test]
fn a_damaged_trace_is_refused() {
    for (json, because) in [
        ("", "the trace is cut off"),
        ("{\"traceEvents\": [", "the trace is cut off"),
        (
            "{\"sidestream\": {\"op_log\": \"AAA",
            "the trace is cut off",
        ),
        ("SIDESTRM", "line 1 column 1"),
        ("3", "expected a trace: an object, or a list of events"),
        (
            "{\"sidestream\": 3}",
            "expected an object that holds `op_log`",
        ),
        (
            "{\"sidestream\": []}",
            "expected an object that holds `op_log`",
        ),
        (
            "{\"sidestream\": {\"op_log\": 3}}",
            "expected an op log in base64",
        ),
        (
            "{\"sidestream\": {\"op_log\": \"A?==\"}}",
            "`op_log` is not base64",
        ),
        (
            "{\"sidestream\": {\"op_log\": \"\", \"op_log\": \"\"}}",
            "`op_log` is there twice",
        ),
        (
            "{\"sidestream\": {\"op_log\": \"\"}, \"sidestream\": {}}",
            "`sidestream` is there twice",
        ),
        ("{} x", "trailing characters"),
    ] {
        let error = refused(json);
        assert!(error.contains(because), "{json}: {error}");
    }
    let json = written(Some(b"bytes"));
    for end in 0..json.len() - 2 {
        assert!(embedded_log(&json[..end]).is_err(), "{end}");
    }
    // Endless nesting is refused and not followed.
    for open in ["[", "{\"a\":"] {
        assert!(embedded_log(open.repeat(1_000_000).as_bytes()).is_err());
    }
}
