//! Ends a deadlocked test, and reports the seeds that show the deadlock.
//!
//! Programs have no time limit. But if for two minutes no program has begun or ended, and none has called the back
//! end, all of them wait for each other or for themselves.

use std::io::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PATIENCE: Duration = Duration::from_secs(120);

/// Number of calls of the back end, and of programs that began or ended.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// Running programs by number.
static RUNNING: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());

pub fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// A program that counts as running until this is dropped.
pub struct Running(u64);

/// Registers a program with its description.
pub fn begin(program: String) -> Running {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| drop(thread::spawn(watch)));
    let number = STEPS.fetch_add(1, Ordering::Relaxed);
    RUNNING.lock().push((number, program));
    Running(number)
}

impl Drop for Running {
    fn drop(&mut self) {
        step();
        RUNNING.lock().retain(|(number, _)| *number != self.0);
    }
}

fn watch() {
    let (mut steps, mut since) = (STEPS.load(Ordering::Relaxed), Instant::now());
    loop {
        thread::park_timeout(PATIENCE / 8);
        let now = STEPS.load(Ordering::Relaxed);
        let running = RUNNING.lock();
        if now != steps || running.is_empty() {
            (steps, since) = (now, Instant::now());
        } else if since.elapsed() >= PATIENCE {
            for (_, program) in &*running {
                // Not `eprintln!`, whose output the test would capture.
                let _ = writeln!(std::io::stderr(), "hangs: {program}");
            }
            std::process::abort();
        }
    }
}
