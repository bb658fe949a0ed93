//! Drives the recorder by hand, with made-up addresses, for tests. It exists only in builds with the feature `drive`.
//! Its Python side is `tests/driven.py`.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use sidestream::op::Memory;

use super::Recorder;
use super::streams::RawStream;
use super::touch::Touch;

/// An address and a size.
type Range = (u64, u64);

fn touch((ptr, bytes): Range, write: bool, device: i32) -> Touch {
    Touch::of(ptr, ptr.saturating_add(bytes), device, write)
}

#[pymethods]
impl Recorder {
    /// An operator on a stream reads and writes some bytes. A matrix product uses cuBLAS's workspace, too.
    #[pyo3(signature = (name, reads, writes, stream, device=0, *, product=false))]
    #[expect(clippy::too_many_arguments, reason = "an operator has this many")]
    fn operator(
        &self,
        py: Python<'_>,
        name: &str,
        reads: Vec<Range>,
        writes: Vec<Range>,
        stream: u64,
        device: u32,
        product: bool,
    ) -> PyResult<()> {
        let on = device as i32;
        let reads = reads.into_iter().map(|range| touch(range, false, on));
        let writes = writes.into_iter().map(|range| touch(range, true, on));
        let all: Vec<Touch> = reads.chain(writes).collect();
        let raw = RawStream::of(device, stream);
        let site = self.named(py, name);
        let found = self.core.lock().operator(site, raw, &all, product);
        self.look(py, found, &[], &[])
    }

    /// `tensor.record_stream(stream)`.
    #[pyo3(signature = (ptr, bytes, stream, device=0))]
    fn record_stream(&self, py: Python<'_>, ptr: u64, bytes: u64, stream: u64, device: u32) {
        let raw = RawStream::of(device, stream);
        let site = self.named(py, "record_stream");
        let touch = touch((ptr, bytes), false, device as i32);
        self.core.lock().record_stream(site, &touch, raw);
    }

    /// Host memory that copies use.
    fn host_memory(&self, ptr: u64, bytes: u64, pinned: bool) {
        let memory = if pinned {
            Memory::Pinned
        } else {
            Memory::Pageable
        };
        let end = ptr.saturating_add(bytes);
        let mut core = self.core.lock();
        core.host.watch.gone(ptr, end);
        core.host.forget(ptr, end);
        core.host_buffer(ptr, end, memory, (0, 0));
    }

    /// A copy of some bytes from host memory to a device's, or back.
    #[pyo3(signature = (name, host, memory, bytes, upload, stream, device=0))]
    #[expect(clippy::too_many_arguments, reason = "a copy has this many")]
    fn host_copy(
        &self,
        py: Python<'_>,
        name: &str,
        host: u64,
        memory: u64,
        bytes: u64,
        upload: bool,
        stream: u64,
        device: u32,
    ) -> PyResult<()> {
        let raw = RawStream::of(device, stream);
        let site = self.named(py, name);
        let mut all = [
            touch((host, bytes), !upload, -1),
            touch((memory, bytes), upload, device as i32),
        ];
        if !upload {
            all.reverse();
        }
        let known = self
            .core
            .lock()
            .host
            .piece(host)
            .map(|(_, piece)| piece.memory);
        // SAFETY: the test keeps the memory.
        let found = unsafe { self.to_or_from_host(py, (site, raw), &all, known, (true, true))? };
        self.look(py, found, &[], &[])
    }

    /// A copy from one device to another on their streams.
    #[pyo3(signature = (source, target, bytes, source_stream, target_stream, devices))]
    #[expect(clippy::too_many_arguments, reason = "a copy has this many")]
    fn device_copy(
        &self,
        py: Python<'_>,
        source: u64,
        target: u64,
        bytes: u64,
        source_stream: u64,
        target_stream: u64,
        devices: (u32, u32),
    ) -> PyResult<()> {
        let site = self.named(py, "copy_");
        let (from, to) = devices;
        let all = [
            touch((source, bytes), false, from as i32),
            touch((target, bytes), true, to as i32),
        ];
        let streams = (
            RawStream::of(from, source_stream),
            RawStream::of(to, target_stream),
        );
        let found = self.core.lock().copy_across(site, streams, &all);
        self.look(py, found, &[], &[])
    }

    /// The host reads or writes memory that copies use.
    fn host_access(
        &self,
        py: Python<'_>,
        name: &str,
        ptr: u64,
        bytes: u64,
        write: bool,
    ) -> PyResult<()> {
        let site = self.named(py, name);
        let touch = touch((ptr, bytes), write, -1);
        let found = self.core.lock().host_access(site, &touch);
        self.look(py, found, &[], &[])
    }

    /// Where the CPU plays the role of the device: the work that follows runs on this stream.
    fn pretend_stream(&self, stream: u64) {
        self.torch.pretended.store(stream, Ordering::Relaxed);
    }

    /// Where the CPU plays the role of the device: these bytes count as pinned host memory.
    fn pretend_pinned(&self, ptr: u64, bytes: u64) {
        let mut all = self.torch.asked.pretended_pinned.lock();
        all.push((ptr, ptr.saturating_add(bytes)));
    }
}
