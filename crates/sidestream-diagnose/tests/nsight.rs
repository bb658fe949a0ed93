//! Exports of Nsight Systems in all schemas, written here from one described run.

mod fixtures;

use std::collections::BTreeMap;
use std::path::Path;

use fixtures::compare::{calls_in, calls_of, steps_in, steps_of, stream, work_in, work_of};
use fixtures::nsys::{Options, Schema, write, write_together};
use fixtures::{Folder, Scenario};
use sidestream_diagnose::{Limits, RangeKind, StreamFlag, SyncKind, Trace, What, read};

fn read_back(path: &Path) -> Trace {
    match read(path, &Limits::default(), &mut |_, _| {}) {
        Ok(trace) => trace,
        Err(error) => panic!("{error}"),
    }
}

fn export(folder: &Folder, scenario: &Scenario, schema: Schema, options: Options) -> Trace {
    let path = folder.file(&format!("{schema:?} %20#?.sqlite"));
    write(scenario, schema, options, &path);
    read_back(&path)
}

fn warnings(trace: &Trace) -> Vec<&str> {
    trace.warnings.iter().map(|warning| warning.code).collect()
}

#[test]
fn every_schema_gives_the_run_to_the_nanosecond() {
    let folder = Folder::new("nsight-schemas");
    let scenario = Scenario::training(5).with_nanoseconds();
    for schema in Schema::ALL {
        let trace = export(&folder, &scenario, schema, Options::NONE);
        assert_eq!(work_in(&trace), work_of(&scenario), "{schema:?}");
        assert_eq!(calls_in(&trace), calls_of(&scenario), "{schema:?}");
        assert_eq!(steps_in(&trace), steps_of(&scenario), "{schema:?}");
        assert_eq!(warnings(&trace), [""; 0], "{schema:?}");
        let mut streams: Vec<_> = (trace.streams.iter())
            .map(|s| (s.process, s.device, s.context, s.number, s.flag))
            .collect();
        streams.sort_by_key(|stream| (stream.1, stream.3));
        let pid = Some(4242);
        let expected = [
            (pid, 0, 1, 7, StreamFlag::Null),
            (pid, 0, 1, 20, StreamFlag::NonBlocking),
            (pid, 0, 1, 24, StreamFlag::NonBlocking),
            (pid, 1, 2, 7, StreamFlag::Null),
        ];
        assert_eq!(streams, expected, "{schema:?}");
        let names: BTreeMap<i64, &str> = (trace.threads.iter())
            .map(|thread| (thread.thread, &*thread.name))
            .collect();
        let expected = BTreeMap::from([(4242, "python"), (4300, "pt_autograd_0")]);
        assert_eq!(names, expected, "{schema:?}");
        if schema != Schema::V3_25 {
            assert_eq!(trace.devices[0].name, "NVIDIA A100-SXM4-80GB");
            assert_eq!(trace.devices[0].sms, Some(108));
        }
    }
}

#[test]
fn odd_names_come_through() {
    let folder = Folder::new("nsight-names");
    let scenario = Scenario::training(5).with_odd_names();
    for schema in Schema::ALL {
        let trace = export(&folder, &scenario, schema, Options::NONE);
        assert_eq!(work_in(&trace), work_of(&scenario), "{schema:?}");
    }
}

#[test]
fn a_wait_is_what_its_call_says_whatever_its_row_says() {
    let folder = Folder::new("nsight-waits");
    let scenario = Scenario::training(3);
    for schema in Schema::ALL {
        let trace = export(&folder, &scenario, schema, Options::NONE);
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for sync in &trace.syncs {
            let lane = sync.stream.map(|index| {
                let stream = stream(&trace, index);
                (stream.device, stream.number)
            });
            let row = format!("{:?} {lane:?}", sync.kind);
            *kinds.entry(row).or_default() += 1;
            // The call before it recorded the event.
            if sync.kind == SyncKind::StreamWait {
                assert_eq!(sync.record_correlation, sync.correlation - 1, "{schema:?}");
            }
        }
        // The poll is none of them.
        let expected = BTreeMap::from([
            ("Context None".to_owned(), 3),
            ("Stream Some((0, 7))".to_owned(), 6),
            ("StreamWait Some((0, 7))".to_owned(), 3),
        ]);
        assert_eq!(kinds, expected, "{schema:?}");
        assert_eq!(trace.records.len(), 3, "{schema:?}");
    }
}

#[test]
fn processes_with_the_same_numbers_are_kept_apart() {
    let folder = Folder::new("nsight-processes");
    let one = Scenario::training(3);
    // The same streams and correlations, with other calls behind them.
    let mut other = Scenario::training(3).of_process(5151);
    for call in &mut other.calls {
        if call.name == "cudaDeviceSynchronize" {
            call.name = "cudaEventQuery";
        }
    }
    for schema in Schema::ALL {
        let path = folder.file(&format!("{schema:?}.sqlite"));
        write_together(&[one.clone(), other.clone()], schema, Options::NONE, &path);
        let trace = read_back(&path);
        assert_eq!(trace.streams.len(), 8, "{schema:?}");
        assert_eq!(trace.work.len(), one.work.len() + other.work.len());
        let contexts = (trace.syncs.iter()).filter(|sync| sync.kind == SyncKind::Context);
        assert_eq!(
            contexts.count(),
            3,
            "{schema:?}: those of the first process"
        );
    }
}

