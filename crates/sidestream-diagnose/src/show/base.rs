//! Describes the measured time of a step without the profiler.

use crate::findings::time;
use crate::model::Unprofiled;

/// Returns the measurement, and doubts about it, in words.
pub fn measured(unprofiled: &Unprofiled) -> String {
    let (first, third) = unprofiled.quartiles_ns;
    let (windows, steps) = (unprofiled.taken, unprofiled.window_steps);
    let s = |count: u32| if count == 1 { "" } else { "s" };
    let mut text = format!(
        "measured without the profiler: median {}, quartiles {} and {} ({windows} window{} of {steps} step{})",
        time(unprofiled.median_ns),
        time(first),
        time(third),
        s(windows),
        s(steps)
    );
    if unprofiled.drifts() {
        let (low, high) = unprofiled.between_ns();
        let percent = 100.0 * unprofiled.drift.abs();
        let word = if unprofiled.drift > 0.0 {
            "longer"
        } else {
            "shorter"
        };
        text.push_str(&format!(
            "; it became {percent:.1} % {word} meanwhile, and is taken as a range, from {} to {}",
            time(low),
            time(high)
        ));
    }
    if !unprofiled.agreed {
        text.push_str(
            "; no two windows in a row were within 3 % of each other before they were taken",
        );
    }
    if unprofiled.after_profiler {
        text.push_str("; a profiler had run in the program before, which may have left something that takes time");
    }
    text
}
