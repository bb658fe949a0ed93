//! Random programs on the simulated machine, compared with the same calls made one after another.

use std::sync::Arc;

use crate::rig::*;
use sidestream::backend::{Address, Code, HostArg, Payload};
use sidestream::op::{EventId, Memory, StreamId};
use sidestream::sim::Schedule;

const STREAMS: u32 = 4;
const BUFFERS: usize = 4;
const BYTES: usize = 24;
const CALLS: usize = 40;

#[test]
fn programs_with_all_their_waits_give_the_sequential_result() {
    for seed in 0..400 {
        println!("program {seed}");
        for schedule in [
            Schedule::InOrder,
            Schedule::Adversarial,
            Schedule::Seeded(seed),
        ] {
            println!("schedule {schedule}");
            let (got, want) = run(seed, schedule, true);
            assert_eq!(got, want);
        }
    }
}

#[test]
fn programs_without_their_waits_give_something_else() {
    let differs = |seed: &u64| {
        let (got, want) = run(*seed, Schedule::Seeded(*seed), false);
        got != want
    };
    let wrong = (0..100).filter(differs).count();
    assert!(wrong > 50, "only {wrong} of 100 programs went wrong");
}

/// Runs a program; returns the bytes of all buffers, and the expected ones.
fn run(seed: u64, schedule: Schedule, waits: bool) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let rig = Rig::new(schedule);
    let mut program = Program {
        random: seed,
        last: vec![Vec::new(); BUFFERS],
        want: vec![vec![0; BYTES]; BUFFERS],
        buffers: (0..BUFFERS)
            .map(|_| rig.device_memory(BYTES as u64))
            .collect(),
        mix: mix(),
        waits,
        rig,
    };
    for stream in 0..STREAMS {
        program.rig.stream(stream);
        program.rig.event(stream);
    }
    for call in 0..CALLS {
        program.call(call);
    }
    for stream in 0..STREAMS {
        program.rig.synchronize(StreamId(stream)).unwrap();
    }
    let Program {
        rig, buffers, want, ..
    } = program;
    let fetch = |at: &Address| rig.fetch(StreamId(0), *at, BYTES);
    (buffers.iter().map(fetch).collect(), want)
}

struct Program {
    rig: Rig,
    random: u64,
    /// By buffer: the streams that have used it since all of its users were last waited for.
    last: Vec<Vec<u32>>,
    want: Vec<Vec<u8>>,
    buffers: Vec<Address>,
    mix: Arc<Code>,
    waits: bool,
}

impl Program {
    fn call(&mut self, call: usize) {
        let stream = self.below(u64::from(STREAMS)) as u32;
        let (from, to) = (
            self.below(BUFFERS as u64) as usize,
            self.below(BUFFERS as u64) as usize,
        );
        let what = self.below(5);
        self.use_on(stream, from);
        self.use_on(stream, to);
        let on = StreamId(stream);
        let (source, target) = (self.buffers[from], self.buffers[to]);
        let bytes = BYTES as u64;
        match what {
            0 => {
                let value = call as u32 * 0x0101_0101;
                self.rig.fill(on, target, value, bytes / 4).unwrap();
                self.want[to] = value.to_le_bytes().repeat(BYTES / 4);
            }
            1 if from != to => {
                let kind = copy_kind(on, Memory::Device, Memory::Device);
                let copy = Payload::Copy(plain(source, target, bytes));
                self.rig.submit(kind, copy).unwrap();
                self.want[to] = self.want[from].clone();
            }
            2 => {
                let bytes_here = vec![call as u8 + 1; BYTES];
                let at = self.rig.pinned(&bytes_here);
                self.rig.upload(on, at, target, bytes).unwrap();
                self.want[to] = bytes_here;
            }
            3 => {
                // Querying an event changes nothing.
                let _ = self.rig.peek(EventId(stream)).unwrap();
                let _ = self.rig.query(EventId(stream)).unwrap();
            }
            _ if from != to => {
                let args = [reads(source, bytes), writes(target, bytes)];
                self.rig.launch(on, &self.mix, &args).unwrap();
                let (read, written) = (self.want[from].clone(), &mut self.want[to]);
                mixed(&read, written);
            }
            _ => {}
        }
    }

    /// Makes the stream wait for all others that have used a buffer.
    fn use_on(&mut self, stream: u32, buffer: usize) {
        for other in std::mem::take(&mut self.last[buffer]) {
            if other != stream && self.waits {
                let event = EventId(other);
                self.rig.record(event, StreamId(other)).unwrap();
                self.rig.wait_event(StreamId(stream), event).unwrap();
            }
        }
        self.last[buffer].push(stream);
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.random >> 33) % end
    }
}

/// A kernel whose output depends on all that it reads, in order.
fn mix() -> Arc<Code> {
    code("mix", 3000, |_, args| {
        if let [HostArg::Memory(from), HostArg::Memory(to)] = args {
            mixed(from.bytes(), to.bytes_mut());
        }
    })
}

fn mixed(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = to.wrapping_mul(3).wrapping_add(*from).wrapping_add(1);
    }
}
