//! Memory of the program that is pinned: how it becomes so, and how it goes when its owner has.

use std::sync::Arc;

use super::elsewhere::is_host_func;
use super::registered::{Left, Registered, free, unpin};
use super::runtime::Runtime;
use super::telling::Place;
use super::undone::Undone;
use super::vector::Vector;
use crate::error::{Error, Result};

impl Runtime {
    /// Pins memory of the program, after what nobody needs any more is unpinned.
    ///
    /// # Errors
    /// What the driver answers, or that a function on the host asked for it.
    pub(crate) fn pin(self: &Arc<Self>, vector: &Vector, size_bytes: u64, at: Place) -> Result<()> {
        self.check()?;
        if is_host_func() {
            return Err(in_host_func("register"));
        }
        self.registered.sweep(self, at)?;
        if size_bytes == 0 {
            return Ok(());
        }
        // SAFETY: the vector is there; whoever holds it frees it or gives it away after `unpin`.
        let register = || unsafe { self.backend.register(vector.address(), size_bytes) };
        self.seen(self.beside_captures(register))
    }

    /// Unpins it.
    ///
    /// # Safety
    /// It was pinned, and all its uses are over.
    pub(crate) unsafe fn unpin(&self, vector: &Vector, size_bytes: u64) {
        // SAFETY: the caller's promise.
        unsafe { unpin(&*self.backend, vector, size_bytes) };
    }

    /// Whether memory may be given back to the program.
    ///
    /// # Errors
    /// If it is not the program's, a function on the host asks, or the device is lost.
    pub(crate) fn may_unpin(&self, is_registered: bool) -> Result<()> {
        self.check()?;
        if !is_registered {
            return Err(Error::Invalid {
                call: "into_vec",
                why: "the memory was not registered, so that it is no vector; copy the values out"
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
    /// Unpins and frees what nobody uses any more. Waits for no work.
    fn sweep(&self, runtime: &Arc<Runtime>, at: Place) -> Result<()> {
        // Without tracking nobody knows what is over.
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

    /// Unpins and frees all of it, once its uses are over.
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
