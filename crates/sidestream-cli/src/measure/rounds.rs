//! Measures several things in turn, so that changes of the machine affect all of them equally.

use std::sync::Arc;
use std::time::Instant;

use sidestream::sim::Machine;

use crate::failure::Failure;

/// The clock that counts.
#[derive(Clone)]
pub enum Clock {
    /// The host's clock, since this moment.
    Host(Instant),
    /// A simulated machine's clock.
    Simulated(Arc<Machine>),
}

impl Clock {
    pub fn now_ns(&self) -> u64 {
        match self {
            Clock::Host(start) => start.elapsed().as_nanos() as u64,
            Clock::Simulated(machine) => machine.now_ns(),
        }
    }
}

/// A thing to measure: does its work once, and returns how long that took.
pub type Side<'a> = Box<dyn FnMut() -> Result<f64, Failure> + 'a>;

/// Runs all sides once in each round, alternating forward and backward order, after one round that does not count. Returns the
/// times by side, then by round.
pub fn interleaved(rounds: usize, sides: &mut [Side<'_>]) -> Result<Vec<Vec<f64>>, Failure> {
    let mut times = vec![Vec::with_capacity(rounds); sides.len()];
    for round in 0..=rounds {
        for step in 0..sides.len() {
            let side = match round % 2 {
                0 => step,
                _ => sides.len() - 1 - step,
            };
            let time = sides[side]()?;
            if round > 0 {
                times[side].push(time);
            }
        }
    }
    Ok(times)
}

/// Returns the value below which this share of the values lies; the median at 0.5.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (at.floor() as usize, at.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(low), Some(high)) => low + (high - low) * (at - at.floor()),
        _ => f64::NAN,
    }
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn sides_run_in_turn_forwards_and_backwards_and_the_first_round_does_not_count() {
        let ran = RefCell::new(String::new());
        let side = |name: char| -> Side<'_> { Box::new(move || Ok(f64::from(name as u32))) };
        let noted = |name: char| -> Side<'_> {
            let ran = &ran;
            let mut inner = side(name);
            Box::new(move || {
                ran.borrow_mut().push(name);
                inner()
            })
        };
        let times = interleaved(3, &mut [noted('a'), noted('b'), noted('c')]).expect("no failure");
        assert_eq!(*ran.borrow(), "abccbaabccba");
        assert_eq!(times, [[97.0; 3], [98.0; 3], [99.0; 3]]);
    }

    #[test]
    fn quantiles_lie_between_the_values() {
        let values = [4.0, 1.0, 3.0, 2.0, 5.0];
        assert_eq!(median(&values), 3.0);
        assert_eq!(quantile(&values, 0.1), 1.4);
        assert_eq!(quantile(&values, 0.9), 4.6);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert!(median(&[]).is_nan());
    }
}
