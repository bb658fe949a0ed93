//! Finds what exchanges cost the kernels beside them: an exchange holds multiprocessors, also while it only waits for another
//! rank.

use std::collections::HashMap;

use super::Row;
use crate::measure::{Class, Collectives, Spans, Steps, class, quantile};
use crate::model::{Kernel, Name, Trace, What};

/// Adds to each exchange how much longer the kernels beside it took than the same kernels take without one: by the median of
/// those in the same place of a step, or of all with the same name and launch, if they are alike. Other kernels stay.
pub fn add_slowed(trace: &Trace, steps: &Steps, collectives: &Collectives, rows: &mut [Row]) {
    // Also beside those that have no row.
    let mut held = Spans::default();
    let all = trace.work.iter();
    all.filter(|work| class(work, collectives) == Some(Class::Collective))
        .for_each(|work| held.push(work.start_ns, work.end_ns()));
    let mut alone: HashMap<(Name, Kernel, Option<u32>), Vec<u64>> = HashMap::new();
    let mut beside = Vec::new();
    let mut places: HashMap<(Name, Kernel), (Option<usize>, u32)> = HashMap::new();
    for work in trace.work.iter().filter(|_| !rows.is_empty()) {
        let What::Kernel(kernel) = work.what else {
            continue;
        };
        if class(work, collectives) != Some(Class::Compute) {
            continue;
        }
        let step = steps.on_device(work.start_ns);
        let of_kernel = places.entry((work.name, kernel)).or_default();
        *of_kernel = (
            step,
            if of_kernel.0 == step {
                of_kernel.1 + 1
            } else {
                0
            },
        );
        let place = Some(of_kernel.1);
        if held.within_ns(work.start_ns, work.end_ns()) > 0 {
            beside.push((work, kernel, place));
        } else if held
            .iter()
            .next()
            .is_some_and(|(first, _)| first < work.start_ns)
        {
            // Before the first one, an exchange may run that began before the trace.
            for place in [place, None] {
                let of_place = alone.entry((work.name, kernel, place)).or_default();
                of_place.push(work.duration_ns);
            }
        }
    }
    // Kernels of one name and launch may still do unlike work: of those that differ, only the same place of a step is alike.
    let median = |(key, times): ((Name, Kernel, Option<u32>), Vec<u64>)| {
        let of = |part| quantile(&times, part, 10);
        (key.2.is_some() || of(9)? <= of(1)? + of(1)? / 10).then_some((key, of(5)?))
    };
    let medians: HashMap<_, _> = alone.into_iter().filter_map(median).collect();
    let mut more_ns = vec![0.0; rows.len()];
    for (work, kernel, place) in beside {
        let of_place = |place| medians.get(&(work.name, kernel, place));
        let Some(alone_ns) = of_place(place).or_else(|| of_place(None)) else {
            continue;
        };
        let covered = |at: &usize| {
            let (from, to) = (rows[*at].start_ns, rows[*at].end_ns());
            to.min(work.end_ns())
                .saturating_sub(from.max(work.start_ns))
        };
        // The exchanges of other groups may run at the same time.
        let before = rows.partition_point(|row| row.start_ns < work.end_ns());
        if let Some(at) = (before.saturating_sub(8)..before).max_by_key(covered) {
            more_ns[at] += work.duration_ns as f64 - *alone_ns as f64;
        }
    }
    for (row, more_ns) in rows.iter_mut().zip(more_ns) {
        row.slowed_ns = f64::max(more_ns, 0.0) as f32;
    }
}
