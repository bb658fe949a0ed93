//! Checks measurements of real traces to the nanosecond. The values were computed by another program, from the same files, with
//! integers.
//!
//! Traces of other projects are not in the repository. If `SIDESTREAM_PUBLIC_TRACES` names a folder with them, they are tested
//! too.

use std::path::{Path, PathBuf};

use sidestream_diagnose::{Collectives, Limits, SyncKind, Trace, devices, read};

/// Returns a trace of another project, if the folder that contains it is given.
fn public(file: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("SIDESTREAM_PUBLIC_TRACES") else {
        println!("nothing is tried: SIDESTREAM_PUBLIC_TRACES names no folder with {file}");
        return None;
    };
    let path = Path::new(&folder).join(file);
    assert!(path.exists(), "there is no {}", path.display());
    Some(path)
}

fn trace(path: &Path) -> Trace {
    read(path, &Limits::default(), &mut |_, _| {}).expect("a trace")
}

/// Returns one line for each device, as in the table of expected values.
fn table(trace: &Trace) -> String {
    let lines = devices(trace, &Collectives::of(trace))
        .into_iter()
        .map(|d| {
            format!(
                "{} ops, span {}, busy {}, kernels {}, host copies {}, hidden {}, gaps {} / {}",
                d.gpu_ops,
                d.span_ns,
                d.busy_ns(),
                d.kernel_ns(),
                d.host_copy_ns,
                d.hidden_copy_ns,
                d.gaps_10us,
                d.gaps_1ms
            )
        });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn an_a100_with_four_streams_in_the_words_of_2022() {
    let Some(path) = public("hta_a100_4stream_pinned_overlap.json.gz") else {
        return;
    };
    let trace = trace(&path);
    assert_eq!(
        table(&trace),
        "9450 ops, span 464594000, busy 388587000, kernels 369257000, host copies 50763000, \
         hidden 34692000, gaps 1383 / 7"
    );
    assert_eq!(trace.events, 109_123);
}

#[test]
fn a_v100_in_the_words_of_2021() {
    let Some(path) = public("kineto2021_v100_resnet50_workers0.pt.trace.json.gz") else {
        return;
    };
    assert_eq!(
        table(&trace(&path)),
        "9096 ops, span 996477000, busy 603558000, kernels 591532000, host copies 11492000, \
         hidden 0, gaps 1500 / 6"
    );
}

#[test]
fn a_b200_in_nanoseconds() {
    let Some(path) = public("tracelens_b200_eager_launch_bound.json.gz") else {
        return;
    };
    assert_eq!(
        table(&trace(&path)),
        "929 ops, span 84487178, busy 11596482, kernels 10793638, host copies 21344, hidden 0, \
         gaps 715 / 5"
    );
}

#[test]
fn an_a100_with_a_wait_after_each_kernel() {
    let Some(path) = public("pipit_a100_cloverleaf_sync_each_kernel.sqlite") else {
        return;
    };
    let trace = trace(&path);
    assert_eq!(
        table(&trace),
        "1591 ops, span 342407810, busy 303795463, kernels 294404540, host copies 9390923, \
         hidden 0, gaps 409 / 3"
    );
    // The rows call these waits for events.
    let contexts = trace.syncs.iter().filter(|s| s.kind == SyncKind::Context);
    assert_eq!(contexts.count(), 1312);
    assert_eq!(trace.warnings, []);
}

#[test]
fn two_gpus_with_collectives_in_an_export() {
    let Some(path) = public("nsysai_mfu_2gpu_before.sqlite") else {
        return;
    };
    let trace = trace(&path);
    assert_eq!(
        table(&trace),
        "2636 ops, span 299848812, busy 273817787, kernels 270863484, host copies 13408, \
         hidden 0, gaps 217 / 2\n\
         2663 ops, span 298661551, busy 267275916, kernels 264324724, host copies 13248, \
         hidden 0, gaps 329 / 3"
    );
    // 133 of the 366 rows are polls.
    assert_eq!(trace.syncs.len(), 233);
    assert_eq!(trace.warnings, []);
}

#[test]
fn our_own_traces() {
    let expected = [
        (
            "blocking_download.after",
            "300 ops, span 202381400, busy 201940506, kernels 200729982, host copies 14519535, hidden 13309011, gaps 0 / 0",
        ),
        (
            "blocking_download.before",
            "300 ops, span 812372620, busy 755618159, kernels 200730932, host copies 554887227, hidden 0, gaps 11 / 11",
        ),
        (
            "branches_long.after",
            "96 ops, span 6746830, busy 6746830, kernels 6746830, host copies 0, hidden 0, gaps 0 / 0",
        ),
        (
            "branches_long.before",
            "96 ops, span 13303394, busy 13182089, kernels 13182089, host copies 0, hidden 0, gaps 0 / 0",
        ),
        (
            "copy_bound.after",
            "72 ops, span 33358842, busy 33344441, kernels 22345959, host copies 33344441, hidden 22345959, gaps 0 / 0",
        ),
        (
            "copy_bound.before",
            "72 ops, span 55875981, busy 55701996, kernels 22294411, host copies 33407585, hidden 0, gaps 0 / 0",
        ),
        (
            "infer_pageable.after",
            "372 ops, span 86649166, busy 86015833, kernels 84892354, host copies 10947968, hidden 9871307, gaps 0 / 0",
        ),
        (
            "infer_pageable.before",
            "372 ops, span 183005451, busy 172889669, kernels 84876054, host copies 87969366, hidden 0, gaps 23 / 0",
        ),
        (
            "infer_pageable.pinned_only",
            "372 ops, span 98479516, busy 95988556, kernels 84912560, host copies 11034145, hidden 0, gaps 11 / 0",
        ),
        (
            "launch_bound.after",
            "960 ops, span 4306804, busy 3961647, kernels 3961647, host copies 0, hidden 0, gaps 0 / 0",
        ),
        (
            "launch_bound.before",
            "960 ops, span 31188935, busy 3906466, kernels 3906466, host copies 0, hidden 0, gaps 775 / 0",
        ),
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    for (name, expected) in expected {
        let trace = trace(&folder.join(format!("{name}.json.gz")));
        assert_eq!(table(&trace), expected, "{name}");
        assert_eq!(trace.warnings, [], "{name}");
    }
}
