//! What a step takes without the profiler: what predictions start from.

use serde::Serialize;

/// Beyond this, a drift counts.
const DRIFTS: f64 = 0.05;

/// Where it is known from what a step takes without the profiler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Base {
    /// From the trace alone, by how many calls the profiler noted.
    #[default]
    Estimated,
    /// It was timed before the profiler started, and written into the trace.
    Measured(Unprofiled),
}

/// Windows of steps, as they were timed before the profiler started.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Unprofiled {
    /// A step in the median of the windows.
    pub median_ns: u64,
    /// A step in their mean.
    pub mean_ns: u64,
    /// The first and the third quartile.
    pub quartiles_ns: (u64, u64),
    /// By how much a step may have come out too long at the most, since the devices were waited for at the edges of the windows.
    pub edge_ns: u64,
    /// How much longer a step was in the second half of the windows, as a part of the median.
    pub drift: f64,
    /// Whether two windows in a row were alike before any was taken.
    pub agreed: bool,
    /// How many steps a window has.
    pub window_steps: u32,
    /// How many windows came before those that were taken.
    pub dropped: u32,
    /// How many windows were taken.
    pub taken: u32,
    /// Whether a profiler had run in the program before.
    pub after_profiler: bool,
}

impl Base {
    /// What was timed before the profiler started, where it was.
    pub fn measured(&self) -> Option<&Unprofiled> {
        match self {
            Base::Measured(unprofiled) => Some(unprofiled),
            Base::Estimated => None,
        }
    }
}

impl Unprofiled {
    /// Whether it became longer or shorter while it was timed, by so much that one number does not say what it takes.
    pub fn drifts(&self) -> bool {
        self.drift.abs() > DRIFTS
    }

    /// The least and the most that a step takes.
    pub fn between_ns(&self) -> (u64, u64) {
        let (first, third) = self.quartiles_ns;
        // Some windows may have one slow step more than others: no median shows it.
        let mut low = first.saturating_sub(self.edge_ns).min(self.mean_ns);
        let mut high = third.max(self.mean_ns);
        if self.drifts() {
            // What was timed was under way from one end to the other, and may go on.
            let off_ns = (self.median_ns as f64 * self.drift.abs()) as u64;
            low = low.min(self.median_ns.saturating_sub(off_ns));
            high = high.max(self.median_ns.saturating_add(off_ns));
        }
        (low.max(1), high)
    }
}
