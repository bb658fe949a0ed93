//! What a seed determines besides the calls.

use sidestream::sim::Schedule;

use super::dice::Dice;

/// The machine that a program runs on, and the failures that may occur there.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Number of host threads; with one, the seed repeats a run exactly.
    pub threads: usize,
    pub devices: usize,
    pub streams: usize,
    pub slots: usize,
    pub acts: usize,
    pub schedule: Schedule,
    pub memory_bytes: u64,
    pub pinned_bytes: u64,
    /// Number of refused calls of the back end per thousand.
    pub faults: u32,
    /// Whether a kernel may trap, which loses the device.
    pub traps: bool,
    /// Whether values are dropped or waited for explicitly.
    pub drops: bool,
    pub waits: bool,
    pub is_tracking: bool,
    pub is_synchronous: bool,
    /// Whether the checker listens from the start.
    pub listens: bool,
    /// Events besides the calls of the safe API; most plans have none.
    pub edges: Option<Edges>,
}

/// Calls of other code outside the safe API, and single failures.
#[derive(Clone, Debug)]
pub struct Edges {
    /// Whether other code is given streams of the program, or gives it some, and works there.
    pub others: bool,
    /// Whether streams are captured.
    pub captures: bool,
    /// The one call of the back end that fails: the number of calls before it, and whether it is performed
    /// nevertheless.
    pub one: Option<(u64, bool)>,
    /// Whether code of the program that the runtime calls panics.
    pub panics: bool,
    /// Whether the process forks.
    pub forks: bool,
}

impl Plan {
    /// Draws everything that varies, for one host thread or several.
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
            // A call that waits for its own work has had its effect even if the wait is refused.
            is_synchronous: faults == 0 && dice.chance(30),
            listens: dice.chance(800),
            edges: None,
        }
    }

    /// Draws everything, with calls and failures outside the safe API.
    pub fn at_the_edges(seed: u64) -> Plan {
        let mut dice = Dice::new(seed ^ 0xed6e);
        let plan = Plan::draw(seed, dice.chance(250));
        // The results of a call that was performed and then failed are known with one thread only.
        let behind = plan.threads == 1 && dice.chance(500);
        let one = dice.chance(400).then(|| (dice.below(400) as u64, behind));
        let edges = Edges {
            others: dice.chance(800),
            captures: dice.chance(400) && one.is_none_or(|(_, behind)| !behind),
            one,
            panics: dice.chance(400),
            forks: dice.chance(300),
        };
        Plan {
            faults: if one.is_some() { 1 } else { plan.faults },
            traps: plan.traps && !edges.captures,
            is_synchronous: false,
            edges: Some(edges),
            ..plan
        }
    }

    /// Nothing fails, nothing is dropped, and no wait is requested.
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
