//! A deadlock ends the test, with the seeds that show it, where it would hang.
//!
//! No program has a time to keep. But when for two minutes no program has begun or ended, and none
//! has called the back end, all of them wait for each other or for themselves.

use std::io::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PATIENCE: Duration = Duration::from_secs(120);

/// Calls of the back end, and programs that began or ended.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// The programs that run, by their number.
static RUNNING: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());

pub fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// A program that runs until this is dropped.
pub struct Running(u64);

/// Says in words which program begins.
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
                // Not `eprintln!`, which the test would keep to itself.
                let _ = writeln!(std::io::stderr(), "hangs: {program}");
            }
            std::process::abort();
        }
    }
}
