//! The speed of copies from and to pinned memory.

use std::ops::RangeInclusive;

use crate::measure::Copies;
use crate::model::{Direction, Memory, Trace};
use crate::words::words;

/// The assumed speed of copies from and to pinned memory where the trace has none: that of PCIe 4.0 with sixteen lanes.
const ASSUMED_LINK_GB_PER_S: f64 = 25.0;

/// The time of copies below this size depends more on their setup than on the link.
const LARGE_BYTES: u64 = 1 << 20;

/// The speeds, in GB/s, that may be given for a link: from a tenth of the slowest one in use to far beyond the fastest.
pub const LINK_GB_PER_S: RangeInclusive<f64> = 0.1..=10_000.0;

/// Returns whether a link can be this fast. Callers pass on what a user entered.
pub fn is_speed(gb_per_s: f64) -> bool {
    LINK_GB_PER_S.contains(&gb_per_s)
}

words! {
    /// The source of the speed of pinned copies.
    pub enum Link {
        /// The caller gave the speed.
        Stated = "stated",
        /// The speed was measured from pinned copies of the trace.
        Measured = "measured",
        /// The speed is an assumption.
        Assumed = "assumed",
    }
}

/// Returns the speed of pinned copies: the caller's, otherwise the best of the trace, otherwise an assumption.
pub fn link(copies: &[Copies], trace: &Trace, stated: Option<f64>) -> (f64, Link) {
    if let Some(stated) = stated {
        return (stated, Link::Stated);
    }
    let pinned = copies.iter().filter(|copies| {
        let to_or_from_host = matches!(copies.direction, Direction::Upload | Direction::Download);
        let large = copies.bytes / copies.count.max(1) as u64 >= LARGE_BYTES;
        to_or_from_host && large && copies.memory == Memory::Pinned
    });
    let best = pinned.filter_map(Copies::gb_per_s).max_by(f64::total_cmp);
    if let Some(best) = best {
        return (best, Link::Measured);
    }
    let name = trace.devices.first().map_or("", |device| &device.name);
    (assumed(name), Link::Assumed)
}

/// Returns the speed of a device's link, by its generation of PCIe; a chip connected to its host by NVLink has more.
fn assumed(name: &str) -> f64 {
    let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let is_one_of = |models: &[&str]| words.iter().any(|word| models.contains(word));
    if is_one_of(&["GH200", "GB200", "GB300"]) {
        // NVLink-C2C; copies of one direction were published to reach some 370 to 410 GB/s.
        return 370.0;
    }
    if is_one_of(&["H100", "H200", "H20", "H800", "B200", "B100", "B300"]) {
        // 55.4 GB/s was measured on an H200.
        return 55.0;
    }
    let of_two_thousands = |word: &&str| {
        // GeForce RTX 2060 to 2080, and TITAN and Quadro RTX 3000 to 8000 of the same generation.
        word.len() == 4 && word.starts_with("20") && word.ends_with('0')
    };
    let is_turing = words.contains(&"RTX") && words.iter().any(of_two_thousands)
        || words.contains(&"2080Ti")
        || words.contains(&"Quadro");
    if is_turing || is_one_of(&["V100", "V100S", "T4", "P100", "P40", "P4", "TITAN"]) {
        return 12.5;
    }
    let starts = |start: &str| words.iter().any(|word| word.starts_with(start));
    if starts("GTX") || words.contains(&"GTX") {
        return 12.5;
    }
    ASSUMED_LINK_GB_PER_S
}
