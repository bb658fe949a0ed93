//! The ranks of one run, for people.

use std::fmt::{Result, Write};

use super::text::plain;
use crate::findings::time;
use crate::ranks::Ranks;

/// How many ranks are named in a sentence.
const NAMED: usize = 8;
/// Causes that take less of a step than this are not listed.
const SHOWN: f64 = 0.01;

/// What the ranks of one run say together, for a terminal.
pub fn ranks_text(ranks: &Ranks) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut out, ranks);
    out
}

fn write(out: &mut String, ranks: &Ranks) -> Result {
    let world = ranks.world.map_or(String::new(), |w| format!(" of {w}"));
    writeln!(out, "{} ranks{world} together", ranks.ranks.len())?;
    for warning in &ranks.warnings {
        writeln!(out, "first:  {}", plain(warning))?;
    }
    writeln!(
        out,
        "  {:>5} {:>11} {:>11} {:>11} {:>13} {:>11} {:>11}",
        "rank", "step", "busy", "idle", "communication", "exposed", "waits"
    )?;
    for (at, rank) in ranks.ranks.iter().enumerate() {
        let step = &rank.per_step;
        let number = rank.rank.map_or(String::new(), |rank| rank.to_string());
        writeln!(
            out,
            "  {number:>5} {:>11} {:>11} {:>11} {:>13} {:>11} {:>11}",
            time(step.time_ns),
            time(step.busy_ns),
            time(step.idle_ns),
            time(step.communication_ns),
            time(step.exposed_communication_ns),
            time(ranks.waits_ns(at))
        )?;
    }
    let number = |at: usize| ranks.ranks[at].rank.unwrap_or(0);
    writeln!(
        out,
        "slowest: rank {}, {} a step; the steps of the ranks are {:.1} % apart",
        number(ranks.slowest),
        time(ranks.ranks[ranks.slowest].per_step.time_ns),
        100.0 * ranks.spread
    )?;
    if let (Some(straggler), Some(most)) = (ranks.straggler, ranks.waiting.first()) {
        let named: Vec<String> = ranks
            .waiting
            .iter()
            .take(NAMED)
            .map(|at| number(*at).to_string())
            .collect();
        let rest = match ranks.waiting.len().saturating_sub(NAMED) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        writeln!(
            out,
            "late:    rank {} is the shortest in collectives: rank {}{rest} waited for it there, up to {} a \
             step, if all of them take part in the same ones",
            number(straggler),
            named.join(", "),
            time(ranks.waits_ns(*most))
        )?;
    }
    for (cause, ns, most) in ranks.idle() {
        let rank = &ranks.ranks[most];
        if ns as f64 >= SHOWN * rank.per_step.time_ns as f64 {
            writeln!(
                out,
                "idle:    {} {} a step in the mean of the ranks, most on rank {} ({})",
                cause.as_str(),
                time(ns),
                number(most),
                time(rank.idle.get(&cause).copied().unwrap_or(0))
            )?;
        }
    }
    writeln!(out)
}
