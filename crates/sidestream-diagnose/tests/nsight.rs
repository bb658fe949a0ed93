//! Tests exports of Nsight Systems in all schemas, written from one described run.

use std::collections::BTreeMap;
use std::path::Path;

use crate::fixtures::compare::{calls_in, calls_of, steps_in, steps_of, stream, work_in, work_of};
use crate::fixtures::nsys::{Options, Schema, write, write_together};
use crate::fixtures::{Folder, Scenario};
use rusqlite::Connection;
use sidestream_diagnose::{
    Code, Direction, Limits, Links, Memory, Options as DiagnoseOptions, RangeKind, Report,
    StreamFlag, SyncKind, Table, Trace, View, What, read, table_json,
};

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
fn the_call_of_a_wait_decides_its_kind_not_its_row() {
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
            // The call before the wait recorded the event.
            if sync.kind == SyncKind::StreamWait {
                assert_eq!(sync.record_correlation, sync.correlation - 1, "{schema:?}");
            }
        }
        // The row of the poll is not among the waits.
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
    // Both processes use the same streams and correlation numbers, but some calls with these numbers differ.
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
fn graphs_traced_whole_keep_the_device_busy_with_a_warning() {
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

/// Reads an export that was changed by some SQL.
fn changed(folder: &Folder, scenario: &Scenario, schema: Schema, sql: &str) -> Trace {
    let path = folder.file("changed.sqlite");
    let _ = std::fs::remove_file(&path);
    write(scenario, schema, Options::SHORT, &path);
    change(&path, sql);
    read_back(&path)
}

fn change(path: &Path, sql: &str) {
    let connection = Connection::open(path).expect("the file was written");
    connection.execute_batch(sql).expect("the change is legal");
}

#[test]
fn the_lists_of_the_file_give_the_meaning_of_numbers() {
    let folder = Folder::new("nsight-lists");
    let scenario = Scenario::training(3).with_nanoseconds();
    let sql = "UPDATE ENUM_CUDA_MEM_KIND SET id = 40 - id;
               UPDATE ENUM_CUDA_MEMCPY_OPER SET id = 40 - id;
               UPDATE ENUM_NSYS_EVENT_CLASS SET id = 100 - id;
               UPDATE ENUM_NSYS_EVENT_TYPE SET id = 100 - id;
               UPDATE ENUM_CUPTI_STREAM_TYPE SET id = 40 - id;
               UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET srcKind = 40 - srcKind, dstKind = 40 - dstKind, copyKind = 40 - copyKind;
               UPDATE CUPTI_ACTIVITY_KIND_MEMSET SET memKind = 40 - memKind;
               UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET eventClass = 100 - eventClass;
               UPDATE NVTX_EVENTS SET eventType = 100 - eventType;
               UPDATE TARGET_INFO_CUDA_STREAM SET flag = 40 - flag;";
    for schema in &Schema::ALL[1..] {
        let trace = changed(&folder, &scenario, *schema, sql);
        assert_eq!(work_in(&trace), work_of(&scenario), "{schema:?}");
        assert_eq!(calls_in(&trace), calls_of(&scenario), "{schema:?}");
        assert_eq!(steps_in(&trace), steps_of(&scenario), "{schema:?}");
        let null = (trace.streams.iter()).filter(|stream| stream.flag == StreamFlag::Null);
        assert_eq!(null.count(), 2, "{schema:?}");
    }
}

/// Every number of the fixed lists, for files without lists: memory kinds are not CUPTI's own.
#[test]
fn without_lists_the_fixed_numbers_hold() {
    let folder = Folder::new("nsight-no-lists");
    let scenario = Scenario::training(1);
    let mut sql = String::new();
    for table in [
        "ENUM_CUDA_MEMCPY_OPER",
        "ENUM_CUDA_MEM_KIND",
        "ENUM_CUPTI_SYNC_TYPE",
        "ENUM_CUPTI_STREAM_TYPE",
        "ENUM_NSYS_EVENT_TYPE",
        "ENUM_NSYS_EVENT_CLASS",
    ] {
        sql += &format!("DROP TABLE {table};");
    }
    sql += "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY;";
    let directions = [
        (1, Direction::Upload),
        (2, Direction::Download),
        (3, Direction::Upload),
        (4, Direction::Download),
        (5, Direction::OnDevice),
        (6, Direction::OnDevice),
        (7, Direction::OnDevice),
        (8, Direction::OnDevice),
        (9, Direction::OnHost),
        (10, Direction::Peer),
        (11, Direction::Upload),
        (12, Direction::Download),
        (13, Direction::Peer),
        (0, Direction::Unknown),
        (99, Direction::Unknown),
    ];
    let kinds = [
        (0, Memory::Pageable),
        (1, Memory::Pinned),
        (2, Memory::Device),
        (3, Memory::Array),
        (4, Memory::Managed),
        (5, Memory::Device),
        (6, Memory::Managed),
        (7, Memory::Unknown),
        (99, Memory::Unknown),
    ];
    let mut expected = Vec::new();
    for (copy, direction) in directions {
        for (kind, memory) in kinds {
            let start = 60_000_000_000 + 1_000 * expected.len() as i64;
            // Migrated memory is managed memory, regardless of the kinds that its row states for the two sides.
            expected.push(match copy {
                11..=13 => (direction, Memory::Managed, Memory::Managed),
                _ => (direction, memory, Memory::Device),
            });
            sql += &format!(
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (start, \"end\", deviceId, contextId, streamId, \
                 correlationId, globalPid, bytes, copyKind, srcKind, dstKind) \
                 VALUES ({start}, {start} + 10, 0, 1, 7, 1, 0, 8, {copy}, {kind}, 2);"
            );
        }
    }
    let trace = changed(&folder, &scenario, Schema::V3_24, &sql);
    let copies = trace.work.iter().filter_map(|work| match work.what {
        What::Copy {
            direction,
            from,
            to,
            ..
        } => Some((work.start_ns, (direction, from, to))),
        _ => None,
    });
    let mut copies: Vec<_> = copies.collect();
    copies.sort_by_key(|copy| copy.0);
    let found: Vec<_> = copies.into_iter().map(|copy| copy.1).collect();
    assert_eq!(found, expected);
    // Calls, steps and streams are known as well.
    assert_eq!(calls_in(&trace).len(), calls_of(&scenario).len());
    assert_eq!(steps_in(&trace).len(), 1);
    let null = (trace.streams.iter()).filter(|stream| stream.flag == StreamFlag::Null);
    assert!(null.count() > 0);
}

/// In a part of a longer recording most calls are missing, and those of another process have equal numbers.
#[test]
fn work_whose_call_is_not_in_the_file_is_joined_to_no_other() {
    let folder = Folder::new("nsight-part");
    let (one, other) = (
        Scenario::training(4),
        Scenario::training(4).of_process(5151),
    );
    for schema in Schema::ALL {
        let path = folder.file(&format!("{schema:?}.sqlite"));
        write_together(&[one.clone(), other.clone()], schema, Options::SHORT, &path);
        // The calls of the first process are removed for all steps but the last one.
        change(
            &path,
            "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME
             WHERE ((globalTid >> 24) & 16777215) = 4242 AND correlationId < 1300",
        );
        let trace = read_back(&path);
        let all = one.work.len() + other.work.len();
        assert_eq!(trace.work.len(), all, "{schema:?}");
        let links = Links::of(&trace);
        assert_eq!(links.orphans(), one.work.len() * 3 / 4, "{schema:?}");
        for (at, work) in trace.work.iter().enumerate() {
            let process = stream(&trace, work.stream).process;
            let call = links.call_of(at).map(|call| trace.calls[call]);
            let is_there = process == Some(5151) || work.correlation >= 1300;
            assert_eq!(call.is_some(), is_there, "{schema:?}");
            if let Some(call) = call {
                let theirs = trace.threads[call.thread.0 as usize].process;
                assert_eq!(Some(theirs), process, "{schema:?}");
            }
        }
    }
}

#[test]
fn calls_of_the_driver_are_among_those_of_the_runtime() {
    let folder = Folder::new("nsight-driver");
    let mut scenario = Scenario::training(2);
    for call in &mut scenario.calls {
        if call.name == "cudaLaunchKernelExC" {
            call.name = "cuLaunchKernelEx";
        }
    }
    for schema in Schema::ALL {
        let trace = changed(&folder, &scenario, schema, "");
        assert_eq!(calls_in(&trace), calls_of(&scenario), "{schema:?}");
        let driver = trace.calls.iter().filter(|call| call.api.is_driver);
        assert_eq!(driver.count(), 2, "{schema:?}");
    }
}

#[test]
fn graphs_that_left_no_rows_give_a_warning() {
    let folder = Folder::new("nsight-hidden-graphs");
    let mut scenario = Scenario::training(3);
    let sql = "UPDATE META_DATA_CAPTURE SET value = 'Graph' WHERE name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'";
    for schema in &Schema::ALL[1..] {
        // Without a graph launch, nothing is hidden.
        let trace = changed(&folder, &Scenario::training(3), *schema, sql);
        assert_eq!(warnings(&trace), [""; 0], "{schema:?}");
        for call in &mut scenario.calls {
            if call.name == "cudaEventQuery" {
                call.name = "cudaGraphLaunch";
            }
        }
        let trace = changed(&folder, &scenario, *schema, sql);
        assert_eq!(warnings(&trace), ["WHOLE_GRAPHS"], "{schema:?}");
    }
}

#[test]
fn a_kernel_without_its_long_name_has_the_short_one() {
    let folder = Folder::new("nsight-short");
    for sql in [
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = NULL",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 77777777",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN demangledName",
    ] {
        let trace = changed(&folder, &Scenario::training(1), Schema::V3_20, sql);
        let names: Vec<&str> = (trace.work.iter())
            .map(|work| trace.names.text(work.name))
            .collect();
        // The long name also has the types in its angle brackets.
        assert!(
            names.contains(&"void at::native::vectorized_elementwise_kernel"),
            "{names:?}"
        );
    }
}

#[test]
fn a_reused_event_is_identified_by_the_number_of_its_record() {
    let folder = Folder::new("nsight-records");
    let scenario = Scenario::training(3);
    // All waits are for the first record, though the event was recorded twice since.
    let sql = "UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET eventSyncId =
               (SELECT min(eventSyncId) FROM CUPTI_ACTIVITY_KIND_CUDA_EVENT) WHERE eventSyncId <> 0";
    let trace = changed(&folder, &scenario, Schema::V3_25, sql);
    let records = trace.records.iter().map(|record| record.correlation);
    let first = records.min().expect("there are records");
    let waits = trace
        .syncs
        .iter()
        .filter(|s| s.kind == SyncKind::StreamWait);
    let recorded: Vec<u32> = waits.map(|sync| sync.record_correlation).collect();
    assert_eq!(recorded, [first; 3]);
    // Zeros mean that the number is unknown: then the last record before the wait is meant.
    let sql = "UPDATE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION SET eventSyncId = 0";
    let trace = changed(&folder, &scenario, Schema::V3_25, sql);
    for sync in trace
        .syncs
        .iter()
        .filter(|s| s.kind == SyncKind::StreamWait)
    {
        assert_eq!(sync.record_correlation, sync.correlation - 1);
    }
}

#[test]
fn the_null_stream_of_a_context_is_known_from_any_of_three_tables() {
    let folder = Folder::new("nsight-null");
    let scenario = Scenario::training(1);
    for sql in [
        "CREATE TABLE TARGET_INFO_CUDA_CONTEXT_INFO (nullStreamId, hwId, contextId, processId);
         INSERT INTO TARGET_INFO_CUDA_CONTEXT_INFO VALUES (7, 0, 1, 4242), (7, 0, 2, 4242)",
        "CREATE TABLE TARGET_INFO_CUDA_NULL_STREAM (streamId, hwId, vmId, processId, deviceId, contextId);
         INSERT INTO TARGET_INFO_CUDA_NULL_STREAM VALUES (7, 0, 1, 4242, 0, 1), (7, 0, 1, 4242, 1, 2)",
    ] {
        let drop = format!("DROP TABLE TARGET_INFO_CUDA_STREAM; {sql}");
        let trace = changed(&folder, &scenario, Schema::V3_20, &drop);
        for stream in &trace.streams {
            let expected = match stream.number {
                7 => StreamFlag::Null,
                _ => StreamFlag::Unknown,
            };
            assert_eq!(stream.flag, expected, "{stream:?}");
        }
    }
    // Where the file does not state the flag of a stream, the flag is unknown: the number 7 proves nothing.
    let trace = changed(
        &folder,
        &scenario,
        Schema::V3_20,
        "DROP TABLE TARGET_INFO_CUDA_STREAM",
    );
    assert!((trace.streams.iter()).all(|stream| stream.flag == StreamFlag::Unknown));
}

/// A database as `nsys profile --trace=cuda,nvtx,osrt` and `nsys export` write it, with the expected rows: in each step of ten
/// milliseconds the program reads a file in `load_batch`, during which it often makes short calls.
const STARVED: &str = "
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel'), (2, 'gemm'), (3, 'read'), (4, 'sem_wait');
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
        (start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
        (start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, demangledName INT,
         gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT);
    CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT);
    CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT);
    WITH RECURSIVE step(n, at) AS (SELECT 0, 1000000 UNION ALL SELECT n + 1, at + 10000000 FROM step WHERE n < 11)
    INSERT INTO NVTX_EVENTS SELECT at, at + 9990000, 59, 'ProfilerStep#' || n, 71303168 + 4 FROM step
        UNION ALL SELECT at + 10000, at + 7000000, 59, 'load_batch', 71303168 + 4 FROM step;
    INSERT INTO OSRT_API SELECT start + 500000, start + 6500000, globalTid, 3 FROM NVTX_EVENTS WHERE text = 'load_batch'
        UNION ALL SELECT start + 100000, start + 150000, globalTid, 3 FROM NVTX_EVENTS WHERE text = 'load_batch'
        UNION ALL SELECT start, start + 6900000, globalTid + 1, 4 FROM NVTX_EVENTS WHERE text = 'load_batch';
    INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME
        SELECT start + 7100000, start + 7110000, 0, globalTid, start / 10000000 + 1, 1 FROM NVTX_EVENTS
        WHERE text = 'load_batch';
    INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL
        SELECT start + 10000, start + 2500000, 0, 1, 7, correlationId, 71303168, 2, 132, 1, 1, 256, 1, 1
        FROM CUPTI_ACTIVITY_KIND_RUNTIME;";

#[test]
fn nvtx_ranges_and_long_operating_system_calls_show_what_a_step_waits_for() {
    let folder = Folder::new("nsight-osrt");
    let path = folder.file("osrt.sqlite");
    change(&path, STARVED);
    let report = |path: &Path| Report::of(read_back(path), &DiagnoseOptions::default());
    let of = report(&path);
    let table = table_json(
        &of,
        &View {
            table: Table::Ranges,
            sort: None,
            limit: 9,
            by_shape: false,
        },
    );
    let names = table["rows"].as_array().expect("rows").iter();
    let names: Vec<_> = names.map(|row| row["name"].as_str()).collect();
    assert_eq!(names, [Some("ProfilerStep*"), Some("load_batch")]);
    let found = &of.findings[0];
    assert_eq!(found.code, Code::HostWork, "{:#?}", of.findings);
    assert!(
        found
            .text
            .contains("read (operating system) in load_batch ("),
        "{}",
        found.text
    );
    // Calls of other threads, and short ones, explain nothing.
    assert!(!found.text.contains("sem_wait"), "{}", found.text);
    let trace = read_back(&path);
    let long = trace
        .ranges
        .iter()
        .filter(|range| range.kind == RangeKind::System);
    assert_eq!(long.count(), 2 * 12);
    // Only the rows of operating system calls show that the program reads a file.
    change(&path, "DROP TABLE OSRT_API");
    let without = &report(&path).findings[0];
    assert_eq!(without.code, Code::HostWork);
    assert!(
        !without.text.contains("operating system"),
        "{}",
        without.text
    );
    assert!(without.text.contains("load_batch"), "{}", without.text);
    assert_eq!(without.saving_ns, found.saving_ns);
}

#[test]
fn unknown_columns_change_nothing() {
    let folder = Folder::new("nsight-columns");
    let scenario = Scenario::training(2);
    let mut sql = String::new();
    for (table, column) in [
        ("KERNEL", "qmdBulkReleaseState"),
        ("KERNEL", "clusterSchedulingPolicy"),
        ("MEMCPY", "copyCount"),
        ("MEMCPY", "virtualAddress"),
        ("SYNCHRONIZATION", "deprecatedSyncType"),
        ("RUNTIME", "callchainId"),
    ] {
        sql += &format!(
            "ALTER TABLE CUPTI_ACTIVITY_KIND_{table} ADD COLUMN {column} INTEGER DEFAULT 3;"
        );
    }
    for schema in Schema::ALL {
        let trace = changed(&folder, &scenario, schema, &sql);
        assert_eq!(work_in(&trace), work_of(&scenario), "{schema:?}");
        assert_eq!(calls_in(&trace), calls_of(&scenario), "{schema:?}");
    }
}
