//! Tests JSON traces of every year, whole and damaged: text in, rows out.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use sidestream_diagnose::{Limits, Options, Problem, Report, Trace, What, read_json};

/// Returns the rows of a trace, one per line, in their order, followed by its warnings.
fn shown(trace: &Trace) -> String {
    let mut lines = Vec::new();
    for work in &trace.work {
        let stream = &trace.streams[work.stream.0 as usize];
        let what = match work.what {
            What::Kernel(kernel) => format!("kernel {}x{}", kernel.blocks, kernel.threads),
            What::Copy {
                direction,
                from,
                to,
                bytes,
            } => {
                let (direction, from, to) = (direction.as_str(), from.as_str(), to.as_str());
                format!("{direction} {from}>{to} {bytes} B")
            }
            What::Memset { memory, bytes } => format!("memset {} {bytes} B", memory.as_str()),
        };
        let process = stream.process.map_or("?".to_owned(), |p| p.to_string());
        lines.push(format!(
            "{}+{} {what} on {process}/{}/{}/{} #{} {}",
            work.start_ns,
            work.duration_ns,
            stream.device,
            stream.context,
            stream.number,
            work.correlation,
            trace.names.text(work.name)
        ));
    }
    for call in &trace.calls {
        let thread = &trace.threads[call.thread.0 as usize];
        lines.push(format!(
            "{}+{} call {:?} by {}/{} #{} {}",
            call.start_ns,
            call.duration_ns,
            call.api.kind,
            thread.process,
            thread.thread,
            call.correlation,
            trace.names.text(call.name)
        ));
    }
    for range in &trace.ranges {
        let name = trace.names.text(range.name);
        let (start, duration) = (range.start_ns, range.duration_ns);
        lines.push(format!("{start}+{duration} {:?} {name}", range.kind));
    }
    for sync in &trace.syncs {
        let stream = sync.stream.map(|s| trace.streams[s.0 as usize].number);
        lines.push(format!(
            "{}+{} wait {:?} {stream:?} #{} after #{}",
            sync.start_ns, sync.duration_ns, sync.kind, sync.correlation, sync.record_correlation
        ));
    }
    lines.extend(trace.warnings.iter().map(|w| format!("{}: {w}", w.code)));
    lines.join("\n")
}

#[track_caller]
fn check(json: &str, expected: &str) {
    let trace = read_json(json.as_bytes(), &Limits::default()).expect("a trace");
    let expected: Vec<&str> = expected.lines().map(str::trim).collect();
    assert_eq!(shown(&trace), expected.join("\n").trim());
}

#[track_caller]
fn refused(json: impl AsRef<[u8]>, says: &str) {
    let why = match read_json(json.as_ref(), &Limits::default()) {
        Ok(trace) => panic!("it was read:\n{}", shown(&trace)),
        Err(problem) => problem.to_string(),
    };
    assert!(why.contains(says), "no {says:?} in: {why}");
}

fn events(rows: &str) -> String {
    format!("{{\"schemaVersion\": 1, \"traceEvents\": [\n{rows}\n]}}")
}

const KERNEL: &str =
    r#"{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 1}"#;

