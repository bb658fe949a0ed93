//! The state machine behind every batcher, without threads and clocks: when a batch leaves, and which requests are
//! accepted.

use std::time::Duration;

use sidestream::batcher::{Refusal, Requests, Rule, Took};

/// A time after the beginning.
const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns requests known by a number, of one class with one slot.
fn requests(max_queue: usize) -> Requests<u32> {
    let rule = Rule::new(&[8, 2, 4, 2], ms(5)).unwrap();
    assert_eq!((rule.sizes(), rule.largest()), (&[2, 4, 8][..], 8));
    assert_eq!(
        [0, 1, 2, 3, 8, 9].map(|n| rule.size_of(n)),
        [2, 2, 2, 4, 8, 8]
    );
    Requests::new(rule, max_queue, 1, 1)
}

#[test]
fn when_a_batch_leaves() {
    let mut all = requests(100);
    assert_eq!(all.due(0), None);
    for n in 0..3 {
        all.submit(0, n, ms(1), None, None).unwrap();
    }
    assert_eq!(all.due(0), Some(ms(6)));
    assert!(all.take(0, ms(5)).is_none());
    let batch = all.take(0, ms(7)).unwrap();
    assert_eq!(
        (batch.keys, batch.size, batch.due),
        (vec![0, 1, 2], 4, ms(6))
    );
    for n in 3..13 {
        all.submit(0, n, ms(8), None, None).unwrap();
    }
    assert!(all.due(0).is_none(), "no slot is free");
    all.over(0, batch.slot, ms(9));
    // A full batch of the largest size waits for no more requests.
    assert_eq!(all.due(0), Some(ms(9)));
    let batch = all.take(0, ms(9)).unwrap();
    assert_eq!((batch.keys.len(), batch.size), (8, 8));
    all.over(0, batch.slot, ms(9));
    assert_eq!(all.due(0), Some(ms(13)));
    all.close(true);
    assert_eq!(all.take(0, ms(9)).unwrap().keys, [11, 12]);
}

#[test]
fn threads_leave_a_batch_to_its_event_loop_for_a_while() {
    let mut all = requests(100);
    all.submit(0, 0, ms(0), None, Some(7)).unwrap();
    all.submit(0, 1, ms(1), None, Some(7)).unwrap();
    assert_eq!(all.due_to_threads(0, ms(5)), Some(ms(55)));
    // With another thread's request in it, the batch does not wait that long for a busy event loop.
    all.submit(0, 2, ms(2), None, None).unwrap();
    assert_eq!(all.due_to_threads(0, ms(5)), Some(ms(10)));
    assert_eq!(all.due(0), Some(ms(5)));
    assert_eq!(all.cancel(0, |key| *key == 0), Some(0));
    assert_eq!(all.cancel(0, |key| *key == 1), Some(1));
    assert_eq!(all.due_to_threads(0, ms(5)), Some(ms(7)));
}

#[test]
fn a_cancelled_request_takes_no_place_in_the_queue() {
    let mut all = requests(4);
    for n in 0..4 {
        all.submit(0, n, ms(0), None, None).unwrap();
    }
    assert_eq!(all.submit(0, 4, ms(0), None, None), Err(Refusal::Full));
    for n in 0..4 {
        assert_eq!(all.cancel(0, |key| *key == n), Some(n));
        assert_eq!(all.cancel(0, |key| *key == n), None);
    }
    assert_eq!(all.submit(0, 4, ms(0), None, None), Ok(1));
    let counts = all.statistics();
    assert_eq!(
        (counts.cancelled, counts.refused_full, counts.waiting),
        (4, 1, 1)
    );
}

/// The history of a batcher, with its decisions. `test_batcher.py` checks the same history with Python's batcher.
#[test]
fn a_history_determines_which_requests_are_accepted() {
    let us = |text: &str| Duration::from_micros(text.parse().unwrap());
    let rule = Rule::new(&[1, 2, 4], us("500")).unwrap();
    let mut all: Requests<()> = Requests::new(rule, 8, 1, 2);
    let mut batches = Vec::new();
    for line in include_str!("data/admission.txt").lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["#", ..] => {}
            ["submit", at, deadline, says] => {
                let deadline = us(at) + us(deadline);
                let said = all.submit(0, (), us(at), Some(deadline), None);
                let said = match said {
                    Ok(_) => "taken",
                    Err(Refusal::Full) => "full",
                    Err(Refusal::Late(_)) => "late",
                    Err(Refusal::Closed) => "closed",
                };
                assert_eq!(said, says, "{line}");
            }
            ["take", at, requests, expired] => {
                let batch = all.take(0, us(at)).unwrap();
                let has = [batch.keys.len(), batch.expired.len()].map(|n| n.to_string());
                assert_eq!(has, [requests, expired], "{line}");
                if requests != "0" {
                    batches.push((batch.slot, batch.due));
                }
            }
            ["over", at, number] => {
                let (slot, due) = batches[number.parse::<usize>().unwrap()];
                all.answered(0, slot, None, Took::Unknown, us(at));
                all.over(0, slot, us(at));
                all.told(0, due, us(at));
            }
            _ => panic!("{line}"),
        }
    }
}
