//! The ranks of one run, for people: at most a screen.

use std::cmp::Reverse;
use std::fmt::{Result, Write};

use super::plain::{plain, written};
use crate::digest::Part;
use crate::findings::time;
use crate::ranks::{Groups, Ranks, Search, Slow};
use crate::sort::order_by;

/// The maximum number of ranks that are named in a sentence, and the maximum number with a line.
const NAMED: usize = 8;
const LISTED: usize = 8;
/// The maximum numbers of kinds of groups, of exchanges, of causes and of warnings that are listed.
const GROUPS: usize = 5;
const WORST: usize = 3;
const CAUSES: usize = 3;
const WARNINGS: usize = 6;
/// What takes less of a step than this is not listed.
const SHOWN: f64 = 0.01;

/// Returns the report on the ranks of one run together, for a terminal.
pub fn ranks_text(ranks: &Ranks) -> String {
    written(|out| write(out, ranks))
}

fn write(out: &mut String, ranks: &Ranks) -> Result {
    let world = ranks.world.map_or(String::new(), |w| format!(" of {w}"));
    let clocks = match ranks.clock_error_ns {
        Some(ns) => format!(", clocks aligned to {}", time(ns)),
        None => String::new(),
    };
    writeln!(out, "{} ranks{world} together{clocks}", ranks.ranks.len())?;
    for warning in ranks.warnings.iter().take(WARNINGS) {
        writeln!(out, "first:  {}", plain(warning))?;
    }
    let more = ranks.warnings.len().saturating_sub(WARNINGS);
    if more > 0 {
        writeln!(out, "first:  {more} more, in --json")?;
    }
    for line in verdict(ranks) {
        writeln!(out, "{}", plain(&line))?;
    }
    table(out, ranks)?;
    writeln!(
        out,
        "slowest: rank {}, {} a step; the steps of the ranks are {:.1} % apart",
        ranks.number(ranks.slowest),
        time(ranks.ranks[ranks.slowest].per_step.time_ns),
        100.0 * ranks.spread
    )?;
    for groups in ranks.groups.iter().take(GROUPS) {
        writeln!(out, "waits:   {}", plain(&group_line(ranks, groups)))?;
    }
    if let Some(line) = pipeline(ranks) {
        writeln!(out, "bubbles: {line}")?;
    }
    for (worst, group) in ranks.worst.iter().take(WORST) {
        let seq = worst
            .seq
            .map_or(String::new(), |seq| format!(" number {seq}"));
        let line = format!(
            "{}{seq} of {group}, {} after the first exchange: rank {} came last, rank {} had waited {}",
            worst.operation,
            time(worst.offset_ns),
            ranks.number(worst.last),
            ranks.number(worst.waited.0),
            time(worst.waited.1)
        );
        writeln!(out, "longest: {}", plain(&line))?;
    }
    for (cause, ns, most) in ranks.idle().into_iter().take(CAUSES) {
        let rank = &ranks.ranks[most];
        if ns as f64 >= SHOWN * rank.per_step.time_ns as f64 {
            writeln!(
                out,
                "idle:    {} {} a step in the mean of the ranks, most on rank {} ({})",
                cause.as_str(),
                time(ns),
                ranks.number(most),
                time(rank.idle.get(&cause).copied().unwrap_or(0))
            )?;
        }
    }
    writeln!(out)
}

/// Returns which rank is slow, and why; also used by the page.
pub fn verdict(ranks: &Ranks) -> Vec<String> {
    match &ranks.search {
        Search::Found(slow) => {
            let mut lines = vec![slow_line(slow, ranks.number(slow.at))];
            let (step, predicted) = slow.step_ns;
            lines.push(format!(
                "what if: were it as fast as their median, a step would take {} instead of {}, {:.1} % less, by a replay of all ranks",
                time(predicted),
                time(step),
                100.0 * step.saturating_sub(predicted) as f64 / step.max(1) as f64
            ));
            if slow.slowed_ns as f64 >= SHOWN * step as f64 {
                lines.push(format!(
                    "         kernels beside exchanges that waited took {} a step longer than without one, which goes too",
                    time(slow.slowed_ns)
                ));
            }
            if !ranks.waiting.is_empty() {
                lines.push(waiting_line(ranks));
            }
            lines
        }
        Search::Nobody => {
            let mut lines = vec![
                "slow:    no single rank: none of the ranks with the most own work, or waited for longest, shortens a step by \
                 2 % when made as fast as the median, or differs from it by more than from step to step"
                    .to_owned(),
            ];
            if !ranks.waiting.is_empty() {
                lines.push(waiting_line(ranks));
            }
            lines
        }
        Search::Unknown(why) => vec![format!("slow:    not known: {why}")],
    }
}

