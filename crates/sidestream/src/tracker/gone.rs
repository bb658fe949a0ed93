//! Memory that was returned to the driver or to the program, with its last uses.
//!
//! All of these uses are complete, and the thread that returned the memory has observed their completion. Another
//! thread that gets memory at the same address has not observed it: none of its calls shows the order. A completed use
//! needs no wait on the device, but the log has to show why there is no race. So, while a sink is attached, the uses
//! are passed on with the memory, and its next owner is ordered after them like after the uses of any previous owner.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::uses::Conflicts;
use crate::backend::Address;

/// Returned memory, the most recent last.
#[derive(Default)]
pub(crate) struct Gone(Mutex<VecDeque<Range>>);

struct Range {
    start: u64,
    end: u64,
    uses: Conflicts,
}

/// The maximum number of ranges that are remembered.
const REMEMBERED: usize = 4096;

impl Gone {
    /// Notes memory that is about to be returned and whose uses are all complete. Call it before the memory is
    /// returned, since another thread may get the memory at once.
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

    /// Returns the earlier uses of memory that was allocated again; its new owner has to be ordered after them.
    pub(crate) fn come_again(&self, at: Address, size_bytes: u64) -> Conflicts {
        let (start, end) = (at.0, at.0 + size_bytes);
        let mut before = Conflicts::new();
        self.0.lock().retain_mut(|gone| {
            if gone.start < end && start < gone.end {
                before.extend(gone.uses.iter().cloned());
            }
            // A range with a part outside of this memory stays: that part may be allocated again later.
            !(start <= gone.start && gone.end <= end)
        });
        before
    }

    /// Forgets all ranges: the machine has no owner left that could get any of the memory.
    pub(crate) fn clear(&mut self) {
        self.0.get_mut().clear();
    }
}
