//! What a signal ends: at first the run, behind the batches that are on the device, so that what was written is whole batches. A
//! second signal ends the process at once, without its unfinished file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sidestream::pipeline::Cancel;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// Whether a signal came, and what there is to end.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Once a signal came: the exit code that says which.
    code: Option<u8>,
    /// What runs.
    cancel: Option<Cancel>,
    /// The file that has not got its name yet.
    part: Option<PathBuf>,
}

impl Stop {
    /// From here on signals do not end the process by themselves.
    pub fn on_signals() -> Result<Stop, Failure> {
        let stop = Stop::default();
        let told = stop.clone();
        // SIGHUP is left alone: `nohup` asks to be left alone by it.
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
                // If it stays, the next run of that name overwrites it.
                let _ = std::fs::remove_file(part);
            }
            std::process::exit(code.into());
        }
        state.code = Some(code);
        if let Some(cancel) = &state.cancel {
            cancel.cancel();
        }
    }

    /// This is to be ended; at once, if a signal came before.
    pub fn cancels(&self, cancel: Cancel) {
        let mut state = self.lock();
        if state.code.is_some() {
            cancel.cancel();
        }
        state.cancel = Some(cancel);
    }

    /// This file is nobody's before it has its name.
    pub fn removes(&self, part: &Path) {
        self.lock().part = Some(part.to_owned());
    }

    /// The exit code, if a signal came.
    pub fn code(&self) -> Option<u8> {
        self.lock().code
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
