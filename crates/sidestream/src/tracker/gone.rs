//! Memory that went back to the driver or to the program, with its last uses.
//!
//! All of them are over, and whoever gave the memory back has seen that. Another thread may get it
//! again, at the same address, and has not: nothing that it called says so. What is over needs no
//! wait on the device, but the log has to say why it is no race. So, while somebody listens, the
//! uses come back with the memory, and whoever has it next stands behind them as behind those of any
//! owner before.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::uses::Conflicts;
use crate::backend::Address;

/// What went, the last at the end.
#[derive(Default)]
pub(crate) struct Gone(Mutex<VecDeque<Range>>);

struct Range {
    start: u64,
    end: u64,
    uses: Conflicts,
}

/// So many are remembered.
const REMEMBERED: usize = 4096;

impl Gone {
    /// Memory is about to go, and all these uses of it are over. To be called before it goes, since
    /// somebody may have it at once.
    pub(crate) fn note(&self, at: Address, size_bytes: u64, uses: Conflicts) {
        if uses.is_empty() {
            return;
        }
        let mut gone = self.0.lock();
        if gone.len() == REMEMBERED {
            gone.pop_front();
        }
        gone.push_back(Range {
            start: at.0,
            end: at.0 + size_bytes,
            uses,
        });
    }

    /// What memory that came again was used for before, as far as anybody has to know.
    pub(crate) fn come_again(&self, at: Address, size_bytes: u64) -> Conflicts {
        let (start, end) = (at.0, at.0 + size_bytes);
        let mut before = Conflicts::new();
        self.0.lock().retain_mut(|gone| {
            if gone.start < end && start < gone.end {
                before.extend(gone.uses.iter().cloned());
            }
            // What lies outside may come again as well, later.
            !(start <= gone.start && gone.end <= end)
        });
        before
    }

    /// Nobody is there to have any of it again.
    pub(crate) fn clear(&mut self) {
        self.0.get_mut().clear();
    }
}