#[test]
fn the_words_of_2021() {
    check(
        &events(
            r#"{"ph": "X", "cat": "Operator", "name": "ProfilerStep#3", "pid": 9, "tid": "9", "ts": 100, "dur": 50, "args": {"Device": 9, "Input Dims": [[], []]}},
            {"ph": "X", "cat": "Operator", "name": "aten::to", "pid": 9, "tid": "9", "ts": 101, "dur": 20},
            {"ph": "i", "s": "t", "name": "[memory]", "pid": 9, "tid": 9, "ts": 101, "args": {"Bytes": -16}},
            {"ph": "X", "cat": "Runtime", "name": "cudaMemcpyAsync", "pid": 9, "tid": "9", "ts": 102, "dur": 9, "args": {"cbid": 41, "correlation": 68824, "external id": 1}},
            {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": "stream 7", "ts": 104, "dur": 6, "args": {"device": 0, "context": 1, "stream": 7, "correlation": 68824, "bytes": 4096}},
            {"ph": "X", "cat": "Kernel", "name": "conv", "pid": 0, "tid": "stream 7", "ts": 111, "dur": 2, "args": {"device": 0, "context": 1, "stream": 7, "correlation": 68830, "grid": [50, 2, 1], "block": [256, 1, 1]}},
            {"ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 0, "tid": "stream 7", "ts": 110, "dur": 1, "args": {"device": 0, "context": 1, "stream": 7, "correlation": 1, "bytes": 128}},
            {"ph": "X", "cat": "Trace", "ts": 90, "dur": 99, "pid": "Traces", "tid": "PyTorch Profiler", "name": "x"}"#,
        ),
        "104000+6000 HtoD pageable>device 4096 B on 9/0/1/7 #68824 Memcpy HtoD (Pageable -> Device)
         110000+1000 memset device 128 B on 9/0/1/7 #1 Memset (Device)
         111000+2000 kernel 100x256 on 9/0/1/7 #68830 conv
         102000+9000 call CopyAsync by 9/9 #68824 cudaMemcpyAsync
         100000+50000 Step ProfilerStep#3
         101000+20000 Operator aten::to",
    );
}

#[test]
fn the_words_of_2022_and_whole_microseconds_since_1970() {
    check(
        &events(
            r#"{"ph": "X", "cat": "kernel", "name": "k", "pid": 3, "tid": 22, "ts": 1661203462926087, "dur": 45, "args": {"device": 3, "context": 1, "stream": 22, "correlation": 7}},
            {"ph": "f", "id": 7, "pid": 3, "tid": 22, "ts": 1661203462926087, "cat": "async_cpu_to_gpu", "name": "async_gpu", "bp": "e"}"#,
        ),
        "1661203462926087000+45000 kernel 0x0 on ?/3/1/22 #7 k",
    );
}

#[test]
fn nanoseconds_of_2024_and_operators_that_name_a_stream() {
    check(
        &events(
            r#"{"ph": "X", "cat": "cpu_op", "name": "triton", "pid": 5, "tid": 6, "ts": 1365627910559.633, "dur": 0.224, "args": {"stream": 7, "grid": [1, 1, 1]}},
            {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": 0, "tid": 7, "ts": 1365627910559.633, "dur": 100.5},
            {"ph": "X", "cat": "python_function", "name": "f", "pid": 5, "tid": 6, "ts": 1, "dur": 1},
            {"ph": "X", "cat": "overhead", "name": "Lazy Function Loading", "pid": -1, "tid": 0, "ts": 2, "dur": 3},
            {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 5, "tid": 6, "ts": 1365627910560.001, "dur": 6.562, "args": {"correlation": 4294967295}},
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1365627910567.000, "dur": 28.096, "args": {"correlation": 4294967295, "device": 0, "stream": 7}}"#,
        ),
        "1365627910567000+28096 kernel 0x0 on 5/0/0/7 #4294967295 k
         1365627910560001+6562 call Launch by 5/6 #4294967295 cuLaunchKernelEx
         2000+3000 Overhead Lazy Function Loading
         1365627910559633+224 Operator triton",
    );
}

#[test]
fn waits_of_2026_are_not_in_a_separate_stream() {
    check(
        &events(
            r#"{"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 1000007, "ts": 1, "dur": 2, "args": {"stream": 7, "correlation": 3, "device": 0, "context": 1}},
            {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 9, "ts": 2, "dur": 0, "args": {"stream": 9, "correlation": 4, "device": 0, "context": 1, "wait_on_cuda_event_record_corr_id": 2}},
            {"ph": "X", "cat": "cuda_sync", "name": "Context Sync", "pid": 0, "tid": -1, "ts": 3, "dur": 1, "args": {"stream": 4294967295, "correlation": 5, "wait_on_cuda_event_record_corr_id": -1}},
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 1, "args": {"device": 0, "context": 1, "stream": 7, "graph id": 12, "graph node id": 8589934593}}"#,
        ),
        "5000+1000 kernel 0x0 on ?/0/1/7 #0 k
         1000+2000 wait Stream Some(7) #3 after #0
         2000+0 wait StreamWait Some(9) #4 after #2
         3000+1000 wait Context None #5 after #0",
    );
}

#[test]
fn rocm_does_not_say_which_memory() {
    check(
        &events(
            r#"{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Host -> Device)", "pid": 2, "tid": 0, "ts": 1, "dur": 1, "args": {"device": 2, "stream": 0, "kind": "HtoD"}},
            {"ph": "X", "cat": "cuda_runtime", "name": "hipMemcpyWithStream", "pid": 5, "tid": 6, "ts": 0, "dur": 2}"#,
        ),
        "1000+1000 HtoD unknown>device 0 B on 5/2/0/0 #0 Memcpy HtoD (Host -> Device)
         0+2000 call Copy by 5/6 #0 hipMemcpyWithStream",
    );
}

#[test]
fn a_bare_list_and_any_order_of_keys() {
    check(
        &format!("\u{feff} [{KERNEL}"),
        "5000+1000 kernel 0x0 on ?/0/0/7 #0 k
         TRUNCATED: the file ends at byte 85 of its text, inside the list of events; all figures are of the 1 event before that",
    );
    check(
        r#"{"traceName": "x\"y]}", "nested": [{"traceEvents": []}, "}"],
            "traceEvents": [{"args": {"stream": 8, "device": 1, "op": 3}, "dur": "2", "tid": "x", "ts": "1.5", "name": "k", "cat": "kernel", "ph": "X"}],
            "distributedInfo": {"rank": 3}, "last": 1}"#,
        "1500+2000 kernel 0x0 on ?/1/0/8 #0 k",
    );
}

