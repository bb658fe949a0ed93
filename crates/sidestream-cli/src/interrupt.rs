//! Ctrl-C, and SIGTERM, which schedulers send: a run finishes the work that it has begun and then ends.
//!
//! SIGHUP is not handled, so that `nohup` works.

use std::io;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Exit;

/// Calls `ends` for each signal that asks the process to end, on a separate thread, with the exit code that names the signal.
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
