//! Checks what a user reads of each finding, as text and on the page: no contradictions, and no meaningless figures.

use std::path::{Path, PathBuf};

use sidestream_diagnose::{Code, Finding, Limits, Options, Report, brief, html, read, text};

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let files = std::fs::read_dir(folder).expect("the examples");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "gz"));
    paths.sort();
    assert!(paths.len() > 30);
    paths
}

fn reports() -> impl Iterator<Item = (String, Report)> {
    examples().into_iter().map(|path| {
        let trace = read(&path, &Limits::default(), &mut |_, _| ()).expect("a trace");
        (
            path.display().to_string(),
            Report::of(trace, &Options::default()),
        )
    })
}

/// Returns the lines of one finding in the text, and its part of the page.
fn told(finding: &Finding, said: &str, page: &str) -> (String, String) {
    let code = finding.code.as_str();
    let begins = |line: &&str| line.starts_with(&format!("{code}  "));
    let mut lines = said.lines().skip_while(|line| !begins(line));
    let mut own = vec![lines.next().unwrap_or_default()];
    own.extend(lines.take_while(|line| line.starts_with("    ")));
    let part = page
        .split("<li><div><h3>")
        .find(|part| part.starts_with(&format!("<code>{code}</code>")));
    (own.join("\n"), part.unwrap_or_default().to_owned())
}

#[test]
fn not_predicted_is_said_only_where_nothing_was() {
    let (mut predicted, mut open) = (0, 0);
    for (name, report) in reports() {
        let (said, page) = (text(&name, &report, 80), html(&name, &report));
        for finding in &report.findings {
            let saving = finding.saving_ns;
            let (lines, part) = told(finding, &said, &page);
            let is_known = saving.likely > 0;
            // The change was tried, and its gain depends on something that no trace shows.
            let is_open = !is_known && saving.high > 0 && !finding.changes.is_empty();
            let is_unknown = !is_known && saving.high > 0 && !is_open;
            assert_eq!(
                lines.contains("not predicted"),
                is_unknown,
                "{name}: {lines}"
            );
            assert_eq!(part.contains("not predicted"), is_unknown, "{name}: {part}");
            assert_eq!(
                lines.contains("or nothing: no trace shows which"),
                is_open,
                "{name}: {lines}"
            );
            assert_eq!(
                part.contains("<b>not known from a trace</b>"),
                is_open,
                "{name}: {part}"
            );
            predicted += usize::from(is_known);
            open += usize::from(is_open);
        }
    }
    assert!(predicted > 10 && open > 0, "{predicted} {open}");
}

#[test]
fn a_trace_without_steps_predicts_nothing_and_says_so() {
    // Forty kernels, each in an operator of the host: nothing repeats.
    let mut rows = Vec::new();
    for at in 0..40 {
        let ts = 1_000 + 400 * at + 13 * at * at;
        rows.push(format!(
            "{{\"ph\":\"X\",\"cat\":\"cuda_runtime\",\"name\":\"cudaLaunchKernel\",\"pid\":1,\"tid\":1,\"ts\":{ts},\"dur\":9,\
             \"args\":{{\"correlation\":{}}}}},{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k{at}\",\"pid\":0,\"tid\":7,\"ts\":{},\"dur\":30,\
             \"args\":{{\"device\":0,\"stream\":7,\"correlation\":{}}}}}",
            at + 1,
            ts + 12,
            at + 1
        ));
    }
    let json = format!("{{\"traceEvents\":[{}]}}", rows.join(","));
    let trace =
        sidestream_diagnose::read_json(json.as_bytes(), &Limits::default()).expect("a trace");
    let report = Report::of(trace, &Options::default());
    let (said, page) = (text("x", &report, 80), html("x", &report));
    let finding = report
        .findings
        .iter()
        .find(|finding| finding.saving_ns.high > 0)
        .expect("a finding");
    let (lines, part) = told(finding, &said, &page);
    assert!(
        lines.contains("    worth at most ") && lines.contains("; not predicted"),
        "{said}"
    );
    assert!(
        part.contains("<b>not predicted</b>") && part.contains("</svg>at most "),
        "{part}"
    );
    assert!(!said.contains(" 0 ns") && !part.contains(" 0 ns"));
}

#[test]
fn no_finding_is_worth_0_ns_or_takes_0_percent() {
    for (name, report) in reports() {
        let (said, page) = (text(&name, &report, 80), html(&name, &report));
        let short = brief(&name, &report);
        for finding in &report.findings {
            let (lines, part) = told(finding, &said, &page);
            // A finding about the profiler is at the top of the text, without its code.
            let is_named = !lines.is_empty() || finding.code == Code::ProfilerOverhead;
            assert!(is_named && !part.is_empty(), "{name}");
            let is_figure = |words: &str, figure: &str| {
                let mut places = words.match_indices(figure);
                places
                    .any(|(at, _)| !words[..at].ends_with(|c: char| c.is_ascii_digit() || c == '.'))
            };
            for words in [&lines, &part, &short] {
                assert!(!is_figure(words, "0 ns"), "{name}: {words}");
                assert!(!is_figure(words, "0.0 % of a step"), "{name}: {words}");
            }
        }
    }
}
