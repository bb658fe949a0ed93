//! Compares the tables of a trace with PyTorch's, with exact sums, and with small traces that can be counted by hand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sidestream_diagnose::{
    Limits, Operator, Options, Report, RowKind, Shares, Sort, Table, View, by_name, read,
    read_json, table_json, table_text, text,
};

fn report(path: &Path) -> Report {
    let limits = Limits {
        needs_work: false,
        ..Limits::default()
    };
    let trace = read(path, &limits, &mut |_, _| {}).expect("a trace");
    Report::of(trace, &Options::default())
}

fn of_events(events: &Value) -> Report {
    let limits = Limits {
        needs_work: false,
        ..Limits::default()
    };
    let text = json!({"traceEvents": events}).to_string();
    let trace = read_json(text.as_bytes(), &limits).expect("a trace");
    Report::of(trace, &Options::default())
}

fn example(name: &str) -> Report {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    report(&examples.join(format!("{name}.json.gz")))
}

fn event(category: &str, name: &str, start: u64, duration: u64, args: Value) -> Value {
    let (pid, tid) = match category {
        "kernel" | "gpu_memcpy" => (0, 7),
        _ => (1, 1),
    };
    json!({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args})
}

/// The compared figures of a row.
type Row = [u64; 5];

fn rows(report: &Report, rows: &[Operator]) -> BTreeMap<(String, Option<String>), Row> {
    let mut out: BTreeMap<_, Row> = BTreeMap::new();
    for row in rows {
        let name = match row.kind {
            RowKind::Step => "ProfilerStep*",
            _ => report.names.text(row.name),
        };
        let shape = row
            .shape
            .map(|shape| without_lists(report.names.text(shape)));
        let sum = out.entry((name.to_owned(), shape)).or_default();
        let own = [
            row.calls,
            row.host_ns,
            row.host_self_ns,
            row.device_ns,
            row.device_self_ns,
        ];
        for (sum, own) in sum.iter_mut().zip(own) {
            *sum += own;
        }
    }
    out
}

/// Returns shapes as in `key_averages`, which leaves out those of lists of tensors.
fn without_lists(shapes: &str) -> String {
    let Ok(Value::Array(mut each)) = serde_json::from_str(shapes) else {
        return shapes.to_owned();
    };
    for one in &mut each {
        if one
            .as_array()
            .is_some_and(|sizes| sizes.iter().any(Value::is_array))
        {
            *one = json!([]);
        }
    }
    json!(each).to_string()
}

fn expected(rows: &Value) -> BTreeMap<(String, Option<String>), Row> {
    let mut out: BTreeMap<_, Row> = BTreeMap::new();
    for row in rows.as_array().expect("a list") {
        let name = row["name"].as_str().expect("a name").to_owned();
        let shape = row["shapes"].as_str().map(str::to_owned);
        let sum = out.entry((name, shape)).or_default();
        let keys = [
            "calls",
            "host_ns",
            "host_self_ns",
            "device_ns",
            "device_self_ns",
        ];
        for (sum, key) in sum.iter_mut().zip(keys) {
            *sum += row[key].as_u64().expect("a number");
        }
    }
    out
}

#[test]
fn operators_are_those_of_key_averages() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let files = std::fs::read_dir(&folder).expect("a folder");
    let files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    let is_expected = |path: &&PathBuf| path.to_string_lossy().ends_with(".expected.json");
    let mut compared = 0;
    for path in files.iter().filter(is_expected) {
        let text = std::fs::read(path).expect("a file");
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        let trace = path.to_string_lossy().replace(".expected.json", ".json.gz");
        let report = report(Path::new(&trace));
        for (key, own) in [
            ("by_name", by_name(&report.rows)),
            ("by_shape", report.rows.clone()),
        ] {
            let (own, theirs) = (rows(&report, &own), expected(&value[key]));
            for (name, theirs) in theirs {
                // The profiler's own work belongs to no thread of the program.
                if [
                    "Activity Buffer Request",
                    "Command Buffer Full",
                    "Lazy Function Loading",
                    "[memory]",
                ]
                .contains(&&*name.0)
                {
                    continue;
                }
                let shapes = name.1.as_deref().unwrap_or("");
                let own = own
                    .get(&name)
                    .unwrap_or_else(|| panic!("{trace} {key}: no {} {shapes}", name.0));
                assert_eq!(
                    own[0], theirs[0],
                    "{trace} {key} {name:?}: {own:?} {theirs:?}"
                );
                for (own, theirs) in own.iter().zip(theirs).skip(1) {
                    // Times of the trace have three decimals of a microsecond.
                    let off = own.abs_diff(theirs);
                    assert!(
                        off <= theirs / 1_000 + 10,
                        "{trace} {key} {name:?}: {own} {theirs}"
                    );
                }
                compared += 1;
            }
        }
    }
    assert!(compared > 300, "{compared}");
}

