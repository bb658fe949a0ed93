//! Waiting on the host.
//!
//! The driver's own functions wait without an end, and nothing can call a thread back from them.
//! Here a thread asks again and again, so that it can give up in time. It asks often at first, because
//! most waits are short and a question that is answered "no" costs 0.23 µs (H200); a wait that has taken
//! long may end a little later than it could, and takes less of the processor.

use std::time::{Duration, Instant};

/// So long it only asks.
const ASKS: Duration = Duration::from_micros(20);
/// So long it asks every now and then, and keeps the processor.
const SPINS: Duration = Duration::from_millis(5);
/// The longest sleep between two questions.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Asks until the answer is yes or an error; false if the time has passed first.
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
        // Questions take a lock of the driver, which other threads need to submit.
        let until = Instant::now() + Duration::from_micros(1);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    } else {
        // At most two percent later than it could be.
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
