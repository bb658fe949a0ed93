//! Temporary.
use sidestream_diagnose::{Limits, Options, Report, read, text};

#[test]
fn print_all() {
    let Ok(list) = std::fs::read_to_string("/tmp/list.txt") else { return };
    for line in list.lines() {
        let path = std::path::Path::new(line);
        let begun = std::time::Instant::now();
        let trace = match read(path, &Limits::default(), &mut |_, _| {}) {
            Ok(trace) => trace,
            Err(e) => { println!("{line}: {e}"); continue; }
        };
        let report = Report::of(trace, &Options::default());
        println!("=== {line} {:?}", begun.elapsed());
        println!("{}", text(line, &report, 80));
        for one in &report.judged {
            println!("  judged {} {} on {:?}: {:?}", one.code.as_str(), sidestream_diagnose::Change::names(&one.changes), one.on_top_of, one.gain_ns);
        }
    }
}