/// Checks that all time is attributed exactly once, and that inner ranges are parts of the outer ones.
#[track_caller]
fn sums_are_exact(report: &Report, work_ns: u64, works: u64) {
    let ranges = &report.ranges;
    let mut sum = ranges.outside;
    let mut inner: BTreeMap<u32, Shares> = BTreeMap::new();
    let add = |sum: &mut Shares, share: &Shares| {
        sum.host_ns += share.host_ns;
        sum.device_ns += share.device_ns;
        sum.device_ops += share.device_ops;
        sum.idle_ns += share.idle_ns;
    };
    for node in &ranges.nodes {
        add(&mut sum, &node.own);
        if let Some(parent) = node.parent {
            add(inner.entry(parent).or_default(), &node.total);
        }
    }
    let idle_ns: u64 = report.devices.iter().map(|device| device.0.idle_ns()).sum();
    assert_eq!(
        (sum.device_ns, sum.device_ops, sum.idle_ns),
        (work_ns, works, idle_ns)
    );
    for (at, node) in ranges.nodes.iter().enumerate() {
        let mut total = inner.remove(&(at as u32)).unwrap_or_default();
        add(&mut total, &node.own);
        assert_eq!(total, node.total, "{}", report.names.text(node.name));
    }
}

#[test]
fn ranges_of_real_traces_sum_exactly() {
    for name in [
        "starved_hard.before",
        "infer_pageable.before",
        "graph_upload.before",
        "encoder_decoder.before",
        "launch_bound.after",
        "sync_each_layer.before",
    ] {
        let report = example(name);
        let work_ns = report.devices.iter().flat_map(|d| &d.0.streams);
        let works: u64 = report.devices.iter().map(|d| d.0.gpu_ops as u64).sum();
        assert!(work_ns.count() > 0 && works > 0, "{name}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../examples/traces/{name}.json.gz"));
        let trace = read(&path, &Limits::default(), &mut |_, _| {}).expect("a trace");
        let work_ns = trace.work.iter().map(|work| work.duration_ns).sum();
        sums_are_exact(&report, work_ns, works);
    }
}

/// A stream of numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[test]
fn ranges_in_any_arrangement_sum_exactly() {
    for seed in 0..60 {
        eprintln!("seed {seed}");
        let mut draw = Draw(seed);
        let (mut events, mut work_us, mut works) = (Vec::new(), 0, 0);
        for at in 0..draw.below(120) + 1 {
            let (start, length) = (draw.below(2_000), draw.below(400));
            let name = format!("r{}", draw.below(6));
            let mut range = event("user_annotation", &name, start, length, json!({}));
            range["tid"] = draw.below(3).into();
            events.push(range);
            let call_at = draw.below(2_000);
            let mut call = event(
                "cuda_runtime",
                "cudaLaunchKernel",
                call_at,
                3,
                json!({"correlation": at + 1}),
            );
            call["tid"] = draw.below(3).into();
            events.push(call);
            let length = draw.below(60);
            let device = draw.below(2);
            // Some work has no call.
            let correlation = if draw.below(5) == 0 { 0 } else { at + 1 };
            let args = json!({"device": device, "stream": 7, "correlation": correlation});
            events.push(event(
                "kernel",
                "k",
                call_at + draw.below(300),
                length,
                args,
            ));
            work_us += length;
            works += 1;
        }
        sums_are_exact(&of_events(&json!(events)), 1_000 * work_us, works);
    }
}

