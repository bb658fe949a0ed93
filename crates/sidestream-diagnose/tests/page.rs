//! Tests the page of a report, as text and as it is seen in a browser.

use std::fmt::Write;
use std::path::Path;

use crate::browser::Browser;
use serde_json::{Value, json};
use sidestream_diagnose::{Limits, Options, Report, html, picture, read, read_json};

const WIDE: (u32, u32) = (1200, 900);
const NARROW: (u32, u32) = (400, 800);

fn example(name: &str) -> Report {
    example_with(name, &Options::default())
}

fn example_with(name: &str, options: &Options) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces");
    let path = folder.join(format!("{name}.json.gz"));
    let trace = read(&path, &Limits::default(), &mut |_, _| ()).expect("a trace");
    Report::of(trace, options)
}

/// Names that would have an effect if they were not escaped.
const HOSTILE: [&str; 7] = [
    "<script>window.taken = 1</script>",
    "</script><script>window.taken = 2</script>",
    "\"><img src=http://taken.example/x onerror=window.taken=3>",
    "' onmouseover='window.taken=4' x='",
    "</style></svg></ol><iframe src=//taken.example></iframe>",
    "]]>--><svg onload=window.taken=5>",
    "a\u{202e}gnp.exe\u{0}\u{1b}[2J\u{200b}",
];

/// Returns a trace of steps in which everything with a name has a hostile one.
fn hostile() -> Report {
    let mut rows = Vec::new();
    for step in 0..6 {
        let start = 1_000 * step;
        rows.push(
            json!({"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": start,
                         "name": format!("ProfilerStep#{step}"), "dur": 900}),
        );
        for (at, name) in HOSTILE.iter().enumerate() {
            let (ts, number) = (start + 100 * at, 100 * step + at + 1);
            rows.push(
                json!({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1,
                             "ts": ts, "dur": 60}),
            );
            rows.push(
                json!({"ph": "X", "cat": "cuda_runtime", "pid": 1, "tid": 1, "ts": ts + 5,
                             "name": if at == 3 { name } else { "cudaLaunchKernel" }, "dur": 50,
                             "args": {"correlation": number}}),
            );
            rows.push(
                json!({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7,
                             "ts": ts + 30, "dur": 65,
                             "args": {"device": 0, "stream": 7, "correlation": number}}),
            );
        }
    }
    let text = json!({
        "deviceProperties": [{"id": 0, "name": HOSTILE[2]}],
        "traceEvents": rows,
    });
    let trace = read_json(text.to_string().as_bytes(), &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

/// Returns the visible widths of the spans of each lane below this element.
fn lanes(browser: &mut Browser, below: &str) -> Vec<(String, Vec<f64>)> {
    let script = format!(
        "[...document.querySelectorAll('{below} .lane')].map(lane => [
            lane.querySelector('.name').innerText,
            [...lane.querySelectorAll('rect[data-d]')].map(span => {{
                const box = span.getBoundingClientRect();
                return box.height > 8 ? box.width : 0;
            }}),
        ])"
    );
    serde_json::from_value(browser.value(&script)).expect("lanes")
}

fn text(browser: &mut Browser, of: &str) -> String {
    let script = format!("document.querySelector('{of}').innerText");
    browser.value(&script).as_str().unwrap_or("").to_owned()
}

/// Returns the middle of an element in the window.
fn middle(browser: &mut Browser, of: &str) -> (f64, f64) {
    let script = format!(
        "(() => {{
            const part = document.querySelector('{of}');
            part.scrollIntoView({{block: 'center'}});
            const box = part.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"
    );
    serde_json::from_value(browser.value(&script)).expect("a point")
}

