//! Copies, and the host memory that they use.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sidestream::op::{BufferId, Kind, Memory};

use super::Recorder;
use super::events::Done;
use super::idle::How;
use super::plan::{self, Class, Plan, Touched};
use super::spine::{Core, Site};
use super::streams::RawStream;
use super::touch::Touch;

impl Recorder {
    /// Reports an operator that runs on the host.
    pub(super) fn by_host(
        &self,
        py: Python<'_>,
        name: u32,
        touch: &Touch,
        tensor: &Bound<'_, PyAny>,
        site: &mut Option<Site>,
    ) -> PyResult<()> {
        if !self.is_tracked(touch, tensor) {
            return Ok(());
        }
        let site = *site.get_or_insert_with(|| self.site(py, name));
        let found = self.core.lock().host_access(site, touch);
        let (touches, tensors) = (std::slice::from_ref(touch), std::slice::from_ref(tensor));
        self.look(py, found, touches, tensors)
    }

    /// Whether copies use the host memory, and it still belongs to the same storage.
    fn is_tracked(&self, touch: &Touch, tensor: &Bound<'_, PyAny>) -> bool {
        let known = self
            .core
            .lock()
            .host
            .piece(touch.ptr)
            .map(|(_, piece)| piece.storage.0);
        let Some(known) = known else {
            return false;
        };
        let same = self.storage(tensor).is_some_and(|(_, at)| at.2 == known);
        if !same {
            self.forget(tensor.py(), touch.ptr, touch.end);
        }
        same
    }

    /// The storage of a tensor: its first and last address, and its identity.
    pub(super) fn storage<'py>(
        &self,
        tensor: &Bound<'py, PyAny>,
    ) -> Option<(Bound<'py, PyAny>, (u64, u64, u64))> {
        let storage = tensor
            .call_method0(intern!(tensor.py(), "untyped_storage"))
            .ok()?;
        let start: u64 = storage.call_method0("data_ptr").ok()?.extract().ok()?;
        let bytes: u64 = storage.call_method0("nbytes").ok()?.extract().ok()?;
        let who: u64 = storage.getattr("_cdata").ok()?.extract().ok()?;
        Some((storage, (start, start.saturating_add(bytes), who)))
    }

    pub(super) fn forget(&self, py: Python<'_>, start: u64, end: u64) {
        let gone = {
            let mut core = self.core.lock();
            core.host.watch.gone(start, end);
            core.host.forget(start, end)
        };
        if let Some(class) = storages(py) {
            for weak in gone {
                let _gone = class.call_method1("_free_weak_ref", (weak,));
            }
        }
    }

    /// Host memory is used in an asynchronous copy: from here on, the host's own uses of it are reported.
    fn track(&self, touch: &Touch, tensor: &Bound<'_, PyAny>) -> Option<Memory> {
        if self.is_tracked(touch, tensor) {
            let core = self.core.lock();
            return core.host.piece(touch.ptr).map(|(_, piece)| piece.memory);
        }
        if self.core.lock().host.is_full() {
            return None;
        }
        let memory = if self.torch.asked.is_pinned(tensor) {
            Memory::Pinned
        } else {
            Memory::Pageable
        };
        let (storage, (start, end, who)) = self.storage(tensor)?;
        let weak: u64 = storage.call_method0("_weak_ref").ok()?.extract().ok()?;
        self.forget(tensor.py(), start, end);
        self.forget_the_dead(tensor.py());
        self.core
            .lock()
            .host_buffer(start, end, memory, (who, weak));
        self.keep_storage(&storage, (start, end, who));
        Some(memory)
    }

    /// Periodically forgets storages that are gone.
    fn forget_the_dead(&self, py: Python<'_>) {
        let all = {
            let core = self.core.lock();
            let all = core.host.storages();
            if all.len() % 1024 != 1023 {
                return;
            }
            all.collect::<Vec<_>>()
        };
        let Some(class) = storages(py) else {
            return;
        };
        for (start, weak) in all {
            let expired = class.call_method1("_expired", (weak,));
            if expired.is_ok_and(|answer| answer.is_truthy().unwrap_or(false)) {
                self.forget(py, start, start + 1);
            }
        }
    }

    /// Reports an operator that copies one tensor or several.
    pub(super) fn copies<'py>(
        &self,
        plan: &Plan,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        result: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = args.py();
        let is_to = plan.class == Class::ToCopy;
        let at = if is_to { usize::MAX } else { 2 };
        let free = plan::value(at, intern!(py, "non_blocking"), args, kwargs)
            .is_some_and(|value| value.is_truthy().unwrap_or(false));
        let first = args.get_item(0)?;
        if is_to {
            return self.copy(plan, result, &first, free);
        }
        let Some(source) = plan::value(1, intern!(py, "src"), args, kwargs) else {
            return Ok(());
        };
        if plan.class == Class::Copy {
            return self.copy(plan, &first, &source, free);
        }
        for (target, source) in first.try_iter()?.zip(source.try_iter()?) {
            self.copy(plan, &target?, &source?, free)?;
        }
        Ok(())
    }

    /// Reports a copy in any direction.
    fn copy<'py>(
        &self,
        plan: &Plan,
        target: &Bound<'py, PyAny>,
        source: &Bound<'py, PyAny>,
        free: bool,
    ) -> PyResult<()> {
        let py = target.py();
        let asked = &self.torch.asked;
        let (read, written) = (asked.touch(source, false), asked.touch(target, true));
        let (Some(read), Some(written)) = (read, written) else {
            return Ok(());
        };
        let from = read.device;
        let (low, device) = (from.min(written.device), from.max(written.device));
        let mut all = Touched {
            touches: vec![read, written],
            tensors: vec![source.clone(), target.clone()],
        };
        self.leave_foreign(&mut all);
        let Ok([read, written]) = <[Touch; 2]>::try_from(all.touches) else {
            // The bytes that the copy touches are unknown, but the host waits for the copy.
            if !free && low < 0 {
                let stream = self.torch.stream(py, device as u32);
                let site = self.site(py, plan.name);
                self.compare(py, super::host::ALL, || site)?;
                let how = How::of_copy(from >= 0);
                self.core.lock().done(site, Done::Stream(stream), Some(how));
            }
            return Ok(());
        };
        let site = self.site(py, plan.name);
        let touches = [read, written];
        let tensors = [source.clone(), target.clone()];
        let (from, to) = (touches[0].device, touches[1].device);
        let found = match (from >= 0, to >= 0) {
            (false, false) => {
                for (touch, tensor) in touches.iter().zip(&tensors) {
                    self.by_host(py, plan.name, touch, tensor, &mut Some(site))?;
                }
                return Ok(());
            }
            (true, true) => {
                let [source, target] = [from, to].map(|at| self.torch.stream(py, at as u32));
                let mut core = self.core.lock();
                if from == to {
                    core.operator(site, target, &touches, false)
                } else {
                    core.copy_across(site, (source, target), &touches)
                }
            }
            (on_device, _) => {
                let host = usize::from(on_device);
                let (host, tensor) = (&touches[host], &tensors[host]);
                let stream = self.torch.stream(py, from.max(to) as u32);
                let direct = asked.is_direct((target, source), host, free);
                let memory = if free && direct {
                    self.track(host, tensor)
                } else {
                    let is_tracked = self.is_tracked(host, tensor);
                    is_tracked.then_some(Memory::Pinned)
                };
                // SAFETY: the tensor is alive, so its storage is, and `keep_storage` ensures that its end is reported.
                unsafe {
                    self.to_or_from_host(py, (site, stream), &touches, memory, (direct, free))?
                }
            }
        };
        self.look(py, found, &touches, &tensors)
    }

    /// Reports a copy between host and device. `memory` is the kind of the host's, if it is tracked; `direct` says
    /// whether the copy uses it itself, and `free` whether the caller goes on. Returns whether something was found.
    ///
    /// # Safety
    /// As for [`Watch::copy`](super::host::Watch::copy).
    pub(super) unsafe fn to_or_from_host(
        &self,
        py: Python<'_>,
        (site, stream): (Site, RawStream),
        touches: &[Touch; 2],
        memory: Option<Memory>,
        (direct, free): (bool, bool),
    ) -> PyResult<bool> {
        let on_device = touches[0].device >= 0;
        let host = &touches[usize::from(on_device)];
        let asynchronous = free && direct;
        let waits = !asynchronous && (on_device || !free);
        if on_device {
            self.core.lock().host.watch.drop_kept(host.ptr, host.end);
        }
        if waits {
            self.compare(py, super::host::ALL, || site)?;
        } else if asynchronous && !on_device {
            // The bytes that an earlier copy left here are compared before they are recorded again.
            self.compare(py, (host.ptr, host.end), || site)?;
        }
        let mut core = self.core.lock();
        let mut found = false;
        if !direct && !on_device && memory.is_some() {
            found |= core.host_access(site, host);
        }
        let known = core.host.locate(host.ptr);
        let known = known.filter(|_| memory.is_some() && (direct || on_device));
        let kind = match (memory.unwrap_or(Memory::Pinned), on_device) {
            (memory, true) => (Memory::Device, memory),
            (memory, false) => (memory, Memory::Device),
        };
        found |= core.copy(site, stream, kind, touches, known);
        if let (true, Some(memory), Some((buffer, _))) = (asynchronous, memory, known) {
            let id = core.stream(stream);
            let at = (id, core.findings.steps(id));
            core.noticed.idle.copied(buffer, at, on_device);
            // SAFETY: the caller guarantees it.
            unsafe { core.watch_copy(stream, memory, host) };
        }
        if waits {
            let how = Some(How::of_copy(on_device));
            core.done(site, Done::Stream(stream), how);
        }
        Ok(found)
    }
}