#[test]
fn time_goes_to_the_innermost_range() {
    let report = of_events(&json!([
        event("user_annotation", "step", 0, 100, json!({})),
        event("user_annotation", "load", 10, 40, json!({})),
        event("user_annotation", "step", 200, 50, json!({})),
        event(
            "cuda_runtime",
            "cudaLaunchKernel",
            2,
            3,
            json!({"correlation": 1})
        ),
        event("kernel", "a", 5, 10, json!({"correlation": 1})),
        event(
            "cuda_runtime",
            "cudaLaunchKernel",
            60,
            3,
            json!({"correlation": 2})
        ),
        event("kernel", "b", 65, 20, json!({"correlation": 2})),
        event(
            "cuda_runtime",
            "cudaLaunchKernel",
            150,
            3,
            json!({"correlation": 3})
        ),
        event("kernel", "c", 155, 5, json!({"correlation": 3})),
    ]));
    let nodes: Vec<(&str, u64, u64, u64, u64, u64)> = report
        .ranges
        .nodes
        .iter()
        .map(|node| {
            let (total, own) = (&node.total, &node.own);
            (
                report.names.text(node.name),
                node.calls,
                total.host_ns,
                own.host_ns,
                total.device_ns,
                own.idle_ns,
            )
        })
        .collect();
    // From 15 on the device is idle: to 50 inside of `load`, then to the call at 60 and to the start at 65 in `step`; from 85
    // to 100 in `step`, and from there to 155 in no range.
    assert_eq!(
        nodes,
        [
            ("step", 2, 150_000, 110_000, 30_000, 30_000),
            ("load", 1, 40_000, 40_000, 0, 35_000)
        ]
    );
    let outside = report.ranges.outside;
    assert_eq!(
        (outside.device_ns, outside.device_ops, outside.idle_ns),
        (5_000, 1, 55_000)
    );
}

#[test]
fn the_range_that_starves_the_device_is_named() {
    let report = example("starved_hard.before");
    let view = View {
        table: Table::Ranges,
        sort: Some(Sort::Idle),
        limit: 5,
        by_shape: false,
    };
    let table = table_json(&report, &view);
    let rows = table["rows"].as_array().expect("rows");
    let load = rows
        .iter()
        .find(|row| row["name"] == "load_batch")
        .expect("its range");
    let idle_ns = load["own"]["idle_ns"].as_u64().expect("a number");
    let device = &report.devices[0].0;
    let share = idle_ns as f64 / device.span_ns as f64;
    assert!(share > 0.65, "{share}");
    // The range is inside of the steps, and the host's own work in it is the first finding.
    assert_eq!(
        (&rows[0]["name"], &load["depth"]),
        (&json!("ProfilerStep*"), &json!(1))
    );
    assert_eq!(report.findings[0].code.as_str(), "HOST_WORK");
    // The other findings are not about launches.
    let others = &report.findings[1..];
    assert!(
        others
            .iter()
            .all(|other| !other.text.contains("load_batch"))
    );
    assert!(
        report.findings[0].text.contains("load_batch"),
        "{}",
        report.findings[0].text
    );
}

