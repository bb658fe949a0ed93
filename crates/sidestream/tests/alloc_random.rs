//! Random programs on the cache: no piece overlaps another, none is handed out with an unordered pending use, the
//! statistics are right, and no memory is lost.

use super::alloc::machine::{Held, Last, Machine};
use super::drawn::Random;
use sidestream::alloc::{Cache, Rules, Spare};
use sidestream::op::{DeviceId, StreamId};

const STEPS: u64 = 400;

struct Program {
    random: Random,
    rules: Rules,
    cache: Cache<Last>,
    machine: Machine,
    held: Vec<Held>,
    streams: u64,
    lag: u64,
    allocations: u64,
    refusals: u64,
    peak_bytes: u64,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut random = Random(seed);
        let limit_bytes = match random.below(3) {
            0 => u64::MAX,
            _ => (1 + random.below(16)) << 20,
        };
        let mut rules = match random.below(3) {
            0 => Rules::pinned(limit_bytes),
            _ => Rules::device(DeviceId(0), limit_bytes),
        };
        rules.granule_bytes = 1 << (16 + random.below(4));
        rules.joins = random.below(3) > 0;
        let waits = random.below(2) == 0;
        rules.spare = (random.below(3) == 0).then_some(Spare { percent: 10, waits });
        let streams = 1 + random.below(4);
        let mut machine = Machine::new(rules, streams as usize, seed);
        machine.chunk_bytes = rules.granule_bytes << random.below(4);
        machine.apart_one_in = (random.below(2) == 0).then_some(4);
        if random.below(3) == 0 {
            machine.memory_bytes = (1 + random.below(12)) << 20;
        }
        Program {
            lag: 1 << random.below(8),
            random,
            rules,
            cache: Cache::new(rules),
            machine,
            held: Vec::new(),
            streams,
            allocations: 0,
            refusals: 0,
            peak_bytes: 0,
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            match self.random.below(100) {
                0..50 => self.allocate(),
                50..92 => self.free(),
                92..96 => self.machine.progress(self.lag),
                96 => self.machine.release_idle(&mut self.cache),
                97 => self.look(),
                98 => self.set_limit(),
                _ => self.machine.finish_all(),
            }
            self.check_statistics();
        }
        self.end();
    }

    fn allocate(&mut self) {
        // A few sizes recur, so that requests meet their own freed pieces.
        let bytes = match self.random.below(10) {
            0..4 => [0, 1, 4096, 70_000][self.random.below(4) as usize],
            4..7 => self.random.below(20_000),
            7..9 => self.random.below(300_000),
            _ => self.random.below(3 << 20),
        };
        let home = self.rules.device.map(|_| self.stream());
        match self.machine.alloc(&mut self.cache, bytes, home) {
            Ok(piece) => {
                self.allocations += 1;
                self.held.push(piece);
            }
            Err(sizes) => {
                self.refusals += 1;
                assert_eq!(
                    sizes.asked_bytes.max(1).div_ceil(512),
                    bytes.max(1).div_ceil(512)
                );
                assert_eq!(sizes.allocated_bytes, self.allocated_bytes());
                assert_eq!(sizes.reserved_bytes, self.machine.reserved_bytes());
            }
        }
        self.peak_bytes = self.peak_bytes.max(self.allocated_bytes());
    }

    fn free(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        let piece = self.held.swap_remove(at);
        let mut on = Vec::new();
        if let Some(home) = piece.home.filter(|_| self.random.below(8) > 0) {
            on.push(home);
        }
        let other = self.stream();
        if (self.random.below(4) == 0 || piece.home.is_none()) && !on.contains(&other) {
            on.push(other);
        }
        self.machine.free(&mut self.cache, piece, &on);
    }

    fn look(&mut self) {
        self.cache.look(|uses| self.machine.is_complete(uses));
    }

    fn set_limit(&mut self) {
        self.rules.limit_bytes = (1 + self.random.below(16)) << 20;
        self.cache.set_limit(self.rules.limit_bytes);
    }

    fn stream(&mut self) -> StreamId {
        StreamId(self.random.below(self.streams) as u32)
    }

    fn allocated_bytes(&self) -> u64 {
        self.held.iter().map(|held| held.piece.bytes).sum()
    }

    fn check_statistics(&self) {
        let s = self.cache.statistics();
        assert_eq!(s.allocated_bytes, self.allocated_bytes());
        assert_eq!(s.allocated_peak_bytes, self.peak_bytes);
        assert_eq!(s.reserved_bytes, self.machine.reserved_bytes());
        assert!(s.reserved_bytes <= self.machine.memory_bytes);
        assert_eq!(s.segments, self.machine.segments());
        assert_eq!(s.allocations, self.allocations);
        assert_eq!(s.frees, self.allocations - self.held.len() as u64);
        let reasons = s.reuses_own + s.reuses_over + s.waits_inserted;
        assert_eq!(reasons, self.allocations);
        assert!(s.allocated_bytes <= s.active_bytes && s.active_bytes <= s.reserved_bytes);
        assert!(s.active_bytes <= s.active_peak_bytes);
    }

    /// Checks that all memory is found again: by the cache as one piece per range, and by the driver.
    fn end(&mut self) {
        while !self.held.is_empty() {
            self.free();
        }
        self.machine.finish_all();
        self.look();
        assert_eq!(self.cache.statistics().active_bytes, 0);
        self.cache.set_limit(0);
        for bytes in self.machine.ranges() {
            let home = self.rules.device.map(|_| StreamId(0));
            let piece = self.machine.alloc(&mut self.cache, bytes, home);
            self.held.push(piece.expect("a whole range is free"));
        }
        assert_eq!(self.allocated_bytes(), self.machine.reserved_bytes());
        self.held.drain(..).for_each(|held| {
            self.machine.free(&mut self.cache, held, &[]);
        });
        self.machine.release_idle(&mut self.cache);
        assert_eq!(self.cache.statistics().reserved_bytes, 0);
        assert_eq!(self.machine.reserved_bytes(), 0);
    }
}

#[test]
fn random_programs_get_memory_that_is_theirs_and_safe() {
    let (mut waits, mut refusals, mut host_waits, mut released_bytes) = (0, 0, 0, 0);
    for seed in 0..3_000 {
        // Shown if the program fails.
        println!("seed {seed}");
        let mut program = Program::new(seed);
        program.run();
        let s = program.cache.statistics();
        waits += s.waits_inserted;
        refusals += program.refusals;
        host_waits += program.machine.host_waits;
        released_bytes += s.released_bytes;
    }
    println!(
        "{waits} waits, {refusals} refusals, {host_waits} waits on the host, {released_bytes} bytes released"
    );
    // The programs exercise all of the choices.
    assert!(waits > 1_000 && refusals > 1_000 && host_waits > 1_000 && released_bytes > 0);
}
