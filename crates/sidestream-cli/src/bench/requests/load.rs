//! The arrival times of requests.

use std::path::Path;

use serde_json::{Value, json};
use sidestream::sim::split_mix;

use super::Args;
use crate::failure::{Failure, shown};
use crate::input;

/// The maximum number of requests in a load.
pub const MOST: u64 = 10_000_000;

/// How requests arrive.
pub enum Load {
    /// Requests arrive at these moments, in nanoseconds, whether earlier ones have been answered or not.
    Open { arrivals: Vec<u64>, from: From },
    /// A fixed number of callers, each of which sends its next request as soon as the previous one is answered.
    Closed { callers: u32, until: Until },
}

/// The source of the arrival times.
pub enum From {
    Drawn { rate: f64, seed: u64, until: Until },
    File,
}

/// When callers stop sending requests.
#[derive(Clone, Copy)]
pub enum Until {
    Requests(u64),
    Ns(u64),
}

impl Load {
    pub fn of(args: &Args) -> Result<Load, Failure> {
        let until = match args.requests {
            Some(requests) => Until::Requests(requests),
            None => Until::Ns((args.seconds * 1e9) as u64),
        };
        if let Some(callers) = args.closed {
            return Ok(Load::Closed { callers, until });
        }
        if let Some(path) = &args.arrivals {
            let from = From::File;
            let arrivals = read(path)?;
            return Ok(Load::Open { arrivals, from });
        }
        let (rate, seed) = (args.rate, args.seed);
        let expected = rate * args.seconds;
        if args.requests.is_none() && expected > MOST as f64 {
            return Err(Failure::input(format!(
                "{rate} requests a second for {} s exceed the limit of {MOST}; give a lower --rate, or fewer --seconds",
                args.seconds
            )));
        }
        let arrivals = drawn(rate, seed, until);
        let from = From::Drawn { rate, seed, until };
        Ok(Load::Open { arrivals, from })
    }

    pub fn is_closed(&self) -> bool {
        matches!(self, Load::Closed { .. })
    }

    /// The time by which rates per second are divided, in nanoseconds: from 0 to the last answer, or to the end of the load if
    /// that is later. With the last answer alone, a load whose last requests come early or are refused would show a rate higher
    /// than the one at which requests arrived.
    pub fn lasted_ns(&self, last_answer_ns: u64) -> u64 {
        let end_ns = match self {
            Load::Open {
                from:
                    From::Drawn {
                        until: Until::Ns(end),
                        ..
                    },
                ..
            } => *end,
            Load::Open { arrivals, .. } => arrivals.last().copied().unwrap_or(0),
            // Each caller waits for its last answer, so the load ends with the last answer.
            Load::Closed { .. } => 0,
        };
        end_ns.max(last_answer_ns)
    }

    pub fn in_words(&self) -> String {
        match self {
            Load::Open { arrivals, from } => match from {
                From::Drawn { rate, .. } => {
                    format!("{} requests at {rate}/s", arrivals.len())
                }
                From::File => format!("{} requests of a file", arrivals.len()),
            },
            Load::Closed { callers, .. } => format!("{callers} callers, each with one request"),
        }
    }

    pub fn as_json(&self) -> Value {
        match self {
            Load::Open { arrivals, from } => {
                let (rate, seed) = match from {
                    From::Drawn { rate, seed, .. } => (Some(*rate), Some(*seed)),
                    From::File => (None, None),
                };
                json!({"kind": "open", "requests": arrivals.len(), "rate_per_s": rate, "seed": seed})
            }
            Load::Closed { callers, .. } => json!({"kind": "closed", "callers": callers}),
        }
    }
}

/// Returns the arrival times of a Poisson process: the intervals between them are exponentially distributed.
fn drawn(rate: f64, seed: u64, until: Until) -> Vec<u64> {
    let mut state = seed;
    let mut arrivals = Vec::new();
    let mut at_ns = 0.0;
    loop {
        // Never 0, which has no logarithm.
        let share = ((split_mix(&mut state) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        at_ns += -share.ln() / rate * 1e9;
        let has_ended = match until {
            Until::Requests(most) => arrivals.len() as u64 >= most,
            Until::Ns(end) => at_ns >= end as f64 || arrivals.len() as u64 >= MOST,
        };
        if has_ended {
            return arrivals;
        }
        arrivals.push(at_ns as u64);
    }
}

/// Reads the arrival times in a file, which may be in any order.
fn read(path: &Path) -> Result<Vec<u64>, Failure> {
    let name = shown(path);
    let bytes = input::read(path, input::open(path)?)?;
    let text = str::from_utf8(&bytes)
        .map_err(|_| Failure::input(format!("{name}: not UTF-8; save the file as UTF-8")))?;
    let mut arrivals = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.parse::<f64>() {
            Ok(seconds) if (0.0..=3600.0).contains(&seconds) => {
                arrivals.push((seconds * 1e9) as u64);
            }
            _ => {
                let line: String = line.chars().take(40).collect();
                return Err(Failure::input(format!(
                    "{name}:{number}: {line:?} is not an arrival time; give seconds, from 0 to 3600, one per line"
                )));
            }
        }
    }
    if arrivals.is_empty() || arrivals.len() as u64 > MOST {
        return Err(Failure::input(format!(
            "{name}: the file has {} arrivals; give 1 to {MOST}, one time in seconds per line",
            arrivals.len()
        )));
    }
    arrivals.sort_unstable();
    Ok(arrivals)
}