#[test]
fn kernels_say_how_the_longest_was_launched() {
    let launch = |correlation: u64, blocks: u64| {
        json!({"correlation": correlation, "grid": [blocks, 2, 1], "block": [128, 1, 1], "registers per thread": 40,
               "shared memory": 1024, "est. achieved occupancy %": 62})
    };
    let report = of_events(&json!([
        event("kernel", "short", 0, 5, launch(1, 9)),
        event("kernel", "k", 10, 5, launch(2, 3)),
        event("kernel", "k", 20, 50, launch(3, 7)),
        event("kernel", "bare", 80, 1, json!({"correlation": 4})),
    ]));
    let view = View {
        table: Table::Kernels,
        sort: None,
        limit: 3,
        by_shape: false,
    };
    let rows = table_json(&report, &view)["rows"].clone();
    assert_eq!(
        rows[0],
        json!({"name": "k", "calls": 2, "total_ns": 55_000, "longest_ns": 50_000, "grid": [7, 2, 1], "block": [128, 1, 1],
               "registers": 40, "shared_bytes": 1024, "occupancy_percent": 62, "why": [],
               "measure": "dram__throughput.avg.pct_of_peak_sustained_elapsed,\
                           sm__throughput.avg.pct_of_peak_sustained_elapsed"})
    );
    assert_eq!(
        (&rows[2]["name"], &rows[2]["grid"]),
        (&json!("bare"), &Value::Null)
    );
    let text = table_text("x", &report, &view, None);
    assert!(text.contains("7x2x1") && text.contains("62 %"), "{text}");
}

#[test]
fn kernels_say_how_their_launch_may_limit_them() {
    let of = |blocks: u64, threads: u64, registers: u64, shared_bytes: u64| {
        let launch = json!({"correlation": 1, "grid": [blocks, 1, 1], "block": [threads, 1, 1],
                            "registers per thread": registers, "shared memory": shared_bytes});
        let events = json!([event("kernel", "k", 0, 5, launch)]);
        let text = json!({"deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
                          "traceEvents": events});
        let trace = read_json(text.to_string().as_bytes(), &Limits::default()).expect("a trace");
        let report = Report::of(trace, &Options::default());
        let lines = shown(Table::Kernels, &report, None);
        let line = lines.iter().find(|line| line.starts_with("  k: "));
        line.expect("why").clone()
    };
    let active = "; measure sm__warps_active.avg.pct_of_peak_sustained_active";
    let held = [
        (
            of(16, 256, 32, 0),
            "the grid has 16 of the 132 blocks that give each multiprocessor one: 116 have nothing to do",
        ),
        (
            of(140, 256, 32, 0),
            "140 blocks give 2 to some of the 132 multiprocessors and 1 to others: 53 % of the device, if \
                               a multiprocessor takes longer for more blocks",
        ),
        (
            of(1320, 256, 255, 0),
            "255 registers a thread: room for at most 1 block on a multiprocessor, 12 % of 2048 threads",
        ),
        (
            of(1320, 256, 32, 100 << 10),
            "102.4 kB of shared memory a block: room for at most 2 blocks on a multiprocessor, \
                                        25 % of 2048 threads",
        ),
        (
            of(1320, 32, 32, 0),
            "blocks of 32 threads are small: room for at most 32 blocks on a multiprocessor, 50 % of 2048 \
                               threads",
        ),
        (
            of(1320, 40, 32, 0),
            "blocks of 40 threads leave 24 lanes of their last warp empty",
        ),
    ];
    for (line, why) in held {
        assert_eq!(line, format!("  k: {why}{active}"));
    }
    // A launch that fills the device limits nothing: the counters say more.
    let full = of(1320, 256, 32, 0);
    assert!(
        full.starts_with("  k: nothing in its launch; measure dram__throughput"),
        "{full}"
    );
}

