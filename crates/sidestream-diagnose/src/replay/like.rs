//! Selects the steps to replay in a trace with too many steps: consecutive ones that are representative of all.

use std::collections::BTreeMap;

use super::{LEAST_STEPS, Source, taking};
use crate::idle::{Cause, Stretch};
use crate::measure::{Spans, Steps, add};

/// The number of places in the run that are tried, apart from its beginning.
const PLACES: usize = 12;
/// Steps are not representative if their idle time differs from that of all steps by more than this part of a step, summed over
/// its causes: a change must gain as much.
const UNLIKE: f64 = 0.05;
/// Steps that make up less than this part of the trace do not represent it.
const LEAST_PART: f64 = 0.05;

/// Returns the first of the steps to replay.
///
/// # Errors
/// Why no steps represent the trace.
pub fn first(source: &Source) -> Result<usize, &'static str> {
    let steps = source.steps;
    let longest = source.devices.iter().max_by_key(|device| device.span_ns);
    if let Some(device) = longest {
        let (all, _) = steps.all(device);
        if (all.total_ns() as f64) < LEAST_PART * device.span_ns as f64 {
            return Err("the steps are less than 5 % of the trace");
        }
    }
    let count = steps.steps.len();
    let taken = taking::enough(source.trace, source.links, steps, 0).max(LEAST_STEPS);
    let Some(last) = count.checked_sub(taken).filter(|last| *last > 0) else {
        return Ok(0);
    };
    let all = parts(source, None);
    let mut places: Vec<usize> = (0..=PLACES).map(|at| at * last / PLACES).collect();
    places.dedup();
    let unlike = places.into_iter().map(|first| {
        let some = parts(source, Some((first, taken)));
        let causes = all
            .keys()
            .chain(some.keys().filter(|cause| !all.contains_key(cause)));
        let part = |of: &Parts, cause| of.get(cause).copied().unwrap_or(0.0);
        let apart: f64 = causes
            .map(|cause| (part(&all, cause) - part(&some, cause)).abs())
            .sum();
        (apart, first)
    });
    let least = unlike.min_by(|a, b| a.0.total_cmp(&b.0));
    match least {
        Some((apart, first)) if apart <= UNLIKE => Ok(first),
        _ => Err(
            "the causes of idle time change over the trace, so no part of it that is short enough to replay represents the whole",
        ),
    }
}

/// The idle time by cause, as parts of the time of the steps; and the host's own work.
type Parts = BTreeMap<Option<Cause>, f64>;

/// Returns the parts of all steps, or of some.
fn parts(source: &Source, of: Option<(usize, usize)>) -> Parts {
    let mut sums: BTreeMap<Option<Cause>, u64> = BTreeMap::new();
    let mut add = |cause, ns: u64| {
        add(sums.entry(cause).or_default(), ns);
    };
    let mut whole_ns = 0u64;
    for (at, (device, idle)) in source.devices.iter().zip(source.idles).enumerate() {
        let time = match of {
            None => source.steps.all(device).0,
            Some((first, count)) => {
                let steps = source.steps.steps[first..].iter().take(count).copied();
                let some = Steps {
                    by: source.steps.by,
                    steps: steps.collect(),
                };
                some.all(device).0
            }
        };
        whole_ns = whole_ns.saturating_add(time.total_ns());
        match (of, time.iter().next(), time.iter().last()) {
            (Some(_), Some(begin), Some(end)) => {
                let stretches = source.scene.stretches(device, (begin.0, end.1));
                for (cause, stretch) in stretches {
                    add(Some(cause), shared_ns(&time, &stretch));
                }
            }
            _ => idle
                .in_steps
                .iter()
                .for_each(|(cause, ns)| add(Some(*cause), *ns)),
        }
        if at == 0 {
            let own = source.scene.main_own(&time).into_iter();
            add(None, own.map(|(ns, _)| ns).fold(0, u64::saturating_add));
        }
    }
    let part = |(cause, ns): (Option<Cause>, u64)| (cause, ns as f64 / whole_ns.max(1) as f64);
    sums.into_iter().map(part).collect()
}

fn shared_ns(time: &Spans, stretch: &Stretch) -> u64 {
    let length = i64::try_from(stretch.duration_ns).unwrap_or(i64::MAX);
    time.within_ns(stretch.start_ns, stretch.start_ns.saturating_add(length))
}
