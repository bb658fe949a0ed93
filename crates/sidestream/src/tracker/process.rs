//! Access to the back end for the process that opened the machine, but not for its forked children.
//!
//! A child of a fork has copies of all handles but none of the other threads: a lock that another thread held stays
//! locked, and the driver does not work. So in a child every call is refused before it takes a lock, and a drop does
//! nothing. [`Here`] is the runtime's only access to the back end, and gives no access in a child.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Address, Backend, Caps, Code, Create, Destroy, Done, Payload, Reserve};
use crate::error::{Error, Result};
use crate::op::{DeviceId, EventId, Memory, Op, StreamId};
use crate::process::Process;

/// The back end, for the process that opened it. In a forked child it acts as a back end that refuses every call, and
/// the real one is never touched again.
pub(crate) struct Here {
    backend: ManuallyDrop<Arc<dyn Backend>>,
    process: Process,
}

impl Here {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Here {
        Here {
            backend: ManuallyDrop::new(backend),
            process: Process::this(),
        }
    }

    /// Returns false in a child.
    #[inline]
    pub(crate) fn is_this_process(&self) -> bool {
        self.process.is_this()
    }

    /// Returns an error in a child.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_this_process() {
            Ok(())
        } else {
            Err(forked())
        }
    }

    /// Returns the devices, as found when the machine was opened.
    pub(crate) fn devices(&self) -> &[Caps] {
        self.backend.devices()
    }

    /// Returns the back end itself; the caller has checked that this is its process.
    pub(crate) fn handle(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }
}

impl Deref for Here {
    type Target = dyn Backend;

    #[inline]
    fn deref(&self) -> &(dyn Backend + 'static) {
        if self.is_this_process() {
            &**self.backend
        } else {
            &Gone
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if self.is_this_process() {
            // SAFETY: the owner of the back end is being dropped, so the back end is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.backend) };
        }
    }
}

#[cold]
fn forked() -> Error {
    Error::Refused {
        call: "a call in a forked process",
        // `CUDA_ERROR_NOT_INITIALIZED`, as CUDA returns in a forked child.
        code: 3,
        why: "the device was opened before the fork, and a child has neither the threads nor the driver of its \
              parent; use it in the process that opened it, or start this process without forking (in \
              Python: multiprocessing's method \"spawn\")"
            .into(),
    }
}

/// The back end of a child: it refuses every request, and frees nothing.
struct Gone;

// SAFETY: this back end reserves nothing, and does nothing with its arguments.
unsafe impl Backend for Gone {
    fn devices(&self) -> &[Caps] {
        &[]
    }

    unsafe fn create(&self, _: Create<'_>) -> Result<()> {
        Err(forked())
    }

    unsafe fn destroy(&self, _: Destroy) {}

    fn reserve(&self, _: Reserve) -> Result<Address> {
        Err(forked())
    }

    unsafe fn unreserve(&self, _: Memory, _: DeviceId, _: Address) {}

    unsafe fn register(&self, _: Address, _: u64) -> Result<()> {
        Err(forked())
    }

    unsafe fn unregister(&self, _: Address) {}

    fn prepare(&self, _: DeviceId, _: &Arc<Code>) -> Result<()> {
        Err(forked())
    }

    unsafe fn submit(&self, _: &Op, _: Payload<'_>) -> Result<()> {
        Err(forked())
    }

    fn query(&self, _: &Op) -> Result<bool> {
        Err(forked())
    }

    fn peek(&self, _: &Op) -> Result<bool> {
        Err(forked())
    }

    fn wait(&self, _: &Op, _: Duration) -> Result<bool> {
        Err(forked())
    }

    fn elapsed_ns(&self, _: EventId, _: EventId) -> Result<f64> {
        Err(forked())
    }

    fn keep_times(&self, _: bool) {}

    fn take_times(&self, _: &mut Vec<Done>) {}

    fn raw_stream(&self, _: StreamId) -> Option<u64> {
        None
    }
}