#[track_caller]
fn quiet(browser: &mut Browser) {
    assert_eq!(browser.requests(), Vec::<String>::new());
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_reader_sees_the_step_and_picks_what_to_change() {
    let Some(mut browser) = Browser::start("a_reader") else {
        return;
    };
    let report = example("infer_pageable.before");
    browser.open(&html("infer.json", &report), WIDE);
    assert_eq!(
        browser.value("document.title"),
        "infer.json: sidestream diagnose"
    );
    assert_eq!(text(&mut browser, "h1"), "infer.json");
    assert!(text(&mut browser, ".facts").contains("15.25 ms"));
    // Both lanes of the measured step, with visible spans. The copy takes half of it.
    let measured = lanes(&mut browser, "#measured");
    let names: Vec<&str> = measured.iter().map(|lane| &*lane.0).collect();
    assert_eq!(names.len(), 2);
    assert!(names[0].starts_with("host thread"));
    assert_eq!(names[1], "GPU 0 stream 7");
    for (name, widths) in &measured {
        assert!(widths.len() > 2, "{name}");
        assert!(widths.iter().all(|width| *width > 0.0), "{name} {widths:?}");
    }
    let widest = measured[1].1.iter().copied().fold(0.0, f64::max);
    assert!((400.0..560.0).contains(&widest), "{widest}");
    // At first only the best change is selected.
    let shown = "[...document.querySelectorAll('.after > figure')]
        .filter(f => f.getBoundingClientRect().height > 0).map(f => f.innerText.split('\\n')[0])";
    let captions: Vec<String> = serde_json::from_value(browser.value(shown)).expect("captions");
    assert_eq!(captions.len(), 1, "{captions:?}");
    assert!(captions[0].starts_with("With pinned + prefetch=2 + no-sync 7."));
    // Another change is picked, and its step is shown.
    let point = middle(&mut browser, ".picks label:first-child");
    browser.mouse(point, true);
    let captions: Vec<String> = serde_json::from_value(browser.value(shown)).expect("captions");
    assert_eq!(captions.len(), 1, "{captions:?}");
    let replay = report.replay.as_ref().expect("a replay");
    let likely = sidestream_diagnose::time(replay.predictions[0].likely_ns);
    let start = format!("With pinned {likely} (");
    assert!(captions[0].starts_with(&start), "{captions:?}");
    let after = lanes(&mut browser, "#after0");
    let seen: usize = after.iter().map(|lane| lane.1.len()).sum();
    assert!(seen > 4, "{after:?}");
    // A span shows what it is.
    let point = middle(&mut browser, "#measured .lane.gpu svg svg rect");
    browser.mouse(point, false);
    let tip = text(&mut browser, "#tip");
    assert!(tip.contains("Memcpy HtoD (Pageable -> Device)"), "{tip}");
    assert!(tip.contains("upload, 7."), "{tip}");
    quiet(&mut browser);
}

/// Returns steps of these lengths in microseconds, each a call and a kernel that lasts to its end.
fn steps(lengths_us: &[u64]) -> Report {
    let (mut rows, mut now_us) = (Vec::new(), 1_000);
    for (step, length_us) in lengths_us.iter().enumerate() {
        let number = step + 1;
        rows.extend([
            json!({"ph": "X", "cat": "user_annotation", "name": format!("ProfilerStep#{step}"), "pid": 1, "tid": 1,
                   "ts": now_us, "dur": length_us - 1}),
            json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": now_us + 1,
                   "dur": 2, "args": {"correlation": number}}),
            json!({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": now_us + 5, "dur": length_us - 10,
                   "args": {"device": 0, "stream": 7, "correlation": number}}),
        ]);
        now_us += length_us;
    }
    let text = json!({"traceEvents": rows}).to_string();
    let trace = read_json(text.as_bytes(), &Limits::default()).expect("a trace");
    Report::of(trace, &Options::default())
}

/// A visible bar of the strip of all steps: the distance of its left edge from that of the strip, its height, and its title.
type Bar = (f64, f64, String);

/// Returns the bars of the strip, and its width and height.
fn strip(browser: &mut Browser) -> (Vec<Bar>, (f64, f64)) {
    let script = "(() => {
        const strip = document.querySelector('#all-steps svg');
        if (!strip) return [[], [0, 0]];
        const all = strip.getBoundingClientRect();
        const bars = [...strip.querySelectorAll('rect.s3')].map(bar => {
            const box = bar.getBoundingClientRect();
            return [box.x - all.x, all.bottom - box.top, bar.querySelector('title').textContent];
        });
        return [bars, [all.width, all.height]];
    })()";
    serde_json::from_value(browser.value(script)).expect("bars")
}

