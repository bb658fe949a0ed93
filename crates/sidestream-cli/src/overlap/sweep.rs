//! Compares the job at several batch sizes, one per line.

use serde_json::{Value, json};
use sidestream::engine::Profile;

use super::shown::time;
use super::{Args, measured, simulated, size};
use crate::device::Named;
use crate::failure::Failure;
use crate::width::Lines;

/// The maximum number of sizes that are compared.
const MOST: usize = 64;

/// Returns what `overlap` reports at each size, as JSON and as text.
pub fn compared(args: &Args, lines: Lines) -> Result<(Value, String), Failure> {
    if args.sweep.len() > MOST {
        return Err(Failure::input(format!(
            "--sweep has {} sizes; give {MOST} at most",
            args.sweep.len()
        )));
    }
    let named = args.named()?;
    let (mut rows, mut table, mut title) = (Vec::new(), String::new(), String::new());
    for &batch in &args.sweep {
        let args = &Args {
            batch,
            sweep: Vec::new(),
            ..args.clone()
        };
        let compared = match &named {
            Named::Simulated(profile) => {
                simulated(args, args.job_on(profile)?, Profile::clone(profile))?
            }
            Named::Cuda(number) => measured(args, *number)?,
        };
        let best = &compared.rows[compared.verdict.best];
        let one_ns = compared.rows[0].time_ns;
        let times = one_ns as f64 / best.time_ns as f64;
        let copies = 100.0 * compared.limit.copies_share();
        table += &format!(
            "  {:>8} {:>12} {:>12} {times:>9.2} {copies:>8.1} %\n",
            size::show(batch),
            time(one_ns),
            time(best.time_ns)
        );
        table += &format!("           {}\n", compared.verdict.text);
        title.clone_from(&compared.device_name);
        rows.push(compared.as_json(args, None));
    }
    let simulated = matches!(named, Named::Simulated(_));
    let head = format!(
        "{} batches a size, work {}, on {}{title}\n\n  {:>8} {:>12} {:>12} {:>9} {:>10}\n",
        args.count,
        args.work,
        if simulated { "a simulated " } else { "" },
        "batch",
        "1 stream",
        "best",
        "times",
        "copies"
    );
    let json = json!({"schema": "sidestream.overlap.sweep/1", "device": args.device,
                      "device_name": title, "simulated": simulated, "sizes": rows});
    Ok((json, lines.wrapped(&(head + &table))))
}
