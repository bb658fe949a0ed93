//! Waiting on the host.
//!
//! The driver's own functions wait without a time limit and cannot be interrupted. So the thread polls here, and can
//! stop at a time limit. It polls often at first, because most waits are short and a query that returns "not ready"
//! costs 0.23 µs (H200); a long wait may end slightly later than possible, but uses less CPU time.

use std::time::{Duration, Instant};

/// For this long the thread polls without pause.
const ASKS: Duration = Duration::from_micros(20);
/// For this long it polls every microsecond, without sleeping.
const SPINS: Duration = Duration::from_millis(5);
/// The longest sleep between two queries.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Polls until the answer is `true` or an error; returns false if `at_most` passes first.
pub(super) fn until<E>(
    at_most: Duration,
    mut is_over: impl FnMut() -> Result<bool, E>,
) -> Result<bool, E> {
    if is_over()? {
        return Ok(true);
    }
    let began = Instant::now();
    loop {
        if is_over()? {
            return Ok(true);
        }
        let waited = began.elapsed();
        if waited >= at_most {
            return Ok(false);
        }
        pause(waited, at_most);
    }
}

fn pause(waited: Duration, at_most: Duration) {
    if waited < ASKS {
        std::hint::spin_loop();
    } else if waited < SPINS {
        // Queries take a lock of the driver, which other threads need in order to submit.
        let until = Instant::now() + Duration::from_micros(1);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    } else {
        // The wait ends at most two percent later than possible.
        let sleep = (waited / 50).min(LONGEST_SLEEP);
        std::thread::sleep(sleep.min(at_most.saturating_sub(waited)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_until_the_answer_is_yes() {
        let mut asked = 0;
        let over = until(Duration::MAX, || {
            asked += 1;
            Ok::<_, ()>(asked == 1000)
        });
        assert_eq!((over, asked), (Ok(true), 1000));
    }

    #[test]
    fn it_gives_up_in_time() {
        assert_eq!(until(Duration::ZERO, || Ok::<_, ()>(false)), Ok(false));
        assert_eq!(
            until(Duration::from_micros(50), || Ok::<_, ()>(false)),
            Ok(false)
        );
    }

    #[test]
    fn an_error_ends_it() {
        assert_eq!(until(Duration::MAX, || Err::<bool, _>(700)), Err(700));
    }
}
