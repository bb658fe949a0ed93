//! Device work that is not an operator: Triton and CuPy kernels, and collectives. Python describes their arguments.

use std::cell::Cell;
use std::collections::HashMap;

use pyo3::prelude::*;

use super::Recorder;
use super::plan::Touched;
use super::spine::{Core, Site};
use super::streams::{COLLECTIVES, RawStream};
use super::touch::Touch;
use super::{stores, ttir};

thread_local! {
    /// The number of nested calls in this thread whose operators are reported as one.
    static MUTED: Cell<u32> = const { Cell::new(0) };
}

/// Whether this thread is in such a call.
#[inline]
pub fn is_muted() -> bool {
    MUTED.get() > 0
}

/// An argument: a tensor, or an address with a size and a device; whether it is read and written; and its name if
/// less than all of it may be touched.
type Given<'py> = (Bound<'py, PyAny>, bool, bool, Option<String>);

#[pymethods]
impl Recorder {
    /// From here on, the operators that this thread calls are not reported singly.
    #[staticmethod]
    fn mute() {
        MUTED.set(MUTED.get() + 1);
    }

    /// The operators are reported one by one again.
    #[staticmethod]
    fn unmute() {
        MUTED.set(MUTED.get().saturating_sub(1));
    }

    /// A kernel was launched, on the current stream if none is given. `stored` are byte ranges of tensors that the
    /// kernel certainly writes; `uses_each` says that it certainly touches some byte of each argument.
    #[pyo3(signature = (name, given, stream=None, stored=Vec::new(), uses_each=false))]
    fn launched(
        &self,
        py: Python<'_>,
        name: &str,
        given: Vec<Given<'_>>,
        stream: Option<(u32, u64)>,
        stored: Vec<(Bound<'_, PyAny>, i64, i64)>,
        uses_each: bool,
    ) -> PyResult<()> {
        if !self.is_on() {
            return Ok(());
        }
        let mut touched = self.given(given, uses_each);
        // The stored ranges come after the accesses to whole tensors: the report of a race then shows the certain
        // range.
        for (tensor, start, end) in stored {
            if let Some(touch) = self.torch.asked.touch(&tensor, true) {
                let [ptr, end] = [start, end].map(|by| touch.ptr.saturating_add_signed(by));
                touched
                    .touches
                    .push(Touch::of(ptr, end, touch.device, true));
                touched.tensors.push(tensor);
            }
        }
        let Some(device) = touched.device() else {
            return Ok(());
        };
        self.leave_foreign(&mut touched);
        let stream = match stream {
            Some((device, raw)) => RawStream { device, raw },
            None => self.torch.stream(py, device),
        };
        let site = self.named(py, name);
        // Accesses to pointers inside structures, or to addresses that the kernel loads, are not reported: a wait may
        // be needed for them.
        self.core.lock().noticed.has_unseen = true;
        self.enqueued(py, (site, stream), &touched, false, false)
    }

    /// A collective of a group was called: its work is complete for those that wait for this event.
    fn collective(
        &self,
        py: Python<'_>,
        name: &str,
        given: Vec<Given<'_>>,
        group: u64,
        event: u64,
    ) -> PyResult<bool> {
        let mut touched = self.given(given, false);
        let Some(device) = touched.device().filter(|_| self.is_on()) else {
            return Ok(false);
        };
        self.leave_foreign(&mut touched);
        let current = self.torch.stream(py, device);
        let own = RawStream::of(device, COLLECTIVES | group);
        let site = self.named(py, name);
        let found = self
            .core
            .lock()
            .collective(site, (current, own), &touched.touches, event);
        self.look(py, found, &touched.touches, &touched.tensors)?;
        Ok(true)
    }

    /// The current stream waits for a collective.
    fn collective_waited(&self, py: Python<'_>, event: u64) {
        if self.is_on() {
            let site = self.named(py, "Work.wait");
            let stream = self.torch.stream(py, self.torch.device(py));
            self.core.lock().event_wait(site, event, stream);
        }
    }

    /// The bytes that a Triton kernel certainly stores, from its intermediate representation: for each pointer its
    /// argument index, and the first and last offset. `names` are the argument names if they differ from those in the
    /// text.
    #[staticmethod]
    #[pyo3(signature = (text, grid, values, names=None))]
    fn stores(
        text: &str,
        grid: [u64; 3],
        values: HashMap<String, i64>,
        names: Option<Vec<String>>,
    ) -> Vec<(usize, i64, i64)> {
        stores::certain(text, grid, |at, name| {
            let own = names.as_ref().and_then(|names| names.get(at));
            values.get(own.map_or(name, String::as_str)).copied()
        })
    }

    /// What a Triton kernel does with its arguments, from its intermediate representation: the number of arguments,
    /// and for each pointer its index, its name, and whether it is loaded from and stored to. None if the text has no
    /// kernel.
    #[staticmethod]
    fn pointers(text: &str) -> Option<(usize, Vec<ttir::Pointer>)> {
        ttir::pointers(text)
    }
}

impl Recorder {
    fn given<'py>(&self, given: Vec<Given<'py>>, uses_each: bool) -> Touched<'py> {
        let mut touched = Touched::default();
        for (what, reads, writes, may) in given {
            let may = may.map(|name| self.names.lock().operator(name));
            for (does, write) in [(reads, false), (writes, true)] {
                let touch = match what.extract::<(u64, u64, i32)>() {
                    _ if !does => continue,
                    Ok((ptr, bytes, device)) => (ptr != 0 && bytes != 0)
                        .then(|| Touch::of(ptr, ptr.saturating_add(bytes), device, write)),
                    Err(_) => self.torch.asked.touch(&what, write),
                };
                if let Some(touch) = touch {
                    let any = may.is_none() || uses_each;
                    touched.touches.push(Touch { may, any, ..touch });
                    touched.tensors.push(what.clone());
                }
            }
        }
        touched
    }
}

impl Core {
    /// Reports a collective: it runs on the stream of its group, ordered after the work submitted to the current
    /// stream, until its event is waited for.
    pub fn collective(
        &mut self,
        site: Site,
        (current, group): (RawStream, RawStream),
        touches: &[Touch],
        event: u64,
    ) -> bool {
        self.wait_stream(site, group, current);
        let found = self.operator(site, group, touches, false);
        // PyTorch keeps the tensors alive, or records the stream for them, until the collective is complete.
        for touch in touches.iter().filter(|touch| touch.device >= 0) {
            self.record_stream(site, touch, group);
        }
        self.event_record(site, event, group);
        found
    }
}
