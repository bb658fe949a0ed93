//! The current context of a thread while it calls the driver.

use std::cell::Cell;

use super::Machine;
use crate::cuda::driver::{CuContext, Driver, STREAM_PER_THREAD, SUCCESS};
use crate::cuda::streams::Stream;
use crate::op::{DeviceId, ThreadId};

thread_local! {
    /// The machine for which this thread is known to have a context.
    static BOUND: Cell<u64> = const { Cell::new(0) };
}

/// Makes a device's context current as long as this value exists.
pub(super) struct Current<'a>(Option<&'a Driver>);

impl<'a> Current<'a> {
    pub(super) fn push(driver: &'a Driver, context: CuContext) -> Current<'a> {
        // SAFETY: a primary context of this process, which is never released.
        let pushed = unsafe { (driver.cuCtxPushCurrent_v2)(context) };
        Current((pushed == SUCCESS).then_some(driver))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let Some(driver) = self.0 else { return };
        let mut popped = 0;
        // SAFETY: pops the context that was pushed; writes one handle.
        unsafe { (driver.cuCtxPopCurrent_v2)(&mut popped) };
    }
}

impl Machine {
    /// Ensures that the thread has some context.
    #[inline]
    pub(super) fn bind(&self) {
        if BOUND.get() != self.id {
            self.bind_for_the_first_time();
        }
    }

    #[cold]
    pub(super) fn bind_for_the_first_time(&self) {
        let driver = self.driver();
        let mut current = 0;
        // SAFETY: writes one handle; the context is a primary one, which is never released.
        unsafe {
            if (driver.cuCtxGetCurrent)(&mut current) != SUCCESS || current == 0 {
                (driver.cuCtxSetCurrent)(self.devices[0]);
            }
        }
        BOUND.set(self.id);
    }

    pub(super) fn on(&self, device: DeviceId) -> Current<'static> {
        Current::push(self.driver(), self.devices[device.0 as usize])
    }

    /// Makes the device current for its default streams, whose handles refer to the current context.
    #[inline]
    pub(super) fn for_default(&self, stream: &Stream) -> Option<Current<'static>> {
        (stream.handle() <= STREAM_PER_THREAD).then(|| self.on(stream.device()))
    }

    pub(super) fn current_device(&self, thread: ThreadId) -> DeviceId {
        let current = self.current.lock();
        current.get(&thread).copied().unwrap_or(DeviceId(0))
    }
}
