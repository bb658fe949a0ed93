//! Pinning memory of the program, and unpinning it when its owner is gone.

use std::sync::Arc;

use super::elsewhere::is_host_func;
use super::registered::{Left, Registered, free, unpin};
use super::runtime::Runtime;
use super::telling::Place;
use super::undone::Undone;
use super::vector::Vector;
use crate::error::{Error, Result};

impl Runtime {
    /// Pins memory of the program, after unpinning memory that is no longer needed.
    ///
    /// # Errors
    /// Any error that the driver returns, or that a function on the host made the call.
    pub(crate) fn pin(self: &Arc<Self>, vector: &Vector, size_bytes: u64, at: Place) -> Result<()> {
        self.check()?;
        if is_host_func() {
            return Err(in_host_func("register"));
        }
        self.registered.sweep(self, at)?;
        if size_bytes == 0 {
            return Ok(());
        }
        // SAFETY: the vector is allocated; its owner frees it or gives it away only after `unpin`.
        let register = || unsafe { self.backend.register(vector.address(), size_bytes) };
        self.seen(self.beside_captures(register))
    }

    /// Unpins memory.
    ///
    /// # Safety
    /// The memory was pinned, and all its uses are complete.
    pub(crate) unsafe fn unpin(&self, vector: &Vector, size_bytes: u64) {
        // SAFETY: the caller's promise.
        unsafe { unpin(&*self.backend, vector, size_bytes) };
    }

    /// Checks that memory may be given back to the program.
    ///
    /// # Errors
    /// If the memory is not registered, a function on the host made the call, or the device is lost.
    pub(crate) fn may_unpin(&self, is_registered: bool) -> Result<()> {
        self.check()?;
        if !is_registered {
            return Err(Error::Invalid {
                call: "into_vec",
                why: "the memory was not registered and therefore is not a vector; copy the values out"
                    .into(),
            });
        }
        match is_host_func() {
            true => Err(in_host_func("into_vec")),
            false => Ok(()),
        }
    }
}

impl Registered {
    /// Unpins and frees memory that is no longer used. Does not wait for work.
    fn sweep(&self, runtime: &Arc<Runtime>, at: Place) -> Result<()> {
        // Without tracking it is unknown which uses are complete.
        if !runtime.is_tracking || runtime.refuse_to_give_back().is_err() {
            return Ok(());
        }
        self.each(runtime, |left| {
            for mark in left.uses.marks() {
                if !runtime.query(mark, at)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Unpins and frees all of the memory, once its uses are complete.
    ///
    /// # Errors
    /// The error of work that failed on the device.
    pub(crate) fn empty(&self, runtime: &Arc<Runtime>, at: Place) -> Result<()> {
        if !runtime.is_tracking || is_host_func() {
            return Ok(());
        }
        runtime.refuse_to_give_back()?;
        self.each(runtime, |left| {
            let mut marks = left.uses.marks().iter();
            marks.try_for_each(|mark| runtime.synchronize(mark, at))?;
            Ok(true)
        })
    }

    fn each(&self, runtime: &Arc<Runtime>, is_over: impl Fn(&Left) -> Result<bool>) -> Result<()> {
        let mut result = Ok(());
        let left = std::mem::take(&mut *self.left.lock());
        let mut rest = Undone::new(&self.left, left.into_iter());
        while let Some(left) = rest.next() {
            let asked = is_over(left);
            let Some(left) = rest.take() else { break };
            match asked {
                Ok(true) => {
                    let Left {
                        vector,
                        size_bytes,
                        uses,
                    } = left;
                    if runtime.live.is_on() {
                        let gone = &runtime.pinned.gone;
                        gone.note(vector.address(), size_bytes, uses.into_marks());
                    }
                    free(&*runtime.backend, vector, size_bytes);
                }
                Ok(false) => self.left.lock().push(left),
                Err(error) => {
                    self.left.lock().push(left);
                    result = Err(error);
                }
            }
        }
        result
    }
}

fn in_host_func(call: &'static str) -> Error {
    Error::Invalid {
        call,
        why: "a function on the host may not call the driver; do it on a thread of the program"
            .into(),
    }
}