#[test]
fn all_steps_are_shown_side_by_side_with_their_lengths() {
    let Some(mut browser) = Browser::start("strip") else {
        return;
    };
    for window in [WIDE, NARROW] {
        browser.open(
            &html("x", &steps(&[1_000, 2_000, 1_000, 4_000, 1_000, 1_000])),
            window,
        );
        let (bars, (width, height)) = strip(&mut browser);
        // The first step has no previous step from which its time could be counted.
        let named: Vec<&str> = bars.iter().map(|bar| &*bar.2).collect();
        let expected = [
            "step 1: 2.00 ms",
            "step 2: 1.00 ms",
            "step 3: 4.00 ms",
            "step 4: 1.00 ms",
            "step 5: 1.00 ms",
        ];
        assert_eq!(named, expected);
        assert!(width > 300.0 && width <= f64::from(window.0));
        for (at, (bar, part)) in bars.iter().zip([0.5, 0.25, 1.0, 0.25, 0.25]).enumerate() {
            assert!(
                (bar.0 - width * at as f64 / 5.0).abs() < 1.0,
                "{bars:?} of {width}"
            );
            assert!((bar.1 - part * height).abs() < 1.0, "{bars:?} of {height}");
        }
        let said = text(&mut browser, "#all-steps p");
        assert!(
            said.starts_with("A bar for each step but the first, "),
            "{said}"
        );
        assert!(
            said.ends_with("the longest took 4.00 ms, and the line is the mean."),
            "{said}"
        );
        // The line of the mean, 1.8 of 4 ms.
        let line = "(() => {
            const strip = document.querySelector('#all-steps svg').getBoundingClientRect();
            const line = document.querySelector('#all-steps rect.track').getBoundingClientRect();
            return [strip.bottom - line.top, line.width];
        })()";
        let line: (f64, f64) = serde_json::from_value(browser.value(line)).expect("a line");
        assert!(
            (line.0 - 0.45 * height).abs() < 1.0 && (line.1 - width).abs() < 1.0,
            "{line:?}"
        );
        quiet(&mut browser);
    }
}

#[test]
fn slow_steps_are_seen_among_many() {
    let Some(mut browser) = Browser::start("strips") else {
        return;
    };
    let mut lengths_us = vec![100; 1_001];
    lengths_us[500] = 1_000;
    browser.open(&html("x", &steps(&lengths_us)), WIDE);
    let (bars, (_, height)) = strip(&mut browser);
    assert_eq!(bars.len(), 334);
    assert_eq!(bars[0].2, "the longest of the steps 1 to 3: 100.0 µs");
    assert_eq!(bars[333].2, "step 1000: 100.0 µs");
    let tall: Vec<&str> = bars
        .iter()
        .filter(|bar| bar.1 > 0.9 * height)
        .map(|bar| &*bar.2)
        .collect();
    assert_eq!(tall, ["the longest of the steps 499 to 501: 1.00 ms"]);
    assert!(
        text(&mut browser, "#all-steps p").starts_with("A bar for the longest of 3 steps each, ")
    );
    // A single step has no other to be compared with.
    browser.open(&html("x", &steps(&[1_000, 1_000])), WIDE);
    assert_eq!(strip(&mut browser).0.len(), 0);
}

#[test]
fn a_narrow_window_needs_no_scrolling_aside() {
    let Some(mut browser) = Browser::start("narrow") else {
        return;
    };
    for name in ["infer_pageable.before", "launch_bound.before"] {
        browser.open(&html(&format!("{name}.json.gz"), &example(name)), NARROW);
        let width = browser.value("document.documentElement.scrollWidth");
        assert!(width.as_u64() <= Some(400), "{name} is {width} wide");
        quiet(&mut browser);
    }
}

