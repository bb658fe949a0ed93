//! Ctrl-C, and SIGTERM, by which schedulers end what they started: a run ends behind what it has begun.
//!
//! SIGHUP is left alone: `nohup` asks to be left alone by it.

use std::io;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Exit;

/// Calls this for each signal that asks the process to end, on a thread of its own, with the exit code that says which it was.
pub fn on_signal(mut ends: impl FnMut(Exit) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let named = thread::Builder::new().name("signals".into());
    named.spawn(move || {
        for signal in signals.forever() {
            ends(128 + signal as Exit);
        }
    })?;
    Ok(())
}
