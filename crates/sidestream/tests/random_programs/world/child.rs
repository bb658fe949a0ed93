//! A fork in the middle of a program: every call of the child is refused, and its drops have no effect.

use super::World;

#[cfg(not(all(unix, not(miri))))]
impl World {
    pub(super) fn fork(&self) {}
}

#[cfg(all(unix, not(miri)))]
impl World {
    pub(super) fn fork(&self) {
        let status = forks::child(|| self.is_refused());
        if status != 0 {
            self.wrong(format!(
                "a child of a fork ended with {status}: a signal in the low byte, what it tried above"
            ));
        }
    }

    /// Runs in the child and returns 0 if all is as expected, otherwise a number that identifies the failure. Locks
    /// of the test itself may stay locked forever there.
    fn is_refused(&self) -> i32 {
        use std::sync::atomic::Ordering::Relaxed;

        use super::callbacks::WRITTEN;
        use forks::is_refused;

        let before = (self.faults.calls(), WRITTEN.load(Relaxed));
        let mut answers = Vec::new();
        let lines = self.lines.try_lock().map(|lines| lines.clone());
        for line in lines.into_iter().flatten() {
            let stream = &line.stream;
            answers.extend([
                is_refused(stream.synchronize()),
                is_refused(stream.query()),
                is_refused(stream.record_event()),
                is_refused(stream.alloc::<u32>(4)),
                is_refused(stream.wait_stream(stream)),
                is_refused(stream.host_func(1, |_| ())),
            ]);
        }
        for device in &self.all {
            answers.extend([
                is_refused(device.synchronize()),
                is_refused(device.stream("new")),
                is_refused(device.pinned::<u32>(4)),
                is_refused(device.empty_cache()),
            ]);
            let _ = (device.statistics(), device.pinned_statistics());
            drop(device.span("span"));
        }
        for other in self.others.try_lock().into_iter().flat_map(|o| o.clone()) {
            let stream = other.stream();
            answers.extend([
                is_refused(stream.synchronize()),
                is_refused(stream.query()),
                stream.begin_capture().is_err(),
                is_refused(stream.malloc_async(8)),
            ]);
        }
        for event in self.events.try_lock().into_iter().flat_map(|e| e.clone()) {
            answers.extend([is_refused(event.query()), is_refused(event.synchronize())]);
        }
        let slots = self.slots.iter().filter_map(|slot| slot.try_write());
        slots.for_each(|mut slot| drop(slot.take()));
        let graphs = self.graphs.iter().filter_map(|graph| graph.try_lock());
        graphs.for_each(|mut graph| drop(graph.take()));
        empty(&self.flying);
        empty(&self.timed);
        empty(&self.events);
        empty(&self.idle);
        empty(&self.others);
        empty(&self.lines);
        empty(&self.recordings);
        match answers.iter().position(|is_refused| !is_refused) {
            Some(at) => at as i32 + 3,
            None if before.0 != self.faults.calls() => 1,
            None if before.1 != WRITTEN.load(Relaxed) => 2,
            None => 0,
        }
    }
}

/// Drops the contents of a list, unless its lock was taken.
#[cfg(all(unix, not(miri)))]
fn empty<T>(list: &parking_lot::Mutex<Vec<T>>) {
    if let Some(mut list) = list.try_lock() {
        list.clear();
    }
}

#[cfg(all(unix, not(miri)))]
mod forks {
    use std::ffi::c_int;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use sidestream::error::{Error, Result};

    unsafe extern "C" {
        fn fork() -> c_int;
        fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn alarm(seconds: u32) -> u32;
        fn _exit(status: c_int) -> !;
    }

    pub fn child(act: impl FnOnce() -> c_int) -> c_int {
        // SAFETY: as in the tests of `fork`: the child calls only what is tested, and exits without running anything
        // of its parent's.
        unsafe {
            let process = fork();
            if process == 0 {
                alarm(20);
                _exit(catch_unwind(AssertUnwindSafe(act)).unwrap_or(255));
            }
            let mut status = -1;
            assert_eq!(waitpid(process, &raw mut status, 0), process);
            status
        }
    }

    pub fn is_refused<T, E: Into<Error>>(answer: Result<T, E>) -> bool {
        let answer = answer.map_err(Into::into);
        matches!(answer, Err(Error::Refused { call, .. }) if call == "a call in a forked process")
    }
}
