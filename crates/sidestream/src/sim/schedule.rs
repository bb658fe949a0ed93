//! Picks one of the orders that the rules allow.

use std::fmt;
use std::str::FromStr;

use crate::engine::Delay;
use crate::op::OpId;
use crate::order::{Chain, Force, Performs};

/// How the simulated GPU picks one of the allowed orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Schedule {
    /// As observed on devices: observed edges are kept too, and nothing is delayed on purpose.
    #[default]
    InOrder,
    /// A random order that the guaranteed edges allow, drawn from this seed.
    Seeded(u64),
    /// Everything is as late as allowed: host threads run ahead as far as they can, and when nothing else can
    /// proceed, the work submitted last runs first.
    Adversarial,
    /// The work of one operation is as late as allowed: everything that need not wait for it runs before it. Its work
    /// is its part in a stream, or its part on the host if it has none in a stream.
    Delaying(OpId),
    /// The part of one operation that runs on the host, in its calling thread, is as late as allowed.
    DelayingCall(OpId),
}

impl Schedule {
    /// Returns the weakest edges that the schedule keeps.
    pub(super) fn weakest(self) -> Force {
        match self {
            Schedule::InOrder => Force::Observed,
            _ => Force::Promised,
        }
    }

    /// Returns the seed of random choices.
    pub(super) fn seed(self) -> u64 {
        match self {
            Schedule::Seeded(seed) => seed,
            _ => 0,
        }
    }

    /// Whether the schedule delays the step of this operation on this chain; `works` says whether the operation
    /// has work in a stream.
    pub(super) fn singles_out(self, op: OpId, chain: Chain, works: bool) -> bool {
        match chain {
            Chain::Stream(_) => self == Schedule::Delaying(op),
            Chain::Thread(_) if !works => {
                self == Schedule::Delaying(op) || self == Schedule::DelayingCall(op)
            }
            Chain::Thread(_) => self == Schedule::DelayingCall(op),
        }
    }

    /// Returns the delay of a step. `rank` grows from call to call.
    pub(super) fn delay(
        self,
        random: &mut u64,
        rank: u64,
        chain: Chain,
        performs: Performs,
        is_late: bool,
    ) -> Delay {
        if performs == Performs::Nothing {
            return Delay::None;
        }
        match self {
            Schedule::Delaying(_) | Schedule::DelayingCall(_) if is_late => Delay::UntilIdle(0),
            Schedule::InOrder | Schedule::Delaying(_) | Schedule::DelayingCall(_) => Delay::None,
            Schedule::Adversarial => match chain {
                Chain::Stream(_) => Delay::UntilIdle(rank),
                Chain::Thread(_) => Delay::None,
            },
            // Mostly none; otherwise from nanoseconds to most of a second, so that every order occurs,
            // however long the work in between takes; sometimes until the engine is idle.
            Schedule::Seeded(_) => match split_mix(random) % 16 {
                0..8 => Delay::None,
                8 => Delay::UntilIdle(split_mix(random) >> 1),
                _ => {
                    let magnitude = split_mix(random) % 30;
                    Delay::ExtraNs(split_mix(random) % (1 << magnitude))
                }
            },
        }
    }
}

impl FromStr for Schedule {
    type Err = BadSchedule;

    fn from_str(text: &str) -> Result<Schedule, BadSchedule> {
        let bad = || BadSchedule(text.to_owned());
        match text.split_once(':') {
            None if text == "in-order" => Ok(Schedule::InOrder),
            None if text == "adversarial" => Ok(Schedule::Adversarial),
            Some(("seeded", seed)) => seed.parse().map(Schedule::Seeded).map_err(|_| bad()),
            Some(("adversarial", late)) => {
                let number = |op: &str| op.parse().map(OpId).map_err(|_| bad());
                match late.strip_prefix("call:") {
                    Some(op) => number(op).map(Schedule::DelayingCall),
                    None => number(late).map(Schedule::Delaying),
                }
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::InOrder => write!(f, "in-order"),
            Schedule::Seeded(seed) => write!(f, "seeded:{seed}"),
            Schedule::Adversarial => write!(f, "adversarial"),
            Schedule::Delaying(op) => write!(f, "adversarial:{}", op.0),
            Schedule::DelayingCall(op) => write!(f, "adversarial:call:{}", op.0),
        }
    }
}

/// The error for a string that names no schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSchedule(String);

impl fmt::Display for BadSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no schedule is called {:?}; there are in-order, seeded:N, adversarial, \
             adversarial:N (op N as late as it can be) and adversarial:call:N (its call)",
            self.0
        )
    }
}

impl std::error::Error for BadSchedule {}

/// Returns the next random number of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), which gives equal numbers for a seed on
/// every machine. Tests and benchmarks use it too.
#[doc(hidden)]
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed(*state)
}

/// Returns the output function of SplitMix64: a number with its bits mixed.
#[doc(hidden)]
pub fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
