//! Programs that are observed while they run: by the checker, by a recorder, and call by call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use sidestream::check::{self, OnRace, Verdict};
use sidestream::device::{Device, Options};
use sidestream::error::Error;
use sidestream::kernel::{Grid, Kernel, Read, Write};
use sidestream::log::{self, Reader, Record};
use sidestream::pipeline::{Failed, Pipeline, per_row};
use sidestream::sim::Schedule;
use sidestream::trace;

use crate::refusing::Refusing;

fn copy() -> Kernel<(Read<u32>, Write<u32>)> {
    Kernel::<(Read<u32>, Write<u32>)>::on_host("copy", |_, (x, y)| y.copy_from_slice(x))
}

/// Uses the same buffers on two streams, and reuses freed memory.
fn program(device: &Device) {
    let copy = copy();
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    for round in 0..6 {
        let _span = device.span(if round % 2 == 0 { "even" } else { "odd" });
        let mut x = a.alloc::<u32>(256).unwrap();
        let mut y = b.alloc::<u32>(256).unwrap();
        a.fill_with(x.view_mut(), round).unwrap();
        let args = (x.view(), y.view_mut());
        b.launch(&copy, Grid::cover(256, 64), args).unwrap();
        let mut host = [0; 256];
        b.memcpy_d2h(y.view(), &mut host).unwrap();
        assert_eq!(host, [round; 256]);
    }
}

#[test]
fn errors_of_recordings_and_pipelines_pass_through_a_function_that_returns_the_runtimes() {
    let record = || -> sidestream::Result<()> {
        let device = Device::open("sim:h200")?;
        let full: &mut [u8] = &mut [];
        device.record(full)?.finish()?;
        Ok(())
    };
    let run = || -> sidestream::Result<()> {
        let device = Device::open("sim:h200")?;
        let running = Pipeline::new(&device, 4)
            .upload(per_row::<u32>(1))
            .download(per_row::<u32>(1), |x| x)
            .fill_on_thread(|_, _| Err("no data".into()))?;
        for item in running {
            item?;
        }
        Ok(())
    };
    let inner = |error| match error {
        Err(Error::Other(other)) => other,
        other => panic!("{other:?}"),
    };
    let recorded = inner(record());
    assert!(recorded.get().is::<log::Error>(), "{recorded:?}");
    let failed = inner(run());
    let failed = failed
        .get()
        .downcast_ref::<Failed>()
        .expect("the pipeline's own error");
    assert_eq!((failed.stage.as_str(), failed.index), ("source", 0));
}

#[test]
fn the_checker_is_silent_about_a_safe_program_and_has_seen_it() {
    let device = Device::open("sim:h200").unwrap();
    let findings = device.checked(OnRace::Panic);
    program(&device);
    assert!(findings.report().races.is_empty(), "{}", findings.text());
    assert!(findings.ops() > 50, "{} operations", findings.ops());
}

#[test]
fn without_tracking_the_checker_names_both_calls_and_the_wait_that_is_missing() {
    // SAFETY: the race is intended; on the simulated GPU it gives a wrong number and nothing worse.
    let options = unsafe { Options::new().untracked() };
    let device = Device::open_with("sim:h200", &options).unwrap();
    let findings = device.checked(OnRace::Report);
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut x = a.alloc::<u32>(256).unwrap();
    a.memset(x.view_mut(), 1).unwrap();
    let second = line!() + 1;
    b.memset(x.view_mut(), 2).unwrap();
    let text = findings.text();
    assert_eq!(findings.report().races.len(), 1, "{text}");
    assert!(
        text.contains("WAW") && text.contains("make b wait for a"),
        "{text}"
    );
    for line in [second - 2, second] {
        assert!(text.contains(&format!("observe.rs:{line}")), "{text}");
    }
}

#[test]
fn a_race_panics_in_the_call_that_completes_it_and_leaves_the_device_usable() {
    // SAFETY: as above.
    let options = unsafe { Options::new().untracked() };
    let device = Device::open_with("sim:h200", &options).unwrap();
    let findings = device.checked(OnRace::Panic);
    let (a, b) = (device.stream("a").unwrap(), device.stream("b").unwrap());
    let mut x = a.alloc::<u32>(256).unwrap();
    a.memset(x.view_mut(), 1).unwrap();
    let raced = catch_unwind(AssertUnwindSafe(|| b.memset(x.view_mut(), 2)));
    let panic = raced.unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("WAW"), "{text}");
    b.synchronize().unwrap();
    assert_eq!(findings.report().races.len(), 1);
}

