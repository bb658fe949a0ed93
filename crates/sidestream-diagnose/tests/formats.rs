//! Checks that one described run, written in every format of profilers, is read as one trace.

use std::collections::BTreeSet;
use std::io::Write;

use crate::fixtures::compare::{WorkRow, calls_in, calls_of, steps_in, steps_of, work_in, work_of};
use crate::fixtures::pytorch::{self, Form, Options};
use crate::fixtures::{Folder, Scenario, nsys};
use flate2::Compression;
use flate2::write::GzEncoder;
use sidestream_diagnose::{Collectives, Limits, Trace, copies, devices, read, read_json};

fn json(bytes: &[u8]) -> Trace {
    match read_json(bytes, &Limits::default()) {
        Ok(trace) => trace,
        Err(problem) => panic!("{problem}"),
    }
}

/// Returns the run, with whole microseconds for formats without fractions.
fn run(form: Form) -> Scenario {
    if form.is_coarse() {
        Scenario::training(5)
    } else {
        Scenario::training(5).with_nanoseconds()
    }
}

#[test]
fn every_years_json_gives_the_run_exactly() {
    for form in Form::ALL {
        let scenario = run(form);
        let trace = json(&pytorch::write(&scenario, form, Options::NONE));
        assert_eq!(work_in(&trace), work_of(&scenario), "{form:?}");
        assert_eq!(calls_in(&trace), calls_of(&scenario), "{form:?}");
        assert_eq!(steps_in(&trace), steps_of(&scenario), "{form:?}");
        assert_eq!(trace.warnings, [], "{form:?}");
    }
}

