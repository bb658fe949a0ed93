//! Chooses the number of slots of a pipeline from the times of its stages.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A depth, and the measured times from which it was chosen. Its text form can be stored and parsed again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The number of slots.
    pub depth: usize,
    /// The time from the start to the end of an item that runs alone on the device.
    pub item: Duration,
    /// The time of each stage of that item.
    pub stages: Vec<(String, Duration)>,
}

/// The smallest depth chosen: with fewer than two slots nothing overlaps.
const LEAST: usize = 2;
/// The largest depth chosen: more gained nothing on any device that was measured.
const MOST: usize = 8;
/// The minimum host time to submit an item: three calls of 1.5 to 3 µs, measured on an H200.
const HOST: Duration = Duration::from_micros(6);

impl Plan {
    /// Returns a plan with enough slots that the longest stage never waits for the others: the time of an item divided by the
    /// time of that stage, and one slot that the host refills.
    pub fn from_times(stages: Vec<(String, Duration)>, item: Duration) -> Plan {
        let longest = stages.iter().map(|(_, time)| *time).max();
        let longest = longest.unwrap_or_default().max(HOST);
        let fit = item.as_nanos().div_ceil(longest.as_nanos()) as usize;
        Plan {
            depth: (fit + 1).clamp(LEAST, MOST),
            item,
            stages,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "depth {}; item {} ns", self.depth, self.item.as_nanos())?;
        for (name, time) in &self.stages {
            // A name may contain the separator of the parts.
            let name = name.replace("; ", ", ");
            write!(f, "; {name} {} ns", time.as_nanos())?;
        }
        Ok(())
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Plan, String> {
        let wrong =
            || format!("{text:?} is not a plan; a plan starts like `depth 4; item 325000 ns`");
        let mut parts = text.trim().split("; ");
        let depth = parts.next().and_then(|part| part.strip_prefix("depth "));
        let depth: usize = depth.and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
        let mut times = Vec::new();
        for part in parts {
            let (name, ns) = (part.strip_suffix(" ns"))
                .and_then(|part| part.rsplit_once(' '))
                .ok_or_else(wrong)?;
            let ns = ns.parse().map_err(|_| wrong())?;
            times.push((name.to_owned(), Duration::from_nanos(ns)));
        }
        if depth == 0 || times.first().is_none_or(|(name, _)| name != "item") {
            return Err(wrong());
        }
        let (_, item) = times.remove(0);
        Ok(Plan {
            depth,
            item,
            stages: times,
        })
    }
}
