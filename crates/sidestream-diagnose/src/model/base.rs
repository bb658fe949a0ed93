//! The time of a step without the profiler, on which predictions are based.

use serde::Serialize;

/// A greater drift makes the measurement a range.
const DRIFTS: f64 = 0.05;

/// The source of the time of a step without the profiler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Base {
    /// Estimated from the trace alone, by the number of calls that the profiler recorded.
    #[default]
    Estimated,
    /// Measured before the profiler started, and written into the trace.
    Measured(Unprofiled),
}

/// Times of windows of steps, measured before the profiler started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Unprofiled {
    /// Median time of a step over the windows.
    pub median_ns: u64,
    /// Mean time of a step over the windows.
    pub mean_ns: u64,
    /// First and third quartile of the windows.
    pub quartiles_ns: (u64, u64),
    /// The upper bound of the measurement error: a step may have been measured this much too long, since the host waited for
    /// the devices at the edges of the windows.
    pub edge_ns: u64,
    /// How much longer a step was in the second half of the windows, relative to the median.
    pub drift: f64,
    /// Whether two consecutive windows agreed before the first one was taken.
    pub agreed: bool,
    /// Number of steps in a window.
    pub window_steps: u32,
    /// Number of windows before the first that was taken.
    pub dropped: u32,
    /// Number of windows that were taken.
    pub taken: u32,
    /// Whether a profiler had run in the program before.
    pub after_profiler: bool,
}

impl Base {
    /// Returns the measurement made before the profiler started, if there is one.
    pub fn measured(&self) -> Option<&Unprofiled> {
        match self {
            Base::Measured(unprofiled) => Some(unprofiled),
            Base::Estimated => None,
        }
    }
}

impl Unprofiled {
    /// Returns whether steps became longer or shorter during the measurement, by so much that a single number does not describe
    /// them.
    pub fn drifts(&self) -> bool {
        self.drift.abs() > DRIFTS
    }

    /// Returns the least and the most time that a step takes.
    pub fn between_ns(&self) -> (u64, u64) {
        let (first, third) = self.quartiles_ns;
        // Some windows may have one slow step more than others, which no median shows.
        let mut low = first.saturating_sub(self.edge_ns).min(self.mean_ns);
        let mut high = third.max(self.mean_ns);
        if self.drifts() {
            // The drift occurred during the measurement, and may continue.
            let off_ns = (self.median_ns as f64 * self.drift.abs()) as u64;
            low = low.min(self.median_ns.saturating_sub(off_ns));
            high = high.max(self.median_ns.saturating_add(off_ns));
        }
        (low.max(1), high)
    }
}