#[test]
fn names_are_taken_as_they_come() {
    check(
        &events(
            r#"{"ph": "X", "cat": "kernel", "name": "f("a", "b")", "pid": 0, "tid": 7, "ts": 5, "dur": 1},
            {"ph": "X", "cat": "kernel", "name": "<script>alert("x")</script>", "pid": 0, "tid": 7, "ts": 6, "dur": 1}"#,
        ),
        "5000+1000 kernel 0x0 on ?/0/0/7 #0 f(\"a\", \"b\")
         6000+1000 kernel 0x0 on ?/0/0/7 #0 <script>alert(\"x\")</script>",
    );
}

#[test]
fn damaged_events_are_counted_and_left_out() {
    check(
        &events(&format!(
            "{KERNEL},\n{{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"never closed, \"pid\": 0}},\n{KERNEL},
            {{\"ph\": \"X\", \"cat\" \"kernel\"}}, {{}}, 17,\n{KERNEL}"
        )),
        "5000+1000 kernel 0x0 on ?/0/0/7 #0 k
         5000+1000 kernel 0x0 on ?/0/0/7 #0 k
         5000+1000 kernel 0x0 on ?/0/0/7 #0 k
         DAMAGED: 3 places in the list of events cannot be read and are left out",
    );
    check(
        &events(&format!(
            r#"{KERNEL},
            {{"ph": "X", "cat": "kernel", "name": "k", "ts": NaN, "dur": 1}},
            {{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": -1}},
            {{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e300, "dur": 1}},
            {{"ph": "X", "cat": "kernel", "name": "k", "dur": 1}}"#
        )),
        "5000+1000 kernel 0x0 on ?/0/0/7 #0 k
         INCOMPLETE: 4 events have no valid time and are left out",
    );
}

#[test]
fn a_trace_that_is_cut_anywhere_never_panics_and_keeps_what_is_whole() {
    let whole = events(&format!("{KERNEL},\n{KERNEL},\n{KERNEL}"));
    let first_ends = whole.find(KERNEL).expect("it is there") + KERNEL.len();
    for end in 0..whole.len() {
        match read_json(&whole.as_bytes()[..end], &Limits::default()) {
            Ok(trace) => {
                assert!(end >= first_ends, "{end}");
                let truncated = trace.warnings.iter().any(|w| w.code == "TRUNCATED");
                assert!(truncated, "{end}");
            }
            Err(_) => assert!(end < first_ends, "{end}"),
        }
    }
}

#[test]
fn files_that_are_not_traces_are_refused_with_a_reason() {
    refused("", "the file is empty");
    refused("  \n ", "the file is empty");
    refused("hello", "not a trace");
    refused("\x7fELF\x02\x01\x01", "not a trace");
    refused("name: a program\nops: []\n", "not a trace");
    refused("[1, 2, 3]", "not a trace");
    refused("{\"a\": 1}", "without a member `traceEvents`");
    refused("{\"traceEvents\": 5}", "not JSON");
    refused("{\"traceEvents\": []}", "no kernels, copies or memsets");
    refused("{\"traceEvents\": [", "at byte 17");
    refused("{\"a\": ", "at byte 6");
    refused("{\"a\": }", "a value is missing");
    refused("{a: 1}", "not JSON");
    refused(
        events(
            r#"{"ph": "X", "cat": "cpu_op", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 1}"#,
        ),
        "was the profiler asked for CUDA activity?",
    );
    let call = |name: &str| {
        format!(
            r#"{{"ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 1, "tid": 1, "ts": 1, "dur": 1}}"#
        )
    };
    let launches = [call("cudaLaunchKernel"), call("cudaGraphLaunch")].join(",");
    refused(
        events(&launches),
        "the trace has 2 kernel launches and no records of kernels, copies or memsets",
    );
    refused(
        events(&call("cudaMemcpyAsync")),
        "the trace has 1 call that copies and no records",
    );
    refused(
        events(&call("cudaGetDevice")),
        "the trace has 1 call of CUDA, which neither launches nor copies, and no kernels",
    );
}

#[test]
fn hostile_files_end_soon() {
    // Nested too deep, in an event and outside of one.
    let deep = "[".repeat(1 << 20);
    let row = format!("{{\"ph\": \"X\", \"args\": {{\"x\": {deep}");
    refused(events(&row), "");
    refused(format!("{{\"x\": {deep}"), "");
    // Strings that are never closed, one in each event: each must be scanned only once.
    let open = r#"{"ph": "X", "name": "#.repeat(1 << 16);
    refused(events(&open), "");
    let quotes = format!("{{\"ph\": \"X\", \"name\": \"{}", "\"".repeat(1 << 20));
    refused(events(&quotes), "");
    let spaces = format!("{{\"ph\": \"X\", \"name\": \"{}", "\" ".repeat(1 << 20));
    refused(events(&spaces), "");
    let escapes = format!("{{\"ph\": \"X\", \"name\": \"{}", "\\".repeat(1 << 20));
    refused(events(&escapes), "");
}

#[test]
fn more_streams_than_any_program_has_are_refused() {
    let rows: Vec<String> = (0..70_000)
        .map(|i| KERNEL.replace("\"tid\": 7", &format!("\"tid\": {i}")))
        .collect();
    refused(events(&rows.join(",\n")), "more than 65536 streams");
}

#[test]
fn rows_beyond_the_limit_are_not_read() {
    let rows = vec![KERNEL; 20_000].join(",\n");
    let limits = Limits {
        rows_bytes: 480_000,
        ..Limits::default()
    };
    let trace = read_json(events(&rows).as_bytes(), &limits).expect("a trace");
    // The limit is checked only now and then.
    assert!(
        (10_000..15_000).contains(&trace.work.len()),
        "{}",
        trace.work.len()
    );
    assert_eq!(trace.warnings[0].code, "LIMIT");
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).expect("memory takes everything");
    encoder.finish().expect("memory takes everything")
}

#[test]
fn compressed_traces_are_unpacked_as_they_are_read() {
    let text = events(&vec![KERNEL; 1000].join(",\n"));
    let mut bytes = packed(text.as_bytes());
    let trace = read_json(&bytes, &Limits::default()).expect("a trace");
    assert_eq!((trace.work.len(), trace.warnings.len()), (1000, 0));
    // A further member of a file that was compressed in parts.
    bytes.extend(packed(b" "));
    assert!(read_json(&bytes, &Limits::default()).is_ok());
    bytes.truncate(bytes.len() / 2);
    if let Ok(trace) = read_json(&bytes, &Limits::default()) {
        assert_eq!(trace.warnings[0].code, "TRUNCATED");
    }
    refused(&packed(b"")[..], "the file is empty");
}

#[test]
fn a_file_that_unpacks_without_end_is_refused() {
    let spaces = vec![b' '; 1 << 20];
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for text in [b"{\"traceEvents\": [" as &[u8], KERNEL.as_bytes(), b","] {
        encoder.write_all(text).expect("memory takes everything");
    }
    for _ in 0..100 {
        encoder.write_all(&spaces).expect("memory takes everything");
    }
    let bomb = encoder.finish().expect("memory takes everything");
    assert!(bomb.len() < 200_000);
    match read_json(&bomb, &Limits::default()) {
        Err(Problem::Bomb { ratio: 200 }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn times_at_the_ends_of_the_range_make_a_report() {
    // About the earliest and the latest time, in microseconds, that fit into 64 bits as nanoseconds.
    let (first, longest) = ("-9223372036854775", "9223372036854775");
    let mut rows = Vec::new();
    for (at, start) in [first, "0", "1", longest]
        .iter()
        .cycle()
        .take(40)
        .enumerate()
    {
        rows.push(format!(
            r#"{{"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 1, "tid": {}, "ts": {start}, "dur": {longest}, "args": {{"correlation": {}}}}}"#,
            at % 3,
            at + 1
        ));
        rows.push(format!(
            r#"{{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": {}, "ts": {start}, "dur": {longest}, "args": {{"correlation": {}, "bytes": 9223372036854775807}}}}"#,
            at % 2,
            at + 1
        ));
        rows.push(format!(
            r#"{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 9, "ts": {start}, "dur": {longest}, "args": {{"correlation": {}}}}}"#,
            at + 1
        ));
        rows.push(format!(
            r#"{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{at}", "pid": 1, "tid": {}, "ts": {start}, "dur": {}}}"#,
            at % 3,
            at
        ));
        rows.push(format!(
            r#"{{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": {start}, "dur": {longest}}}"#
        ));
    }
    let trace = read_json(events(&rows.join(",\n")).as_bytes(), &Limits::default());
    let report = Report::of(trace.expect("a trace"), &Options::default());
    for (device, idle) in &report.devices {
        assert_eq!(idle.by_cause.values().sum::<u64>(), device.idle_ns());
    }
    assert!(report.json().to_string().contains("\"schema\""));
}

#[test]
fn a_file_that_ends_too_early_says_once_where_and_with_what_effect() {
    let whole = events(&format!("{KERNEL},\n{KERNEL},\n{KERNEL}"));
    let cut = &whole[..whole.len() - 20];
    let trace = read_json(cut.as_bytes(), &Limits::default()).expect("a trace");
    let text = format!(
        "the file ends at byte {} of its text, inside the list of events; all figures are of the 2 \
         events before that",
        cut.len()
    );
    let [warning] = &trace.warnings[..] else {
        panic!("{:?}", trace.warnings);
    };
    assert_eq!((warning.code, &warning.text), ("TRUNCATED", &text));
    // If no device work precedes the end of the file, the message names the place only once.
    let cut = &whole[..60];
    let why = read_json(cut.as_bytes(), &Limits::default()).expect_err("nothing is there");
    assert_eq!(
        why.to_string(),
        "the file ends at byte 60 of its text, inside the list of events, and there is no device work \
         before that; export the trace again"
    );
}

/// Returns a kernel's event with its keys in another order.
fn rotated(by: usize) -> String {
    let mut fields = [
        r#""ph": "X""#,
        r#""cat": "kernel""#,
        r#""name": "k, {\"ph\": 1}""#,
        r#""pid": 0"#,
        r#""tid": 7"#,
        r#""ts": 5.25"#,
        r#""dur": 1.125"#,
        r#""args": {"device": 1, "stream": 8, "context": 2, "correlation": 9, "name": "other", "ts": 99}"#,
    ];
    fields.rotate_left(by);
    format!("{{{}}}", fields.join(", "))
}

#[test]
fn the_keys_of_an_event_come_in_any_order() {
    for by in 0..8 {
        check(
            &events(&rotated(by)),
            "5250+1125 kernel 0x0 on ?/1/2/8 #9 k, {\"ph\": 1}",
        );
    }
}

#[test]
fn members_of_the_file_come_in_any_order() {
    let list = format!("\"traceEvents\": [{KERNEL}]");
    let mut members = [
        r#""schemaVersion": 1"#,
        r#""deviceProperties": [{"id": 0, "name": "NVIDIA A100", "numSms": 108}]"#,
        r#""distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 8}"#,
        r#""cupti_version": 24"#,
        r#""displayTimeUnit": "ms""#,
        r#""baseTimeNanoseconds": 1767189312000000000"#,
        r#""traceName": "traces/rank\"5\".json""#,
        &list,
    ];
    for _ in 0..members.len() {
        members.rotate_left(1);
        let text = format!("{{{}}}", members.join(",\n"));
        let trace = read_json(text.as_bytes(), &Limits::default()).expect("a trace");
        assert_eq!(shown(&trace), "5000+1000 kernel 0x0 on ?/0/0/7 #0 k");
        assert_eq!((trace.rank, trace.devices[0].sms), (Some(5), Some(108)));
    }
}

#[test]
fn a_copys_name_gives_its_direction_and_memory() {
    let copy = |name: &str| {
        events(&format!(
            r#"{{"ph": "X", "cat": "gpu_memcpy", "name": "{name}", "pid": 0, "tid": 7, "ts": 1, "dur": 0, "args": {{"stream": 7, "bytes": 8}}}}"#
        ))
    };
    for (name, expected) in [
        ("HtoD (Pageable -> Device)", "HtoD pageable>device"),
        ("HtoD (Pinned -> Device)", "HtoD pinned>device"),
        ("HtoD (Unknown -> Device)", "HtoD unknown>device"),
        ("HtoD (Host -> Device)", "HtoD unknown>device"),
        ("HtoA (Pinned -> Array)", "HtoD pinned>array"),
        ("DtoH (Device -> Pinned)", "DtoH device>pinned"),
        ("DtoH (Device -> Host)", "DtoH device>unknown"),
        ("AtoH (Array -> Pageable)", "DtoH array>pageable"),
        ("DtoD (Device -> Device)", "DtoD device>device"),
        ("DtoD (Device Static -> Device)", "DtoD device>device"),
        ("HtoD (Managed -> Device)", "HtoD managed>device"),
        ("HtoD (Managed Static -> Device)", "HtoD managed>device"),
        ("PtoP (Device -> Device)", "PtoP device>device"),
        ("HtoH (Pinned -> Pageable)", "HtoH pinned>pageable"),
        ("XtoY (Somewhere -> Else)", "unknown unknown>unknown"),
        ("HtoD", "HtoD unknown>unknown"),
    ] {
        let name = format!("Memcpy {name}");
        check(
            &copy(&name),
            &format!("1000+0 {expected} 8 B on ?/0/0/7 #0 {name}"),
        );
    }
}

#[test]
fn fields_that_are_not_needed_do_no_harm() {
    check(
        &events(
            r#"{"ph": "C", "name": "GPU 0 Utilization", "pid": 0, "tid": 7, "ts": 1, "args": {"value": 5.5}},
            {"ph": "i", "s": "t", "name": "Iteration Start: x", "pid": "Traces", "tid": "Trace x", "ts": 1},
            {"ph": "f", "id": 1, "cat": "kernel", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1, "bp": "e"},
            {"ph": "X", "cat": "kernel", "name": "nccl", "pid": 0, "tid": 7, "ts": 5, "dur": 1, "args": {"queued": 0, "stream": 7, "context": 1,
             "correlation": 3, "Comms Id": 18446744073709551615999, "Seq": -99999999999999999999, "priority": -1, "channel": 11, "channel_type": 2,
             "warps per SM": 0.25, "est. achieved occupancy %": NaN, "Process Group Ranks": "[0, 1, ...]", "grid": [2147483647, 65535, 65535], "block": [1024, 1, 1]}}"#,
        ),
        "5000+1000 kernel 4294967295x1024 on ?/0/1/7 #3 nccl",
    );
}

#[test]
fn control_characters_and_other_bytes_stay_in_the_name() {
    let row = |name: &[u8]| {
        let (before, behind) = KERNEL.split_once("\"k\"").expect("its name is k");
        [before.as_bytes(), b"\"", name, b"\"", behind.as_bytes()].concat()
    };
    for (name, expected) in [
        (&b"a\x01b\x1f"[..], "a\u{1}b\u{1f}"),
        (b"two\nlines\r\n\t\"quoted\"", "two\nlines\r\n\t\"quoted\""),
        (b"nul\0 inside", "nul\0 inside"),
        (b"\xff\xc3(\xe2\x82", "\u{fffd}\u{fffd}(\u{fffd}"),
        (b"esc \x1b[31mred", "esc \u{1b}[31mred"),
    ] {
        let start = b"{\"traceEvents\": [";
        let text = [&start[..], &row(name), b"]}"].concat();
        let trace = read_json(&text, &Limits::default()).expect("a trace");
        assert_eq!(trace.names.text(trace.work[0].name), expected);
        assert_eq!(trace.warnings, []);
    }
}
