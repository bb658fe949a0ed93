//! The number of copy engines of a device.

use crate::model::{Direction, StreamIndex, Trace, What, Work};

/// Smaller uploads are sent with the commands, and use no copy engine.
const LARGE_BYTES: u64 = 1 << 16;
/// The gap between two consecutive copies of one engine is shorter than this.
const NEXT_NS: u64 = 20_000;
/// This many alternations are not coincidence.
const LEAST_TURNS: usize = 3;
/// Data-center devices copy in both directions at once; for other devices it depends on the model.
const BOTH_WAYS: [&str; 27] = [
    "K80", "P4", "P40", "P100", "V100", "V100S", "T4", "A10", "A10G", "A30", "A40", "A100", "A800",
    "L4", "L40", "L40S", "H20", "H100", "H200", "H800", "GH200", "B100", "B200", "B300", "GB200",
    "GB300", "Instinct",
];

/// Returns the number of copy engines of a device, as far as the trace shows it: the number that it states; otherwise two, if
/// copies of both directions ever ran concurrently or the model is known to have two; one, if they alternated though they were
/// in different streams.
pub fn copy_engines(trace: &Trace, device: i64) -> Option<u32> {
    let described = trace.devices.iter().find(|d| d.id == device);
    if let Some(stated) = described.and_then(|d| d.copy_engines) {
        return Some(stated);
    }
    let mut turns = 0;
    // The copy of each direction that ends last.
    let mut last: [Option<(i64, StreamIndex)>; 2] = [None; 2];
    let copies = trace.work.iter().filter(|work| is_of(trace, work, device));
    for (copy, direction) in copies.filter_map(|work| Some((work, direction(work)?))) {
        if let Some((over_ns, stream)) = last[1 - direction]
            && stream != copy.stream
        {
            if copy.start_ns < over_ns {
                return Some(2);
            }
            turns += usize::from(copy.start_ns.abs_diff(over_ns) <= NEXT_NS);
        }
        let over_ns = copy.end_ns();
        if last[direction].is_none_or(|last| last.0 < over_ns) {
            last[direction] = Some((over_ns, copy.stream));
        }
    }
    let name = described.map_or("", |d| &*d.name);
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    if words.any(|word| {
        BOTH_WAYS
            .iter()
            .any(|model| word.eq_ignore_ascii_case(model))
    }) {
        return Some(2);
    }
    (turns >= LEAST_TURNS).then_some(1)
}

fn is_of(trace: &Trace, work: &Work, device: i64) -> bool {
    trace.streams[work.stream.0 as usize].device == device
}

/// Returns 0 for an upload and 1 for a download that use an engine.
fn direction(work: &Work) -> Option<usize> {
    match work.what {
        What::Copy { bytes, .. } if bytes < LARGE_BYTES => None,
        what => match what.direction()? {
            Direction::Upload => Some(0),
            Direction::Download => Some(1),
            _ => None,
        },
    }
}