#[test]
fn a_recorded_run_is_checked_and_drawn_afterwards() {
    let device = Device::open("sim:h200").unwrap();
    let recording = device.record(Vec::new()).unwrap();
    program(&device);
    let bytes = recording.finish().unwrap();

    let checked = check::replay(Reader::new(&bytes[..]).unwrap(), check::MEMORY_BYTES).unwrap();
    assert_eq!(checked.report.verdict(), Verdict::Clean);

    let recorded = trace::recorded(Reader::new(&bytes[..]).unwrap(), 1 << 30).unwrap();
    let mut json = Vec::new();
    recorded.trace.write_json(&mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    for word in [
        "even",
        "odd",
        "gpu_user_annotation",
        "observe.rs",
        "EventSynchronize",
    ] {
        assert!(json.contains(word), "{word} is missing");
    }
}

#[test]
fn calls_after_the_end_of_a_recording_are_not_in_it() {
    let device = Device::open("sim:h200").unwrap();
    let recording = device.record(Vec::new()).unwrap();
    let stream = device.stream("s").unwrap();
    stream.synchronize().unwrap();
    let short = recording.finish().unwrap().len();
    program(&device);
    let again = device.record(Vec::new()).unwrap();
    program(&device);
    assert!(again.finish().unwrap().len() > short + 500);
}

static NOTICES: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn synchronous_calls_wait_for_their_work_and_say_so_loudly() {
    let notice = |text: &str| NOTICES.lock().unwrap().push(text.to_owned());
    let options = Options::new().synchronous().notice(notice);
    let device = Device::open_with("sim:h200", &options).unwrap();
    let said = NOTICES.lock().unwrap().join("\n");
    assert!(said.contains("synchronous"), "{said}");

    let stream = device.stream("s").unwrap();
    let mut x = stream.alloc::<u32>(16).unwrap();
    stream.memset(x.view_mut(), 1).unwrap();
    assert!(stream.record_event().unwrap().query().unwrap());
    let traps = Kernel::<(Write<u32>,)>::on_host("traps", |_, _| panic!("a bad index"));
    let error = stream
        .launch(&traps, Grid::new(1, 1), (x.view_mut(),))
        .unwrap_err();
    for word in ["traps", "observe.rs:"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// Another thread submits work to the stream just when a wait for its end has succeeded. The wait has used up its
/// time.
#[test]
fn a_wait_with_a_limit_waits_once_even_if_another_thread_submits() {
    const LIMIT: Duration = Duration::from_secs(7);
    let (backend, device) = Refusing::open(Schedule::InOrder);
    let findings = device.checked(OnRace::Report);
    let stream = device.unmarked_stream("unmarked").unwrap();
    let mut x = stream.alloc::<u32>(16).unwrap();
    let from = device.pinned::<u32>(16).unwrap();
    let mut pending = stream.upload(from, x.view_mut()).unwrap();
    let theirs = stream.clone();
    backend.behind_answer(move || {
        let other = std::thread::spawn(move || {
            let mut y = theirs.alloc::<u32>(1 << 20).unwrap();
            theirs.memset(y.view_mut(), 1).unwrap();
        });
        other.join().unwrap();
    });
    backend.limits();
    let done = pending.synchronize_for(LIMIT).unwrap();
    assert_eq!((done.is_some(), backend.limits()), (true, vec![LIMIT]));
    assert!(findings.report().races.is_empty());
}

fn records(log: &[u8]) -> Vec<Record<'static>> {
    Reader::new(log).unwrap().map(Result::unwrap).collect()
}

/// Work that a pipeline submits itself is named only for sinks that listen by then.
#[test]
fn a_sink_attached_inside_of_a_stage_has_every_span_with_both_ends() {
    let device = Device::open("sim:h200").unwrap();
    let (copy, listens, recording) = (copy(), device.clone(), Mutex::new(None));
    let recording = std::sync::Arc::new(recording);
    let begun = recording.clone();
    let running = Pipeline::new(&device, 64)
        .upload(per_row::<u32>(1))
        .stage("copy", per_row::<u32>(1), move |at, x, y| {
            if at.index() == 0 {
                let file = listens.record(Vec::new()).expect("memory takes everything");
                *begun.lock().unwrap() = Some(file);
            }
            (at.stream()).launch(&copy, Grid::cover(64, 64), (x.view(), y.view_mut()))
        })
        .download(per_row::<u32>(1), |(_, y)| y)
        .depth(1)
        .fill(|index, _| Ok((index < 2).then_some(64)));
    running.run(|_| Ok(())).unwrap();
    let recording = recording.lock().unwrap().take().unwrap();
    let log = records(&recording.finish().unwrap());
    let spans = log.iter().filter_map(|record| match record {
        Record::Span { enters, .. } => Some(enters.as_deref().unwrap_or("end")),
        _ => None,
    });
    let first = ["copy", "end", "download", "end"];
    let second = ["upload", "end", "copy", "end", "download", "end"];
    assert_eq!(spans.collect::<Vec<_>>(), [&first[..], &second].concat());
}

#[test]
fn a_thread_that_alternates_between_two_machines_keeps_its_id_in_both() {
    let devices = [(); 3].map(|()| Device::open("sim:h200").unwrap());
    let recordings = devices
        .each_ref()
        .map(|device| device.record(Vec::new()).unwrap());
    let mut late = None;
    for _ in 0..3 {
        for device in &devices {
            let stream = device.stream("s").unwrap();
            let mut x = stream.alloc::<u32>(64).unwrap();
            stream.memset(x.view_mut(), 1).unwrap();
            // The dropped value belongs to the machine that was called before this one.
            drop(late.replace(x));
        }
    }
    for recording in recordings {
        let log = records(&recording.finish().unwrap());
        let threads = log.iter().filter(|r| matches!(r, Record::Thread { .. }));
        assert_eq!(threads.count(), 1);
    }
}
