//! Handles signals. The first one ends the run after the batches that are on the device, so that the output consists
//! of whole batches. A second one ends the process at once and removes its unfinished file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidestream::pipeline::Cancel;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// The signal that came, if any, and what a signal ends.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Exit code of the signal, once one came.
    code: Option<u8>,
    /// Cancels the run.
    cancel: Option<Cancel>,
    /// The file that does not have its final name yet.
    part: Option<PathBuf>,
}

impl Stop {
    /// Installs the handlers: from here on, signals do not end the process by themselves.
    pub fn on_signals() -> Result<Stop, Failure> {
        let stop = Stop::default();
        let told = stop.clone();
        // SIGHUP is not handled, since `nohup` has it ignored.
        let signals = Signals::new([SIGINT, SIGTERM]);
        let listening = signals.and_then(|mut signals| {
            let named = std::thread::Builder::new().name("signals".into());
            named.spawn(move || {
                for signal in signals.forever() {
                    told.signal(128 + signal as u8);
                }
            })
        });
        listening.map_err(|error| Failure::input(format!("cannot catch Ctrl-C: {error}")))?;
        Ok(stop)
    }

    fn signal(&self, code: u8) {
        let mut state = self.lock();
        if let Some(code) = state.code {
            if let Some(part) = &state.part {
                // If removing fails, the next run with this name overwrites the file.
                let _ = std::fs::remove_file(part);
            }
            std::process::exit(code.into());
        }
        state.code = Some(code);
        if let Some(cancel) = &state.cancel {
            cancel.cancel();
        }
    }

    /// Registers what a signal cancels; cancels it at once if a signal came before.
    pub fn cancels(&self, cancel: Cancel) {
        let mut state = self.lock();
        if state.code.is_some() {
            cancel.cancel();
        }
        state.cancel = Some(cancel);
    }

    /// Registers a file that a second signal removes.
    pub fn removes(&self, part: &Path) {
        self.lock().part = Some(part.to_owned());
    }

    /// Returns the exit code, if a signal came.
    pub fn code(&self) -> Option<u8> {
        self.lock().code
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
