//! The native stack of a thread, copied while an access is recorded: it is followed later, when there is time.

use crate::system;

/// The most bytes of a stack that are copied.
const ROOM: usize = 6 << 10;

/// The registers from which a stack is followed.
#[derive(Clone, Copy)]
pub struct Registers {
    /// The program counter.
    pub pc: usize,
    /// The stack pointer.
    pub sp: usize,
    /// The frame pointer.
    pub fp: usize,
    /// On ARM, the return address of a function that has not stored it; else zero.
    pub lr: usize,
}

/// The stack of a thread at an access.
#[derive(Clone, Copy)]
pub struct Stack {
    /// As in [`Registers`], as are the next ones.
    pub pc: usize,
    /// The stack pointer: the address of the first byte that was copied.
    pub sp: usize,
    /// The frame pointer.
    pub fp: usize,
    /// On ARM, the return address of a function that has not stored it; else zero.
    pub lr: usize,
    count: usize,
    bytes: [u8; ROOM],
}

impl Stack {
    pub(crate) const NONE: Stack = Stack {
        pc: 0,
        sp: 0,
        fp: 0,
        lr: 0,
        count: 0,
        bytes: [0; ROOM],
    };

    /// Returns the word at an address, if it was copied.
    pub fn word(&self, at: usize) -> Option<usize> {
        let from = at.checked_sub(self.sp)?;
        let bytes = self.bytes[..self.count].get(from..)?.first_chunk()?;
        Some(usize::from_ne_bytes(*bytes))
    }

    /// Sets the registers, and copies what the stack pointer points to, up to the end of the stack, if that is wanted.
    pub(crate) fn read(&mut self, at: Registers, whole: bool) {
        (self.pc, self.sp, self.fp, self.lr) = (at.pc, at.sp, at.fp, at.lr);
        self.count = if whole {
            system::read_some(at.sp, &mut self.bytes)
        } else {
            0
        };
    }
}
