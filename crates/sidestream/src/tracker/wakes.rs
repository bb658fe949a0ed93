//! A thread that wakes tasks which await a [`Pending`](crate::buffer::Pending).

use std::panic::Location;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

use super::elsewhere::{drop_elsewhere, spawn};
use super::mark::Mark;
use super::runtime::Runtime;

/// A task to be woken, and the mark that it waits for. The mark is dropped before the runtime, which destroys the
/// driver's events when it is dropped.
struct Asked {
    mark: Mark,
    runtime: Arc<Runtime>,
    waker: Waker,
}

/// Wakes a task when a use is complete or has failed; the woken task then queries the use.
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
        // No thread could be started: the task polls again at once, which is slow but correct.
        waker.wake_by_ref();
    }
}

/// The time limit of a wait for the oldest mark, between two checks of all marks.
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
        // A failed use also wakes the task, which then gets the error.
        let oldest = &waiting[0];
        let _ = oldest.runtime.synchronize_for(&oldest.mark, TURN, at);
        let is_over = |asked: &mut Asked| asked.runtime.query(&asked.mark, at).unwrap_or(true);
        let over = waiting.extract_if(.., is_over);
        over.for_each(wake);
    }
}

/// Wakes a task. The waker is the program's: a panic in it must not keep the other tasks from being woken.
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
            "sidestream: a waker panicked, so its task may never continue; other tasks are still woken",
        );
    }
}
