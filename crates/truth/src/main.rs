//! `cargo xtask truth [--ranks] N SEED [--show]`, and `cargo xtask truth --rank-traces FOLDER RANKS STEPS`.

use std::io::{self, Write as _};
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use truth::{Job, RankJob, RankRun, Truth, judged, judged_ranks, many, many_ranks, rank_trace};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["--rank-traces", folder, ranks, steps] => traces(Path::new(folder), ranks, steps),
        ["--ranks", n, seed] => ranks(n, seed),
        ["--ranks", n, seed, "--show"] => seeds(n, seed, "--ranks ", "runs")
            .and_then(|mut seeds| seeds.try_for_each(show_ranks))
            .map(|()| true),
        [n, seed] => jobs(n, seed),
        [n, seed, "--show"] => seeds(n, seed, "", "jobs")
            .and_then(|mut seeds| seeds.try_for_each(show))
            .map(|()| true),
        _ => Err("takes the number of jobs, the first seed, and optionally --show".into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("truth: {why}");
            ExitCode::from(2)
        }
    }
}

fn seeds(count: &str, seed: &str, option: &str, what: &str) -> Result<Range<u64>, String> {
    let (Ok(count), Ok(seed)) = (count.parse::<u64>(), seed.parse::<u64>()) else {
        return Err(format!(
            "{option}takes two whole numbers: the number of {what}, and the first seed"
        ));
    };
    Ok(seed..seed.saturating_add(count))
}

fn jobs(count: &str, seed: &str) -> Result<bool, String> {
    let seeds = seeds(count, seed, "", "jobs")?;
    let tally = many(seeds.end - seeds.start, seeds.start)?;
    // A reader that closes the output early needs only the first lines.
    _ = write!(io::stdout(), "{tally}");
    Ok(true)
}

/// Judges runs of many ranks. Any wrong result is a failure, since there are few runs.
fn ranks(count: &str, seed: &str) -> Result<bool, String> {
    let seeds = seeds(count, seed, "--ranks ", "runs")?;
    let tally = many_ranks(seeds.end - seeds.start, seeds.start)?;
    _ = write!(io::stdout(), "{tally}");
    Ok(tally.wrong().is_empty())
}

fn show_ranks(seed: u64) -> Result<(), String> {
    let one = judged_ranks(seed)?;
    println!(
        "seed {seed}: {:?}\n  costs {:.1} %, said {:?}, right {:?}, waits {:.2} % off, predicted {:?} off\n{}",
        one.job,
        100.0 * one.costs,
        one.said,
        one.is_right,
        100.0 * one.waits_off,
        one.predicted_off,
        one.words
    );
    Ok(())
}

/// Writes the traces of one long run, for measurements.
fn traces(folder: &Path, ranks: &str, steps: &str) -> Result<bool, String> {
    let (Ok(ranks), Ok(steps @ 2..)) = (ranks.parse::<usize>(), steps.parse::<usize>()) else {
        return Err(
            "--rank-traces takes a folder, the number of ranks, and the number of steps, both at least 2".into(),
        );
    };
    let job = RankJob {
        shape: (4, 2, ranks.div_ceil(8).max(1)),
        steps,
        stages: vec![1.0; 2],
        micro: 4,
        slow: 3,
        ..RankJob::drawn(1)
    };
    let run = RankRun::of(&job);
    for rank in 0..job.world() {
        let path = folder.join(format!("rank{rank}.json"));
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, rank_trace(&job, &run, rank)))
            .map_err(|why| format!("cannot write {}: {why}", path.display()))?;
    }
    Ok(true)
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
        println!("  {cause:<20} {:>8}  {fault:?}", percent(*ns));
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
        judged.right.unwrap_or("nothing"),
        judged
            .is_right
            .map_or("nothing to say", |is| if is { "yes" } else { "no" }),
        judged.range
    );
    println!("in its words: {}", said.words);
    println!("trace: {path}");
    Ok(())
}