#[test]
fn names_of_a_trace_are_only_text() {
    let Some(mut browser) = Browser::start("hostile") else {
        return;
    };
    browser.open(&html(HOSTILE[0], &hostile()), WIDE);
    for point in [
        "#measured .lane.gpu rect[data-d]",
        "#measured .lane.host rect[data-d]",
    ] {
        let point = middle(&mut browser, point);
        browser.mouse(point, true);
    }
    assert_eq!(browser.value("window.taken"), Value::Null);
    let foreign = "document.querySelectorAll('img, iframe, object, link, svg[onload]').length";
    assert_eq!(browser.value(foreign), 0);
    assert_eq!(browser.value("document.scripts.length"), 1);
    assert_eq!(text(&mut browser, "h1"), HOSTILE[0]);
    let kernels = text(&mut browser, "#kernels");
    for name in &HOSTILE[..6] {
        assert!(kernels.contains(name), "{name} in {kernels}");
    }
    assert!(kernels.contains("a\\u{202e}gnp.exe"), "{kernels}");
    assert!(
        browser
            .value("document.getElementById('names').textContent")
            .as_str()
            .is_some_and(|names| HOSTILE[..6].iter().all(|name| names.contains(name)))
    );
    quiet(&mut browser);
}

/// The page's content security policy holds even if text should escape from its place.
#[test]
fn a_browser_runs_no_script_but_the_page_s_own() {
    let Some(mut browser) = Browser::start("rules") else {
        return;
    };
    let page = html("x", &hostile());
    let broken = "<script>window.taken = 1</script><img src='http://taken.example/x' \
                  onerror='window.taken = 2'></footer>";
    let page = page.replacen("</footer>", broken, 1);
    browser.open(&page, WIDE);
    assert_eq!(browser.value("document.images.length"), 1);
    assert_eq!(browser.value("window.taken"), Value::Null);
    assert!(browser.complaints().len() >= 2);
}

#[test]
fn a_page_has_no_unescaped_name() {
    let page = html(HOSTILE[1], &hostile());
    for name in HOSTILE {
        assert!(!page.contains(name), "{name}");
    }
    assert_eq!(page.matches("<script>").count(), 1);
    let drawn = picture(HOSTILE[1], &hostile()).expect("a step");
    for name in HOSTILE {
        assert!(!drawn.contains(name), "{name}");
    }
    let plain = html("x", &example("copy_bound.before"));
    assert!(!plain.contains("http:") && !plain.contains("https:"));
}

#[test]
fn a_page_names_the_step_that_a_gain_refers_to_and_marks_code() {
    let slowed = html("step.json", &example("launch_bound.before"));
    // The gain is in the header, and next to the picture of the change.
    let gain = "× as fast as the 1.80 ms without the profiler";
    assert!(slowed.matches(gain).count() >= 2);
    assert!(slowed.contains("a CUDA graph or <code>torch.compile</code> submits many"));
    // Here the host waits for the device, so the profiler costs nothing.
    let own = html("step.json", &example("copy_bound.before"));
    assert!(own.contains("× as fast</dd>") && !own.contains("without the profiler"));
}

#[test]
fn a_page_without_a_prediction_says_why() {
    let changes = vec!["workers=8".parse().expect("a change")];
    let options = Options {
        what_if: Some(vec![changes]),
        ..Options::default()
    };
    let page = html("step.json", &example_with("loader_starved.after", &options));
    assert!(page.contains("no change can be predicted"));
    assert!(page.contains("None of the changes can be predicted.</p></section>"));
    assert!(!page.contains("more than 3 % off"));
}

