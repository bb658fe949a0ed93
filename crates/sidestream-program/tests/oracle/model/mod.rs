//! The oracle: what a perfect checker says about a stream program, by brute force.
//!
//! It is written from the rules (R1 to R69) and the description of the format alone, shares no code with the checker,
//! and prefers the obvious to the fast. Every op becomes a few nodes of a graph (the call, what the caller touches
//! itself, what the device executes, the return), every rule becomes edges between nodes, and "ordered" means "there
//! is a path". Then all pairs of accesses are tested, one by one.
//!
//! Where the text leaves something open, a comment that begins with "Reading" states the interpretation chosen here.

mod graph;
mod hazards;
mod ops;
mod state;
mod walk;

use std::collections::BTreeSet;

use super::prog::Prog;
pub use graph::Graph;
use state::Run;

/// Why an edge exists: the number of a rule, or one of the two below.
pub type Rule = u8;
/// The ops of one host thread follow each other.
pub const THREAD: Rule = 0;
/// `set_flag` to `wait_flag` (release and acquire).
pub const FLAG: Rule = 100;

/// A point of an op. Not every op has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// The calling thread enters the call.
    Call,
    /// The calling thread itself touches memory or ends its life.
    Host,
    /// The source of a copy is read out of the order of its stream.
    Source,
    /// The device executes the op, or a stream reaches it (record, wait). `wait_stream` has two: 0 the record, 1 the
    /// wait. `free` has one per event that it records. Start and end are one point.
    Device(u8),
    /// The call has returned.
    Return,
}

/// The kinds of hazards. If several fit one pair of ops and one buffer, the first in this order wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Uaf,
    Uba,
    Raw,
    War,
    Waw,
    HostRaw,
    HostWar,
    HostWaw,
    Timing,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Uaf => "UAF",
            Kind::Uba => "UBA",
            Kind::Raw => "RAW",
            Kind::War => "WAR",
            Kind::Waw => "WAW",
            Kind::HostRaw => "HOST_RAW",
            Kind::HostWar => "HOST_WAR",
            Kind::HostWaw => "HOST_WAW",
            Kind::Timing => "TIMING",
        }
    }
}

/// Whether CUDA leaves open that the pair races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Warn,
    Error,
    /// A checker may print either severity.
    Either,
}

/// One unordered pair of ops on one buffer (the buffer as the second op names it).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// The kind that wins among all byte conflicts of the pair.
    pub kind: Kind,
    /// Every kind of some byte conflict of the pair. A checker that does not test all of them may print any of these
    /// that is at least as strong as `adjacent`.
    pub fits: BTreeSet<Kind>,
    /// The kind that wins among the adjacent byte conflicts; none if no byte conflict is adjacent. A pair with an
    /// adjacent conflict must be printed; any other pair may or may not be.
    pub adjacent: Option<Kind>,
    pub buffer: Option<String>,
    pub first: usize,
    pub second: usize,
    pub severity: Severity,
    /// Whether the two race only if a guess is right, which is listed beside a race that is certain.
    pub is_guess: bool,
    /// Where the two ran: the name of a stream or of a thread.
    pub places: (String, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Clean,
    Race,
    Error,
}

impl Outcome {
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Clean => "clean",
            Outcome::Race => "race",
            Outcome::Error => "error",
        }
    }
}

/// The complete answer for a program.
pub struct Answer {
    pub outcome: Outcome,
    /// Every unordered conflict, in op order (by `second`, then `first`), with equal sites not yet merged.
    pub races: Vec<Race>,
    /// Lint code and op, in op order.
    pub lints: Vec<(&'static str, usize)>,
    /// The first call that fails, with its code.
    pub error: Option<(usize, &'static str)>,
    pub graph: Graph,
    /// Ops for which the format does not define what happens; the generator emits none.
    pub outside: Vec<(usize, &'static str)>,
    /// The call site of each op.
    pub sites: Vec<String>,
}

impl Answer {
    /// Returns the output of a checker that reports every unordered pair: of the entries with equal kind, buffer, both
    /// sites and certainty, the earliest.
    pub fn printed(&self) -> Vec<&Race> {
        let mut seen = BTreeSet::new();
        self.races
            .iter()
            .filter(|r| {
                seen.insert((
                    r.is_guess,
                    r.kind,
                    r.buffer.clone(),
                    self.sites[r.first].clone(),
                    self.sites[r.second].clone(),
                ))
            })
            .collect()
    }
}

/// Interpretations that can be switched, to find out where a difference comes from. `Default` is the oracle's choice.
#[derive(Clone, Copy, Debug)]
pub struct Readings {
    /// R8, R14: does a wait on a never-recorded event count as an action of its stream? ("the wait does nothing": no)
    pub empty_wait_acts: bool,
    /// R13, R14: does work of a destroyed blocking stream still hold back the legacy stream? (it still runs: yes)
    pub destroyed_streams_hold_legacy: bool,
    /// Do captured ops get the lints about a copy, a launch or a wait? (the table speaks of the op: yes)
    pub captured_ops_lint: bool,
}

impl Default for Readings {
    fn default() -> Readings {
        Readings {
            empty_wait_acts: false,
            destroyed_streams_hold_legacy: true,
            captured_ops_lint: true,
        }
    }
}

/// Returns the answer for a program.
pub fn judge(prog: &Prog) -> Answer {
    judge_with(prog, Readings::default(), None)
}

/// Returns the answer with other interpretations, or with all edges of one rule dropped.
pub fn judge_with(prog: &Prog, readings: Readings, drop: Option<Rule>) -> Answer {
    let mut run = Run::new(prog, readings, drop);
    run.walk();
    run.finish()
}
