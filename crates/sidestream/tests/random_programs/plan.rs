//! What a seed decides besides the calls.

use sidestream::sim::Schedule;

use super::dice::Dice;

/// The machine that a program runs on, and what may go wrong there.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Host threads; one makes a run that its seed repeats exactly.
    pub threads: usize,
    pub devices: usize,
    pub streams: usize,
    pub slots: usize,
    pub acts: usize,
    pub schedule: Schedule,
    pub memory_bytes: u64,
    pub pinned_bytes: u64,
    /// Of a thousand calls of the back end so many are refused.
    pub faults: u32,
    /// Whether a kernel may trap, which loses the device.
    pub traps: bool,
    /// Whether anything is dropped or waited for explicitly.
    pub drops: bool,
    pub waits: bool,
    pub is_tracking: bool,
    pub is_synchronous: bool,
    /// Whether the checker reads along from the start.
    pub listens: bool,
}

impl Plan {
    /// Everything that is varied, for one host thread or several.
    pub fn draw(seed: u64, threads: bool) -> Plan {
        let mut dice = Dice::new(seed);
        let faults = dice.pick(&[0, 0, 0, 5, 20, 60]);
        Plan {
            seed,
            threads: if threads { 2 + dice.below(2) } else { 1 },
            devices: 1 + dice.below(3) / 2,
            streams: 1 + dice.below(4),
            slots: 2 + dice.below(4),
            acts: 20 + dice.below(40),
            schedule: match dice.below(4) {
                0 => Schedule::InOrder,
                1 => Schedule::Adversarial,
                _ => Schedule::Seeded(seed),
            },
            memory_bytes: dice.pick(&[2 << 20, 4 << 20, 8 << 20, 1 << 30]),
            pinned_bytes: dice.pick(&[4 << 20, 8 << 20, 1 << 30]),
            faults,
            traps: dice.chance(25),
            drops: dice.chance(850),
            waits: dice.chance(850),
            is_tracking: true,
            // What is refused while a call waits for itself has happened none the less.
            is_synchronous: faults == 0 && dice.chance(30),
            listens: dice.chance(800),
        }
    }

    /// Nothing fails, nothing is dropped, and no wait is asked for.
    pub fn plain(seed: u64) -> Plan {
        Plan {
            memory_bytes: 1 << 30,
            pinned_bytes: 1 << 30,
            faults: 0,
            traps: false,
            drops: false,
            waits: false,
            is_synchronous: false,
            listens: true,
            ..Plan::draw(seed, false)
        }
    }
}