fn slow_line(slow: &Slow, number: u32) -> String {
    let others = match (slow.compared, slow.is_alike) {
        (1, true) => "than the other rank that exchanges the same".to_owned(),
        (1, false) => "than the other rank, which exchanges something else".to_owned(),
        (count, true) => format!("than the median of {count} ranks that exchange the same"),
        (count, false) => {
            format!("than the median of {count} other ranks; none exchanges the same")
        }
    };
    let cause = match slow.cause {
        Part::Compute => "kernels that compute",
        Part::Copies => "copies, and waits for them",
        Part::Loader => "waits for its loader",
        Part::Host => "waits for its host",
        Part::Other => "idle time of no known cause",
    };
    let name = slow
        .name
        .as_ref()
        .map_or(String::new(), |name| format!(" (`{name}`)"));
    // The parts of a step are compared individually, so one of them may differ by more than all together.
    let why = match slow.cause_ns {
        0 => "no part of its step stands out".to_owned(),
        ns if ns > slow.excess_ns => {
            let more = time(ns);
            format!("it has {more} more of one part, {cause}{name}, and less of others")
        }
        ns if 2 * ns > slow.excess_ns => {
            format!("most of that is {cause}{name}: {} more", time(ns))
        }
        ns => format!(
            "the largest part of that is {cause}{name}: {} more",
            time(ns)
        ),
    };
    format!(
        "slow:    rank {number}: its own work in a step takes {} longer {others}; {why}",
        time(slow.excess_ns)
    )
}

fn waiting_line(ranks: &Ranks) -> String {
    let named: Vec<String> = ranks
        .waiting
        .iter()
        .take(NAMED)
        .map(|at| ranks.number(*at).to_string())
        .collect();
    let rest = match ranks.waiting.len().saturating_sub(NAMED) {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    let most = ranks.waiting.first().map_or(0, |at| ranks.waits_ns[*at]);
    format!(
        "waiting: rank {}{rest}, up to {} a step in exchanges of data",
        named.join(", "),
        time(most)
    )
}

/// Returns the ranks that matter most: the slow one, those that were waited for, those that waited, the one with the longest
/// step.
pub fn chosen(ranks: &Ranks, count: usize) -> Vec<usize> {
    if ranks.ranks.len() <= count {
        return (0..ranks.ranks.len()).collect();
    }
    let mut chosen: Vec<usize> = ranks.slow().map(|slow| slow.at).into_iter().collect();
    chosen.push(ranks.slowest);
    let order = |of: &[u64]| {
        let mut order: Vec<usize> = (0..of.len()).collect();
        order_by(&mut order, |at| (Reverse(of[*at]), *at));
        order
    };
    for (late, waits) in order(&ranks.late_ns)
        .into_iter()
        .zip(order(&ranks.waits_ns))
    {
        for at in [late, waits] {
            if !chosen.contains(&at) && chosen.len() < count {
                chosen.push(at);
            }
        }
        if chosen.len() >= count {
            break;
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

fn table(out: &mut String, ranks: &Ranks) -> Result {
    writeln!(
        out,
        "  {:>5} {:>11} {:>11} {:>11} {:>13} {:>11} {:>11} {:>11}",
        "rank", "step", "busy", "idle", "communication", "exposed", "waits", "waited for"
    )?;
    let chosen = chosen(ranks, LISTED);
    for at in &chosen {
        let rank = &ranks.ranks[*at];
        let step = &rank.per_step;
        let number = rank.rank.map_or(String::new(), |rank| rank.to_string());
        writeln!(
            out,
            "  {number:>5} {:>11} {:>11} {:>11} {:>13} {:>11} {:>11} {:>11}",
            time(step.time_ns),
            time(step.busy_ns),
            time(step.idle_ns),
            time(step.communication_ns),
            time(step.exposed_communication_ns),
            time(ranks.waits_ns[*at]),
            time(ranks.late_ns[*at])
        )?;
    }
    let more = ranks.ranks.len() - chosen.len();
    if more > 0 {
        writeln!(
            out,
            "  and {more} ranks that wait less and are waited for less"
        )?;
    }
    Ok(())
}

/// Returns the waits in groups of one kind; also used by the page.
pub fn group_line(ranks: &Ranks, groups: &Groups) -> String {
    let size = groups
        .size
        .map_or(String::new(), |size| format!(" of {size}"));
    let count = match groups.count {
        1 => format!("one group{size}"),
        count => format!("{count} groups{size}"),
    };
    let by = if groups.is_numbered {
        "number"
    } else {
        "order"
    };
    format!(
        "{}: {count}, {} exchanges joined by {by}; a rank waits {} a step in the mean, rank {} {}; rank {} is waited for most, {}",
        groups.name,
        groups.exchanges,
        time(groups.waits_ns),
        ranks.number(groups.most.0),
        time(groups.most.1),
        ranks.number(groups.last.0),
        time(groups.last.1)
    )
}

/// Returns how long pipeline stages wait for each other; also used by the page.
pub fn pipeline(ranks: &Ranks) -> Option<String> {
    let stages: Vec<usize> = (0..ranks.ranks.len())
        .filter(|at| ranks.pairs_ns[*at] > 0)
        .collect();
    let most = stages
        .iter()
        .copied()
        .max_by_key(|at| ranks.pairs_ns[*at])?;
    let share = |at: usize| {
        100.0 * ranks.pairs_ns[at] as f64 / (ranks.ranks[at].per_step.time_ns as f64).max(1.0)
    };
    let mean = stages.iter().map(|at| share(*at)).sum::<f64>() / stages.len() as f64;
    Some(format!(
        "{} ranks wait in sends and receives, {mean:.1} % of a step in the mean, rank {} {:.1} %",
        stages.len(),
        ranks.number(most),
        share(most)
    ))
}