#[test]
fn a_page_is_bounded_whatever_the_trace() {
    // Overlapping kernels in many streams, with long distinct names.
    let mut rows = String::new();
    for at in 0..60_000u64 {
        let name = format!("{at}{}", "<&\u{202e}".repeat(300));
        let name = Value::from(name);
        let (ts, dur, stream) = (at * 7 % 1_000_003, 40_000 + at % 100, at % 40);
        let _ = write!(
            rows,
            "{{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":{name},\"pid\":0,\"tid\":{stream},\
             \"ts\":{ts},\"dur\":{dur},\"args\":{{\"device\":{},\"stream\":{stream}}}}},",
            at % 30
        );
    }
    rows.pop();
    let text = format!("{{\"traceEvents\":[{rows}]}}");
    let trace = read_json(text.as_bytes(), &Limits::default()).expect("a trace");
    let page = html("x", &Report::of(trace, &Options::default()));
    assert!((10_000..2_000_000).contains(&page.len()), "{}", page.len());
}

/// Returns the visible names in the first column of a table, in order.
fn first_column(browser: &mut Browser, of: &str) -> Vec<String> {
    let script = format!(
        "[...document.querySelectorAll('{of} tbody tr')].map(row => row.cells[0].innerText.trim())"
    );
    serde_json::from_value(browser.value(&script)).expect("names")
}

#[test]
fn a_reader_zooms_into_any_step_and_sorts_a_table() {
    let Some(mut browser) = Browser::start("zooms") else {
        return;
    };
    let lengths = [1_000, 2_000, 1_000, 4_000, 1_000, 1_000];
    browser.open(&html("x", &steps(&lengths)), WIDE);
    assert_eq!(
        browser.value("document.getElementById('zoom').hidden"),
        true
    );
    // The third bar is of step 3, which is the longest and not the median one.
    let point = middle(&mut browser, "#all-steps [data-step=\"3\"]");
    browser.mouse(point, true);
    let caption = text(&mut browser, "#zoom figcaption");
    assert!(caption.starts_with("Step 3 4.00 ms"), "{caption}");
    let drawn = lanes(&mut browser, "#zoom");
    let widest = drawn[1].1.iter().copied().fold(0.0, f64::max);
    assert_eq!(drawn[1].0, "GPU 0 stream 7");
    // Zoomed in, the kernel is cut off on both sides.
    let point = middle(&mut browser, "#zoom .lane.gpu .plot");
    browser.mouse(point, true);
    let caption = text(&mut browser, "#zoom figcaption");
    assert!(
        caption.starts_with("Step 3 1.50 ms to 2.50 ms of 4.00 ms"),
        "{caption}"
    );
    let nearer = lanes(&mut browser, "#zoom");
    assert!(nearer[1].1[0] > 3.5 * widest, "{nearer:?} {widest}");
    // The tooltip names the span under the mouse, and a click on `.whole` shows the whole step again.
    let point = middle(&mut browser, "#zoom .lane.gpu .plot");
    browser.mouse(point, false);
    let tip = text(&mut browser, "#tip");
    assert!(
        tip.starts_with('k') && tip.contains("kernel, 3.99 ms"),
        "{tip}"
    );
    let point = middle(&mut browser, "#zoom .whole");
    browser.mouse(point, true);
    assert!(text(&mut browser, "#zoom figcaption").starts_with("Step 3 4.00 ms"));
    quiet(&mut browser);

    browser.open(&html("x", &example("starved_hard.before")), WIDE);
    let sorted_by = |browser: &mut Browser, table: &str, column: usize| {
        let point = middle(browser, &format!("{table} th:nth-child({column})"));
        browser.mouse(point, true);
        first_column(browser, table)
    };
    let by_device = first_column(&mut browser, "#operators");
    let by_name = sorted_by(&mut browser, "#operators", 1);
    let mut expected = by_device.clone();
    expected.sort_unstable_by(|a, b| b.cmp(a));
    assert_ne!(by_device, by_name);
    assert_eq!(by_name, expected);
    let again = sorted_by(&mut browser, "#operators", 1);
    assert!(again.iter().eq(expected.iter().rev()), "{again:?}");
    // Inner ranges stay below the outer one.
    let by_idle = sorted_by(&mut browser, "#ranges", 6);
    assert_eq!(by_idle[..2], ["ProfilerStep*", "load_batch"]);
    quiet(&mut browser);
}
