//! Replays logs of real programs, and checks how much memory the cache takes for them.
//!
//! The logs were recorded with PyTorch on an H200; their first lines say from which program. They say on which stream
//! memory is used, but not when the device had completed the use: the machine draws that. The oracle of the machine
//! checks every piece.

use std::collections::HashMap;

use super::alloc::machine::{Held, Last, Machine};
use sidestream::alloc::{Cache, Rules, Spare, Statistics};
use sidestream::op::{DeviceId, StreamId};

/// Maximum number of uses by which the streams lag behind.
const LAGS: [u64; 5] = [0, 1, 8, 64, 256];
const STREAMS: usize = 4;

/// Replays a log; returns its peak, and the statistics of the cache.
fn replay(text: &str, lag: u64, spare: Option<Spare>) -> (u64, Statistics) {
    let rules = Rules {
        spare,
        ..Rules::device(DeviceId(0), u64::MAX)
    };
    let mut cache: Cache<Last> = Cache::new(rules);
    let mut machine = Machine::new(rules, STREAMS, lag);
    machine.chunk_bytes = rules.granule_bytes;
    let mut held: HashMap<&str, Held> = HashMap::new();
    let (mut bytes, mut peak_bytes) = (0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["a", id, size, stream] => {
                let size: u64 = size.parse().expect("a size");
                let home = StreamId(stream.parse().expect("a stream"));
                let piece = machine.alloc(&mut cache, size, Some(home));
                held.insert(id, piece.expect("there is no limit"));
                bytes += size;
            }
            ["f", id] => {
                let piece = held.remove(id).expect("it was allocated");
                bytes -= piece.asked_bytes;
                let home = piece.home.expect("a stream");
                machine.free(&mut cache, piece, &[home]);
            }
            _ => panic!("`{line}` is not a line of a log"),
        }
        peak_bytes = peak_bytes.max(bytes);
        machine.progress(lag);
    }
    let statistics = cache.statistics();
    for (_, piece) in held.drain() {
        machine.free(&mut cache, piece, &[]);
    }
    machine.release(cache.empty_cache());
    assert_eq!(machine.reserved_bytes(), 0, "everything goes back");
    (peak_bytes, statistics)
}

const LOGS: [&str; 5] = [
    "resnet_training",
    "transformer_training",
    "growing_sequences",
    "encoder_decoder",
    "augmentation_on_four_streams",
];

/// Replays a log, and checks that no more than 1.15 times the requested memory is reserved.
#[track_caller]
fn check(name: &str, lags: &[u64], spare: Option<Spare>) {
    let path = format!(
        "{}/tests/data/allocations/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).expect("the log is part of the repository");
    for &lag in lags {
        let (peak_bytes, statistics) = replay(&text, lag, spare);
        let reserved_bytes = statistics.reserved_peak_bytes;
        let ratio = reserved_bytes as f64 / peak_bytes as f64;
        println!("{name}, {lag} uses behind: {ratio:.3} {statistics:?}");
        assert!(
            u128::from(reserved_bytes) * 100 <= u128::from(peak_bytes) * 115,
            "{name}, {lag} uses behind: {ratio:.3} times the peak of {peak_bytes} bytes"
        );
        let waits = spare.is_some_and(|spare| spare.waits);
        assert!(waits || statistics.waits_inserted == 0);
    }
}

#[test]
fn every_log_fits_without_a_wait_if_the_device_keeps_up() {
    for name in LOGS {
        check(name, &[0, 1], Rules::device(DeviceId(0), u64::MAX).spare);
    }
}

#[test]
fn on_one_stream_every_log_fits_without_any_bound_however_late_it_is() {
    for name in &LOGS[..3] {
        check(name, &LAGS, None);
    }
}

#[test]
fn a_cache_that_may_wait_holds_every_log_to_its_spare_however_late_the_streams_are() {
    let spare = Spare {
        percent: 12,
        waits: true,
    };
    for name in LOGS {
        check(name, &LAGS, Some(spare));
    }
}