/// PyTorch's class of storages.
fn storages(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    py.import("torch").ok()?.getattr("UntypedStorage").ok()
}

impl Core {
    /// Reports a copy between the host and a device.
    pub fn copy(
        &mut self,
        site: Site,
        stream: RawStream,
        (from, to): (Memory, Memory),
        touches: &[Touch; 2],
        host: Option<(BufferId, u64)>,
    ) -> bool {
        self.operations += 1;
        if self.graphs.captured(touches, None) {
            return false;
        }
        let stream = self.stream(stream);
        self.put(touches, site);
        let mut on_host = touches.iter().filter(|touch| touch.device < 0);
        if let (Some((buffer, base)), Some(touch)) = (host, on_host.next()) {
            let accesses = &mut self.feed.op.accesses;
            self.notes.add(accesses, touch, buffer, base);
        }
        self.push(Kind::Copy { stream, from, to }, site);
        self.found()
    }

    /// Reports a copy from one device to another: it runs on the source's stream, and both streams wait for each
    /// other before and after it.
    pub fn copy_across(
        &mut self,
        site: Site,
        (source, target): (RawStream, RawStream),
        touches: &[Touch],
    ) -> bool {
        self.wait_stream(site, source, target);
        let found = self.operator(site, source, touches, false);
        self.wait_stream(site, target, source);
        found
    }

    pub(super) fn wait_stream(&mut self, site: Site, stream: RawStream, source: RawStream) {
        let (stream, source) = (self.stream(stream), self.stream(source));
        if !self.is_capturing() {
            self.tell(Kind::WaitStream { stream, source }, site);
        }
    }
}