/// Returns all measurements of the devices, as text.
fn measures(trace: &Trace) -> String {
    let lines = devices(trace, &Collectives::of(trace)).into_iter().map(|d| {
        let streams: Vec<_> = (d.streams.iter())
            .map(|load| (load.gpu_ops, load.busy_ns))
            .collect();
        format!(
            "{} ops {} span {} busy {} idle {} kernels {} host copies {} hidden {} gaps {} {} streams {streams:?} overlap {:?}",
            d.device,
            d.gpu_ops,
            d.span_ns,
            d.busy_ns(),
            d.idle_ns(),
            d.kernel_ns(),
            d.host_copy_ns,
            d.hidden_copy_ns,
            d.gaps_10us,
            d.gaps_1ms,
            d.overlap_ns
        )
    });
    let copies = copies(trace).into_iter().map(|c| {
        format!(
            "{} {} {} {} {}",
            c.direction.as_str(),
            c.memory.as_str(),
            c.count,
            c.bytes,
            c.duration_ns
        )
    });
    lines.chain(copies).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_form_and_schema_gives_equal_measurements() {
    let folder = Folder::new("formats-measures");
    for scenario in [
        Scenario::training(5),
        Scenario::training(5).with_nanoseconds(),
        Scenario::training(5).with_odd_names(),
        Scenario::graphs(5),
        Scenario::training(5).with_unknown_memory(),
    ] {
        // Old formats would round.
        let is_fine = (scenario.work.iter()).any(|work| work.start_ns % 1_000 != 0);
        let forms = Form::ALL
            .into_iter()
            .filter(|form| !is_fine || !form.is_coarse());
        let mut all: Vec<(String, String)> = forms
            .map(|form| {
                let trace = json(&pytorch::write(&scenario, form, Options::NONE));
                (format!("{form:?}"), measures(&trace))
            })
            .collect();
        for schema in nsys::Schema::ALL {
            let path = folder.file("run.sqlite");
            let _ = std::fs::remove_file(&path);
            nsys::write(&scenario, schema, nsys::Options::NONE, &path);
            let trace = match read(&path, &Limits::default(), &mut |_, _| {}) {
                Ok(trace) => trace,
                Err(error) => panic!("{error}"),
            };
            all.push((format!("{schema:?}"), measures(&trace)));
        }
        let expected = all[0].1.clone();
        for (form, found) in all {
            assert_eq!(found, expected, "{form}");
        }
    }
}

/// One step of the run, computed by hand: device 0 is busy in 130–178, 212–330 with the prefetch in 230–430 and kernels in
/// 332–470 and 440–560, the memset in between, 590–592, 650–655.
#[test]
fn the_measurements_of_one_step_are_those_computed_by_hand() {
    let trace = json(&pytorch::write(
        &Scenario::training(1),
        Form::Y2022,
        Options::NONE,
    ));
    let [first, second] = &devices(&trace, &Collectives::of(&trace))[..] else {
        panic!("there are two devices");
    };
    let us = |ns: u64| ns as f64 / 1e3;
    assert_eq!((first.gpu_ops, us(first.span_ns)), (8, 525.0));
    assert_eq!(us(first.busy_ns()), 48.0 + 348.0 + 2.0 + 5.0);
    assert_eq!(us(first.kernel_ns()), 118.0 + 228.0);
    assert_eq!(us(first.host_copy_ns), 48.0 + 200.0 + 2.0);
    // All of the prefetch except two microseconds between two kernels.
    assert_eq!(us(first.hidden_copy_ns), 198.0);
    assert_eq!((first.gaps_10us, first.gaps_1ms), (3, 0));
    assert_eq!((second.gpu_ops, us(second.span_ns)), (2, 516.0));
    assert_eq!(us(second.busy_ns()), 150.0);
}

#[test]
fn json_and_database_of_one_run_are_the_same() {
    let folder = Folder::new("formats-both");
    let scenario = Scenario::training(5).with_nanoseconds();
    let path = folder.file("run.sqlite");
    nsys::write(&scenario, nsys::Schema::V3_24, nsys::Options::NONE, &path);
    let database = match read(&path, &Limits::default(), &mut |_, _| {}) {
        Ok(trace) => trace,
        Err(error) => panic!("{error}"),
    };
    let trace = json(&pytorch::write(&scenario, Form::Y2026, Options::NONE));
    assert_eq!(work_in(&trace), work_in(&database));
    assert_eq!(calls_in(&trace), calls_in(&database));
    assert_eq!(steps_in(&trace), steps_in(&database));
    let names = |trace: &Trace| -> BTreeSet<String> {
        let names = trace.work.iter().map(|work| trace.names.text(work.name));
        names.map(str::to_owned).collect()
    };
    assert_eq!(names(&trace), names(&database));
}

#[test]
fn members_around_the_events_do_not_matter() {
    for form in Form::ALL {
        let scenario = run(form);
        let work = work_of(&scenario);
        for options in [
            Options {
                bare_array: true,
                ..Options::NONE
            },
            Options {
                events_first: true,
                ..Options::NONE
            },
            Options {
                stacks: true,
                ..Options::NONE
            },
            Options {
                sync_rows: true,
                ..Options::NONE
            },
            Options {
                device_only: true,
                ..Options::NONE
            },
        ] {
            let trace = json(&pytorch::write(&scenario, form, options));
            assert_eq!(work_in(&trace), work, "{form:?} {options:?}");
            let calls = if options.device_only {
                Vec::new()
            } else {
                calls_of(&scenario)
            };
            assert_eq!(calls_in(&trace), calls, "{form:?} {options:?}");
        }
    }
}

#[test]
fn a_run_without_steps_has_none() {
    for form in Form::ALL {
        let scenario = run(form).without_steps();
        let trace = json(&pytorch::write(&scenario, form, Options::NONE));
        assert_eq!(work_in(&trace), work_of(&scenario), "{form:?}");
        assert_eq!(steps_in(&trace), BTreeSet::new(), "{form:?}");
    }
}

#[test]
fn waits_have_rows_where_the_profiler_was_asked_for_them() {
    let options = Options {
        sync_rows: true,
        ..Options::NONE
    };
    let scenario = Scenario::training(3);
    for form in [Form::Y2023, Form::Y2024, Form::Y2026] {
        let trace = json(&pytorch::write(&scenario, form, options));
        // Each step has two host waits for a stream, one for the device, and one wait of a stream for an event.
        assert_eq!(trace.syncs.len(), 12, "{form:?}");
        // The lanes of waits are not streams.
        let streams: BTreeSet<(i64, i64)> = (trace.streams.iter())
            .map(|stream| (stream.device, stream.number))
            .collect();
        let expected = BTreeSet::from([(0, 7), (0, 20), (0, 24), (1, 7)]);
        assert_eq!(streams, expected, "{form:?}");
    }
}

#[test]
fn odd_names_come_through_escaped_or_not() {
    for form in Form::ALL {
        let scenario = run(form).with_odd_names();
        let trace = json(&pytorch::write(&scenario, form, Options::NONE));
        assert_eq!(work_in(&trace), work_of(&scenario), "{form:?}");
        // Before 2026 quotes and tabs were not escaped, and some bytes were not UTF-8.
        if form < Form::Y2026 {
            let trace = json(&pytorch::write_unescaped(&scenario, form));
            assert_eq!(calls_in(&trace), calls_of(&scenario), "{form:?}");
            let (mut found, mut expected) = (work_in(&trace), work_of(&scenario));
            let lossy = |row: &mut WorkRow| {
                row.what = row.what.replace("名", "").replace('\u{fffd}', "");
            };
            found.iter_mut().for_each(lossy);
            expected.iter_mut().for_each(lossy);
            assert_eq!(found, expected, "{form:?}");
        }
    }
}

#[test]
fn memory_that_rocm_does_not_name_is_unknown() {
    let options = Options {
        rocm: true,
        ..Options::NONE
    };
    for form in Form::ALL {
        let scenario = run(form).with_unknown_memory();
        let trace = json(&pytorch::write(&scenario, form, options));
        let mut expected = work_of(&scenario);
        for row in &mut expected {
            // Copies with even numbers come without their bytes.
            if row.correlation.is_multiple_of(2)
                && let Some((start, _)) = row.what.rsplit_once(' ')
                && start.starts_with("copy")
            {
                row.what = format!("{start} 0");
            }
        }
        assert_eq!(work_in(&trace), expected, "{form:?}");
        assert!(
            trace.names.text(trace.calls[0].name).starts_with("hip"),
            "{form:?}"
        );
    }
}

#[test]
fn nodes_of_graphs_know_their_graph_where_the_form_says_it() {
    let scenario = Scenario::graphs(3);
    for form in Form::ALL {
        let trace = json(&pytorch::write(&scenario, form, Options::NONE));
        assert_eq!(work_in(&trace), work_of(&scenario), "{form:?}");
        let graph = if form == Form::Y2026 { 5 } else { 0 };
        assert!(
            trace.work.iter().all(|work| work.graph == graph),
            "{form:?}"
        );
    }
}

#[test]
fn a_compressed_file_is_the_same_file() {
    let folder = Folder::new("formats-gzip");
    for form in Form::ALL {
        let scenario = run(form);
        let text = pytorch::write(&scenario, form, Options::NONE);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&text).expect("memory takes everything");
        let packed = packed.finish().expect("memory takes everything");
        let path = folder.write(&format!("{form:?}.json.gz"), &packed);
        let trace = match read(&path, &Limits::default(), &mut |_, _| {}) {
            Ok(trace) => trace,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(work_in(&trace), work_of(&scenario), "{form:?}");
        assert_eq!(calls_in(&trace), calls_of(&scenario), "{form:?}");
    }
}

/// Users watch long files being read: the progress is reported throughout, whether the file is compressed or not.
#[test]
fn progress_is_reported_throughout_every_kind_of_file() {
    let folder = Folder::new("formats-progress");
    let scenario = Scenario::training(2_000);
    let text = pytorch::write(&scenario, Form::Y2024, Options::NONE);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&text).expect("memory takes everything");
    let packed = packed.finish().expect("memory takes everything");
    let database = folder.file("long.sqlite");
    nsys::write(
        &scenario,
        nsys::Schema::V3_25,
        nsys::Options::SHORT,
        &database,
    );
    for path in [
        folder.write("long.json", &text),
        folder.write("long.json.gz", &packed),
        database,
    ] {
        let mut told = Vec::new();
        let trace = read(&path, &Limits::default(), &mut |done, all| {
            told.push((done, all));
        });
        assert!(trace.is_ok());
        let size_bytes = std::fs::metadata(&path).expect("it was written").len();
        assert!(told.is_sorted(), "{}", path.display());
        assert!(
            told.iter()
                .all(|(done, all)| done <= all && *all == size_bytes)
        );
        // Progress is reported every 256 KiB of compressed data, two megabytes of text, or some thousand rows. Of this short
        // file, that is a large part; of a file that takes long enough to be watched, it is less than a percent.
        let mut places: Vec<u64> = told.iter().map(|(done, _)| *done).collect();
        places.insert(0, 0);
        places.push(size_bytes);
        let longest = places.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(
            longest.is_some_and(|step| step <= size_bytes / 5),
            "{}: {longest:?} of {size_bytes}",
            path.display()
        );
    }
}