/// Returns a table of one view, for a terminal of this width.
fn shown(table: Table, report: &Report, columns: Option<usize>) -> Vec<String> {
    let view = View {
        table,
        sort: None,
        limit: 3,
        by_shape: false,
    };
    let text = table_text("x", report, &view, columns);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_table_is_as_wide_as_the_terminal_and_its_names_are_cut() {
    let name = format!("void gemm<{}>", "float, ".repeat(30));
    let report = of_events(&json!([
        event("user_annotation", &name, 0, 100, json!({})),
        event("cpu_op", &name, 5, 50, json!({})),
        event(
            "kernel",
            &name,
            0,
            5,
            json!({"correlation": 1, "grid": [9, 2, 1]})
        ),
        event("kernel", "short", 10, 5, json!({"correlation": 2})),
    ]));
    for table in [Table::Kernels, Table::Ranges, Table::Operators] {
        for columns in [40, 79, 80, 100, 140] {
            let lines = shown(table, &report, Some(columns));
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert!(
                widest.is_some_and(|widest| widest <= columns.max(74)),
                "{columns}: {lines:#?}"
            );
            assert!(
                lines.iter().any(|line| line.contains("void gemm<")),
                "{lines:#?}"
            );
        }
        // The width is not known.
        let lines = shown(table, &report, None);
        assert!(
            lines.iter().any(|line| line.contains(&name[..150])),
            "{lines:#?}"
        );
    }
    let narrow = shown(Table::Kernels, &report, Some(80));
    // The name has its own line, above its figures.
    assert_eq!(narrow[1], "name", "{narrow:#?}");
    assert!(narrow[2].contains("device calls longest"), "{narrow:#?}");
    assert!(
        narrow[3].starts_with("void gemm<float") && narrow[3].ends_with('…'),
        "{narrow:#?}"
    );
}

#[test]
fn each_column_of_the_ranges_has_a_distinct_name() {
    let report = of_events(&json!([
        event("user_annotation", "forward", 0, 100, json!({})),
        event("kernel", "k", 0, 5, json!({"correlation": 1})),
    ]));
    let lines = shown(Table::Ranges, &report, None);
    for head in ["device self", "host self", "idle self"] {
        assert!(lines[1].contains(head), "{}", lines[1]);
    }
    assert!(!lines[1].contains("itself"), "{}", lines[1]);
    let page = text("x", &report, 80);
    assert!(page.contains("x: pytorch trace, 2 events\n"), "{page}");
    assert!(page.contains(": 1 operation in 5000 ns"), "{page}");
}

#[test]
fn memory_says_what_held_it_at_the_peak() {
    let memory = |at: u64, address: u64, bytes: i64, total: u64| {
        json!({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": at,
               "args": {"Addr": address, "Bytes": bytes, "Total Allocated": total, "Device Id": 0, "Device Type": 1}})
    };
    let report = of_events(&json!([
        event("user_annotation", "forward", 0, 100, json!({})),
        event("cpu_op", "aten::linear", 5, 50, json!({})),
        event("cpu_op", "aten::empty", 10, 5, json!({})),
        memory(12, 7, 3_000, 8_000),
        memory(60, 8, 2_000, 10_000),
        memory(110, 9, 50, 10_050),
        memory(120, 7, -3_000, 7_050),
        memory(130, 5, -1_000, 6_050),
        memory(140, 7, 2_500, 8_550),
        event("kernel", "k", 0, 5, json!({"correlation": 1})),
    ]));
    let of = &report.memory[0];
    assert_eq!(
        (of.device, of.peak_bytes, of.peak_ns, of.before_bytes),
        (Some(0), 10_050, 110_000, 5_000)
    );
    assert_eq!((of.taken, of.given_back), (4, 2));
    let view = View {
        table: Table::Memory,
        sort: None,
        limit: 10,
        by_shape: false,
    };
    let text = table_text("x", &report, &view, None);
    let names: Vec<&str> = text.lines().skip(3).map(str::trim).collect();
    assert_eq!(
        names,
        [
            "3000 B        1  aten::linear in forward",
            "2000 B        1  forward",
            "50 B        1  outside of operators and ranges",
            "5000 B           allocated before the trace begins, or not shown by it",
            "",
        ]
    );
}

#[test]
fn a_table_that_has_no_such_column_says_what_it_has() {
    let view = |table, sort, by_shape| View {
        table,
        sort: Some(sort),
        limit: 1,
        by_shape,
    };
    let refused = view(Table::Operators, Sort::Idle, false).check();
    let why =
        "operators cannot be sorted by idle; sort by device-self, device, host-self, host, calls";
    assert_eq!(refused, Err(why.to_owned()));
    assert!(view(Table::Memory, Sort::Calls, false).check().is_err());
    assert!(view(Table::Ranges, Sort::Idle, true).check().is_err());
    assert_eq!(view(Table::Ranges, Sort::Idle, false).check(), Ok(()));
}
