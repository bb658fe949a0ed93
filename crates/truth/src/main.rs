//! `cargo xtask truth N SEED [--show]`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use truth::{Job, Truth, judged, many};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (numbers, is_shown) = match args[..] {
        [n, seed] => ([n, seed], false),
        [n, seed, "--show"] => ([n, seed], true),
        _ => return refuse("takes how many jobs, the first seed, and perhaps --show"),
    };
    let [Ok(count), Ok(seed)] = numbers.map(str::parse::<u64>) else {
        return refuse("takes two whole numbers: how many jobs, and the first seed");
    };
    if is_shown {
        let shown = (seed..seed.saturating_add(count)).try_for_each(show);
        return match shown {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => refuse(&why),
        };
    }
    match many(count, seed) {
        // Whoever reads only the first lines has what they want.
        Ok(tally) => _ = write!(io::stdout(), "{tally}"),
        Err(why) => return refuse(&why),
    }
    ExitCode::SUCCESS
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("truth: {why}");
    ExitCode::from(2)
}

/// Shows one job, and writes its trace.
fn show(seed: u64) -> Result<(), String> {
    let job = Job::drawn(seed);
    let truth = Truth::of(&job);
    let (judged, json) = judged(seed)?;
    let path = format!("target/truth-{seed}.json");
    std::fs::write(&path, json).map_err(|why| format!("cannot write {path}: {why}"))?;
    let percent = |ns: f64| format!("{:.1} %", 100.0 * ns / truth.step_ns);
    println!(
        "seed {seed}: a step takes {:.1} us, with the profiler {:.1}",
        truth.step_ns / 1e3,
        judged.said.step_ns / 1e3
    );
    for (fault, (cause, ns)) in job.faults.iter().zip(&truth.gains) {
        println!("  {:<20} {:>8}  {fault:?}", cause.as_str(), percent(*ns));
    }
    println!("  {:<20} {:>8}", "all of them", percent(truth.all_ns));
    println!("  {:<20} {:>8}", "(graphs)", percent(truth.graphs_ns));
    let said = &judged.said;
    let (low, likely, high) = said.saving_ns;
    println!(
        "said: {}, worth {} to {}, likely {}; the best change {:.1} %",
        said.code.unwrap_or("nothing to gain"),
        percent(low),
        percent(high),
        percent(likely),
        100.0 * said.most
    );
    println!(
        "right: {}, said first: {}, range and width: {:?}",
        judged.right.map_or("nothing", |cause| cause.as_str()),
        judged
            .is_right
            .map_or("nothing to say", |is| if is { "yes" } else { "no" }),
        judged.range
    );
    println!("in its words: {}", said.words);
    println!("trace: {path}");
    Ok(())
}
