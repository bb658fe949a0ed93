//! Logs of real programs, replayed: how much memory the cache takes for them.
//!
//! The logs were recorded with PyTorch on an H200; their first lines say of what.

#[path = "alloc/machine.rs"]
mod machine;

use std::collections::HashMap;

use machine::{Held, Last, Machine};
use sidestream::alloc::{Cache, Rules, Statistics};
use sidestream::op::{DeviceId, StreamId};

struct Replay {
    /// The most bytes that the log asks for at once.
    peak_bytes: u64,
    statistics: Statistics,
    asks: u64,
}

/// Replays a log on streams that are up to `lag` uses behind.
fn replay(text: &str, lag: u64, limit_bytes: u64) -> Replay {
    let rules = Rules::device(DeviceId(0), limit_bytes);
    let mut cache: Cache<Last> = Cache::new(rules);
    let mut machine = Machine::new(rules, 8, lag);
    let mut held: HashMap<&str, Held> = HashMap::new();
    let (mut bytes, mut peak_bytes) = (0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["a", id, size, stream] => {
                let size: u64 = size.parse().expect("a size");
                let _ = stream; let home = StreamId(0);
                let piece = machine.alloc(&mut cache, size, Some(home));
                held.insert(id, piece.expect("there is room"));
                bytes += size;
            }
            ["f", id] => {
                let piece = held.remove(id).expect("it was allocated");
                bytes -= piece.asked_bytes;
                let home = piece.home.expect("a stream");
                machine.free(&mut cache, piece, &[home]);
            }
            _ => panic!("`{line}` is no line of a log"),
        }
        peak_bytes = peak_bytes.max(bytes);
        machine.progress(lag);
    }
    Replay {
        peak_bytes,
        statistics: cache.statistics(),
        asks: machine.asks,
    }
}

#[track_caller]
fn check(name: &str) {
    let path = format!(
        "{}/tests/data/allocations/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).expect("the log is part of the repository");
    for lag in [0] {
        let replay = replay(&text, lag, u64::MAX);
        let ratio = replay.statistics.reserved_peak_bytes as f64 / replay.peak_bytes as f64;
        let s = replay.statistics;
        println!("{name} {lag} {ratio:.3} asks {} own {} over {} waits {} segments {}", replay.asks, s.reuses_own, s.reuses_over, s.waits_inserted, s.segments);
    }
}

#[test]
fn training_of_a_resnet() {
    check("resnet_training");
}

#[test]
fn training_of_a_transformer() {
    check("transformer_training");
}

#[test]
fn an_encoder_and_a_decoder() {
    check("encoder_decoder");
}

#[test]
fn sequences_that_grow() {
    check("growing_sequences");
}

#[test]
fn augmentation_on_four_streams() {
    check("augmentation_on_four_streams");
}
