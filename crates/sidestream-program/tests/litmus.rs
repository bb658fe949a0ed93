//! Every litmus program is read, and is equal when it is written and read again.

use std::fs;
use std::path::Path;

use sidestream::check::{LintCode, RaceKind, Severity};
use sidestream::op::{DeviceId, Memory, StreamKind};
use sidestream_program::{
    Access, Expected, Fields, Level, Limits, Origin, Program, Verb, parse, write,
};

fn litmus() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/litmus");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let named = files.iter().map(|file| {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(file).unwrap())
    });
    named.collect()
}

fn read(text: &str) -> Program {
    let mut document = parse(text, &Limits::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(document.programs.len(), 1);
    let program = document.programs.remove(0);
    program.unwrap_or_else(|bad| panic!("{bad}"))
}

fn named(name: &str) -> Program {
    let all = litmus();
    let (_, text) = all.iter().find(|(file, _)| file == name).unwrap();
    read(text)
}

#[test]
fn every_file_is_a_program_and_survives_writing() {
    let files = litmus();
    assert!(files.len() >= 15, "{} files", files.len());
    for (name, text) in files {
        let mut program = read(&text);
        assert_eq!(program.name, name);
        let again = write(&[&program]);
        let mut back = read(&again);
        program.forget_lines();
        back.forget_lines();
        assert_eq!(back, program, "{again}");
        // Ops are written as in the file, except for spaces and comments.
        for line in text.lines().filter(|line| line.starts_with("- {")) {
            let op = line.split(" #").next().unwrap().trim_end();
            let alike = |written: &str| {
                let default = op.replace(", ready: false", "");
                let sorted = |text: &str| {
                    let inner = text.trim_start_matches("- {").trim_end_matches('}');
                    let mut fields: Vec<_> = inner.split(", ").map(str::to_owned).collect();
                    fields.sort();
                    fields
                };
                sorted(written) == sorted(&default)
            };
            assert!(again.lines().any(alike), "{op}\nis not in\n{again}");
        }
    }
}

#[test]
fn all_litmus_programs_fit_one_document() {
    let programs: Vec<Program> = litmus().iter().map(|(_, text)| read(text)).collect();
    let text = write(&programs.iter().collect::<Vec<_>>());
    let document = parse(&text, &Limits::default()).unwrap();
    for (back, mut program) in document.programs.into_iter().zip(programs) {
        let mut back = back.unwrap();
        back.forget_lines();
        program.forget_lines();
        assert_eq!(back, program);
    }
}

#[test]
fn names_are_resolved_with_and_without_a_declaration() {
    let program = named("default_stream_between");
    let streams = program.streams.iter();
    let streams: Vec<_> = streams
        .map(|s| (s.name.as_str(), s.kind, s.origin))
        .collect();
    assert_eq!(
        streams,
        [
            ("b1", StreamKind::Blocking, Origin::Declared),
            ("b2", StreamKind::Blocking, Origin::Declared),
            ("d", StreamKind::Legacy, Origin::Declared),
        ]
    );
    let buffers = program.buffers.iter();
    let buffers: Vec<_> = buffers.map(|b| (b.name.as_str(), b.memory)).collect();
    assert_eq!(
        buffers,
        [
            ("A", Memory::Device),
            ("B", Memory::Device),
            ("Z", Memory::Device),
            ("H", Memory::Pinned),
            ("C", Memory::Device),
            ("E", Memory::Device),
        ]
    );
    assert!(
        program
            .buffers
            .iter()
            .all(|b| b.implicit && b.size_bytes == 1024)
    );

    let pool = named("stream_pool_wraps");
    assert_eq!(pool.level, Level::Runtime);
    assert!(pool.streams.iter().all(|s| s.origin == Origin::Pool));
    assert_eq!(pool.streams.len(), 2);

    let timer = named("timer_on_second_gpu");
    assert_eq!(timer.streams[0].device, DeviceId(1));
    assert_eq!(timer.events[0].device, Some(DeviceId(1)));
    assert!(
        timer
            .events
            .iter()
            .all(|event| event.timing && !event.implicit)
    );
}

#[test]
fn ops_have_the_fields_of_the_text() {
    let sums = named("partial_sums");
    let buffer = sums.buffer("sums").unwrap();
    assert_eq!(sums.buffers[buffer.0 as usize].size_bytes, 4096);
    let half = Access {
        buffer,
        range: Some((2048, 4096)),
    };
    assert_eq!(sums.ops[4].verb, Verb::Kernel);
    let fields = Fields {
        stream: sums.stream("right"),
        writes: vec![half],
        ..Fields::default()
    };
    assert_eq!(sums.ops[4].fields, fields);
    assert_eq!(sums.ops[4].line, 11);
    assert_eq!(sums.range(half), (2048, 4096));

    let preview = named("preview_loop");
    assert_eq!(preview.ops[3].fields.number, Some(4));
    assert_eq!(preview.ops[0].site, preview.ops[3].site);
    assert_ne!(preview.ops[0].site, preview.ops[1].site);

    let callback = named("callback_covers_both_uploads");
    assert_eq!(callback.threads, ["t0", "filler"]);
    assert_eq!(callback.ops[4].thread.0, 1);
    assert_eq!(callback.flags, ["sent", "refilled"]);
}

#[test]
fn the_expected_result_is_read() {
    let expect = named("pageable_result").expect.unwrap();
    assert_eq!(expect.lints, [LintCode::UnpinnedAsyncCopy]);
    let Expected::Race {
        must,
        severity,
        distinct,
    } = expect.verdict
    else {
        panic!("a race is expected");
    };
    assert_eq!((severity, distinct), (Severity::Warn, None));
    assert_eq!(must[0].kind, RaceKind::HostRaw);
    assert_eq!(must[0].buffer.as_deref(), Some("P"));
    assert_eq!((must[0].first, must[0].second), (2, 4));
}
