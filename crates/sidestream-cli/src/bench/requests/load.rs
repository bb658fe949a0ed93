//! When requests arrive.

use std::path::Path;

use serde_json::{Value, json};
use sidestream::sim::split_mix;

use super::Args;
use crate::failure::{Failure, shown};
use crate::input;

/// So many requests arrive at most.
pub const MOST: u64 = 10_000_000;

/// What the callers do.
pub enum Load {
    /// They come at these moments, in nanoseconds, whether earlier ones are answered or not.
    Open { arrivals: Vec<u64>, from: From },
    /// So many callers ask again as soon as they are answered.
    Closed { callers: u32, until: Until },
}

/// Where the moments are from.
pub enum From {
    Drawn { rate: f64, seed: u64, until: Until },
    File,
}

/// When callers stop to ask.
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
                "{rate} requests a second for {} s are more than {MOST}; give a lower --rate, or fewer --seconds",
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

    /// What figures "a second" are divided by: from the beginning, at 0, to the last answer, or to the end of the load where that is
    /// later. To the last answer alone, a load whose last requests come early or are refused would show more than arrived.
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
            // Callers ask until then, and each waits for its answer.
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

/// Moments of a Poisson process: what lies between two of them is distributed exponentially.
fn drawn(rate: f64, seed: u64, until: Until) -> Vec<u64> {
    let mut state = seed;
    let mut arrivals = Vec::new();
    let mut at_ns = 0.0;
    loop {
        // Never 0, whose logarithm there is not.
        let share = ((split_mix(&mut state) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        at_ns += -share.ln() / rate * 1e9;
        let is_over = match until {
            Until::Requests(most) => arrivals.len() as u64 >= most,
            Until::Ns(end) => at_ns >= end as f64 || arrivals.len() as u64 >= MOST,
        };
        if is_over {
            return arrivals;
        }
        arrivals.push(at_ns as u64);
    }
}

/// The moments in a file. They may stand in any sequence.
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
                    "{name}:{number}: {line:?} is no time of an arrival; give seconds, from 0 to 3600, one a line"
                )));
            }
        }
    }
    if arrivals.is_empty() || arrivals.len() as u64 > MOST {
        return Err(Failure::input(format!(
            "{name}: it has {} arrivals; give 1 to {MOST}, a time in seconds on each line",
            arrivals.len()
        )));
    }
    arrivals.sort_unstable();
    Ok(arrivals)
}
