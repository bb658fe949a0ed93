//! A thread of our own that wakes whoever awaits a [`Pending`](crate::buffer::Pending).

use std::panic::Location;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use super::elsewhere::{drop_elsewhere, spawn};
use super::mark::Mark;
use super::runtime::Runtime;

/// Who is to be woken, and when. The mark comes before the runtime, which takes the driver's events back when it goes.
struct Asked {
    mark: Mark,
    runtime: Arc<Runtime>,
    waker: Waker,
}

/// Wakes a task when a use is over, or has failed: the task asks itself then.
pub(crate) fn wake_when_over(runtime: &Arc<Runtime>, mark: &Mark, waker: &Waker) {
    static WAKES: OnceLock<Option<Sender<Asked>>> = OnceLock::new();
    let wakes = WAKES.get_or_init(|| {
        let (sender, asked) = channel();
        spawn("sidestream-wake", move || wake_all(&asked)).then_some(sender)
    });
    let asked = Asked {
        mark: mark.clone(),
        runtime: Arc::clone(runtime),
        waker: waker.clone(),
    };
    let sent = match wakes {
        Some(wakes) => wakes.send(asked).is_ok(),
        None => false,
    };
    if !sent {
        // No thread can be had: the task asks again at once, which is slow and right.
        waker.wake_by_ref();
    }
}

/// Between two looks at all of them it waits for the oldest one, for this long.
const TURN: Duration = Duration::from_millis(1);

fn wake_all(asked: &Receiver<Asked>) {
    let at = Location::caller();
    let mut waiting: Vec<Asked> = Vec::new();
    loop {
        if waiting.is_empty() {
            match asked.recv() {
                Ok(next) => waiting.push(next),
                Err(_) => return,
            }
        }
        waiting.extend(asked.try_iter());
        // An error is over, too: the task will meet it.
        let oldest = &waiting[0];
        let _ = oldest.runtime.synchronize_for(&oldest.mark, TURN, at);
        let is_over = |asked: &mut Asked| asked.runtime.query(&asked.mark, at).unwrap_or(true);
        let over = waiting.extract_if(.., is_over);
        over.for_each(wake);
    }
}

/// The waker is the program's: a panic in it is its own, and the others are still to be woken.
fn wake(asked: Asked) {
    let Asked {
        mark,
        runtime,
        waker,
    } = asked;
    drop(mark);
    let woken = std::panic::AssertUnwindSafe(|| waker.wake());
    if let Err(panic) = std::panic::catch_unwind(woken) {
        drop_elsewhere(panic);
        (runtime.notice)(
            "sidestream: a waker panicked, so that its task may never go on; others are woken",
        );
    }
}