#[test]
fn a_file_without_calls_is_read() {
    let folder = Folder::new("nsight-device-only");
    let scenario = Scenario::training(3);
    let options = Options {
        device_only: true,
        ..Options::NONE
    };
    for schema in Schema::ALL {
        let trace = export(&folder, &scenario, schema, options);
        assert_eq!(work_in(&trace), work_of(&scenario), "{schema:?}");
        assert_eq!((trace.calls.len(), trace.ranges.len()), (0, 0));
    }
}

#[test]
fn a_table_of_names_without_a_key_is_read_whole() {
    let folder = Folder::new("nsight-no-key");
    let scenario = Scenario::training(3).with_odd_names();
    let options = Options {
        no_key: true,
        ..Options::NONE
    };
    let trace = export(&folder, &scenario, Schema::V3_20, options);
    assert_eq!(work_in(&trace), work_of(&scenario));
    assert_eq!(calls_in(&trace), calls_of(&scenario));
    assert_eq!(steps_in(&trace), steps_of(&scenario));
}

#[test]
fn memory_of_a_kind_that_is_not_known_stays_unknown() {
    let folder = Folder::new("nsight-memory");
    let scenario = Scenario::training(2).with_unknown_memory();
    for schema in Schema::ALL {
        let trace = export(&folder, &scenario, schema, Options::NONE);
        assert_eq!(work_in(&trace), work_of(&scenario), "{schema:?}");
        let names: Vec<&str> = (trace.work.iter())
            .filter(|work| work.is_host_copy())
            .map(|work| trace.names.text(work.name))
            .collect();
        assert!(names.contains(&"Memcpy HtoD (Unknown -> Device)"));
    }
}

#[test]
fn graphs_traced_node_by_node_keep_their_graph() {
    let folder = Folder::new("nsight-graph-nodes");
    let scenario = Scenario::graphs(4);
    for schema in Schema::ALL {
        let trace = export(&folder, &scenario, schema, Options::NONE);
        assert_eq!(work_in(&trace), work_of(&scenario), "{schema:?}");
        assert!(trace.work.iter().all(|work| work.graph == 5), "{schema:?}");
        assert_eq!(warnings(&trace), [""; 0], "{schema:?}");
    }
}

#[test]
fn graphs_traced_whole_keep_the_device_busy_and_are_told_of() {
    let folder = Folder::new("nsight-whole-graphs");
    let scenario = Scenario::graphs(4);
    let options = Options {
        whole_graphs: true,
        ..Options::NONE
    };
    for schema in &Schema::ALL[1..] {
        let trace = export(&folder, &scenario, *schema, options);
        assert_eq!(trace.work.len(), 4, "{schema:?}");
        for work in &trace.work {
            assert_eq!((work.duration_ns, work.graph), (203_000, 5));
            assert!(matches!(work.what, What::Kernel(_)));
            assert_eq!(trace.names.text(work.name), "graph 5");
        }
        assert_eq!(warnings(&trace), ["WHOLE_GRAPHS"], "{schema:?}");
    }
}

#[test]
fn names_of_operators_lose_the_numbers_of_their_calls() {
    let folder = Folder::new("nsight-operators");
    let mut scenario = Scenario::training(3);
    for (number, span) in scenario.spans.iter_mut().enumerate() {
        span.name = format!("aten::mm, seq = {number}, op_id = {}", number + 7);
    }
    let trace = export(&folder, &scenario, Schema::V3_24, Options::NONE);
    let ranges: Vec<_> = (trace.ranges.iter())
        .map(|range| (trace.names.text(range.name), range.kind))
        .collect();
    assert_eq!(ranges, [("aten::mm", RangeKind::Operator); 3]);
}

#[test]
fn progress_is_told_and_never_exceeds_the_file() {
    let folder = Folder::new("nsight-progress");
    let scenario = Scenario::training(1_500);
    let path = folder.file("long.sqlite");
    write(&scenario, Schema::V3_20, Options::NONE, &path);
    let mut told = Vec::new();
    let trace = read(&path, &Limits::default(), &mut |done, all| {
        told.push((done, all));
    });
    assert!(trace.is_ok());
    assert!(!told.is_empty());
    assert!(told.is_sorted());
    assert!(told.iter().all(|(done, all)| done <= all));
}

#[test]
fn a_limit_on_rows_gives_the_first_part_and_says_so() {
    let folder = Folder::new("nsight-limit");
    let scenario = Scenario::training(200);
    let path = folder.file("long.sqlite");
    write(&scenario, Schema::V3_20, Options::NONE, &path);
    let limits = Limits {
        rows_bytes: 10_000,
        ..Limits::default()
    };
    let trace = match read(&path, &limits, &mut |_, _| {}) {
        Ok(trace) => trace,
        Err(error) => panic!("{error}"),
    };
    let kept = size_of_val(&trace.work[..]) + size_of_val(&trace.calls[..]);
    assert!((9_000..=10_100).contains(&kept), "{kept}");
    assert!(warnings(&trace).contains(&"LIMIT"));
}
