//! `cargo xtask truth [--ranks] N SEED [--show]`, and `cargo xtask truth --rank-traces FOLDER RANKS STEPS`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use truth::{Job, RankJob, RankRun, Truth, judged, judged_ranks, many, many_ranks, rank_trace};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (numbers, is_shown) = match args[..] {
        ["--rank-traces", folder, ranks, steps] => return traces(folder, ranks, steps),
        ["--ranks", n, seed] => return ranks(n, seed, false),
        ["--ranks", n, seed, "--show"] => return ranks(n, seed, true),
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

/// Judges runs of many ranks. Something that is wrong is a failure: there are few of these.
fn ranks(count: &str, seed: &str, is_shown: bool) -> ExitCode {
    let (Ok(count), Ok(seed)) = (count.parse::<u64>(), seed.parse::<u64>()) else {
        return refuse("--ranks takes two whole numbers: how many runs, and the first seed");
    };
    if is_shown {
        for seed in seed..seed.saturating_add(count) {
            let one = match judged_ranks(seed) {
                Ok(one) => one,
                Err(why) => return refuse(&why),
            };
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
        }
        return ExitCode::SUCCESS;
    }
    match many_ranks(count, seed) {
        Ok(tally) => {
            _ = write!(io::stdout(), "{tally}");
            match tally.wrong()[..] {
                [] => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Err(why) => refuse(&why),
    }
}

/// Writes the traces of one long run, to measure with.
fn traces(folder: &str, ranks: &str, steps: &str) -> ExitCode {
    let (Ok(ranks), Ok(steps @ 2..)) = (ranks.parse::<usize>(), steps.parse::<usize>()) else {
        return refuse(
            "--rank-traces takes a folder, how many ranks, and how many steps, from 2 on",
        );
    };
    let job = RankJob {
        shape: (4, 2, ranks.div_ceil(8).max(1)),
        steps,
        ..RankJob::drawn(1)
    };
    let job = RankJob {
        stages: vec![1.0; 2],
        micro: 4,
        slow: 3,
        ..job
    };
    let run = RankRun::of(&job);
    for rank in 0..job.world() {
        let path = std::path::Path::new(folder).join(format!("rank{rank}.json"));
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, rank_trace(&job, &run, rank)));
        if let Err(why) = written {
            return refuse(&format!("cannot write {}: {why}", path.display()));
        }
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
