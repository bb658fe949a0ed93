//! Drives the recorder by hand, with made-up addresses, for tests. It exists only in builds with the feature `drive`.
//! Its Python side is `tests/driven.py`.

use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use sidestream::op::Memory;

use super::Recorder;
use super::events::Done;
use super::idle::How;
use super::streams::RawStream;
use super::touch::Touch;

/// Addresses and sizes.
type Ranges = Vec<(u64, u64)>;

fn touches(ranges: Ranges, write: bool, device: i32) -> impl Iterator<Item = Touch> {
    let range = move |(ptr, bytes)| Touch::of(ptr, u64::saturating_add(ptr, bytes), device, write);
    ranges.into_iter().map(range)
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
        reads: Ranges,
        writes: Ranges,
        stream: u64,
        device: u32,
        product: bool,
    ) -> PyResult<()> {
        let on = device as i32;
        let all: Vec<Touch> = touches(reads, false, on)
            .chain(touches(writes, true, on))
            .collect();
        let raw = RawStream::of(device, stream);
        let site = self.named(py, name);
        let found = self.core.lock().operator(site, raw, &all, product);
        self.look(py, found, &[], &[])
    }

    /// Memory from PyTorch's allocator that belongs to the stream.
    #[pyo3(signature = (ptr, stream, device=0))]
    fn allocated(&self, ptr: u64, stream: u64, device: u32) {
        let raw = RawStream::of(device, stream);
        self.core.lock().allocated(ptr, raw);
    }

    /// `tensor.record_stream(stream)`.
    #[pyo3(signature = (ptr, bytes, stream, device=0))]
    fn record_stream(&self, py: Python<'_>, ptr: u64, bytes: u64, stream: u64, device: u32) {
        let raw = RawStream::of(device, stream);
        let site = self.named(py, "record_stream");
        let touch = touches(vec![(ptr, bytes)], false, device as i32).next();
        if let Some(touch) = touch {
            self.core.lock().record_stream(site, &touch, raw);
        }
    }

    /// `torch.cuda.synchronize(device)`.
    #[pyo3(signature = (device=0))]
    fn device_synchronize(&self, py: Python<'_>, device: u32) {
        let how = Some(How::Stream);
        self.done(py, "torch.cuda.synchronize", Done::Device(device), how);
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
        let on_host = touches(vec![(host, bytes)], !upload, -1).next();
        let on_device = touches(vec![(memory, bytes)], upload, device as i32).next();
        let (Some(on_host), Some(on_device)) = (on_host, on_device) else {
            return Ok(());
        };
        if upload {
            self.compare(py, (on_host.ptr, on_host.end), || site)?;
        } else {
            self.core
                .lock()
                .host
                .watch
                .drop_kept(on_host.ptr, on_host.end);
        }
        let mut core = self.core.lock();
        let kind = core
            .host
            .piece(host)
            .map_or(Memory::Pinned, |(_, piece)| piece.memory);
        let known = core.host.locate(host);
        let (kinds, touches) = if upload {
            ((kind, Memory::Device), (&on_host, &on_device))
        } else {
            ((Memory::Device, kind), (&on_device, &on_host))
        };
        let found = core.copy(site, raw, kinds, touches, known);
        if known.is_some() {
            // SAFETY: the test keeps the memory.
            unsafe { core.watch_copy(raw, kind, &on_host) };
        }
        drop(core);
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
        let read = touches(vec![(source, bytes)], false, from as i32);
        let all: Vec<Touch> = read
            .chain(touches(vec![(target, bytes)], true, to as i32))
            .collect();
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
        let found = touches(vec![(ptr, bytes)], write, -1)
            .next()
            .is_some_and(|touch| self.core.lock().host_access(site, &touch));
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

    /// A captured graph is launched.
    #[pyo3(signature = (key, stream, device=0))]
    fn graph_launch(&self, py: Python<'_>, key: u64, stream: u64, device: u32) -> PyResult<()> {
        let raw = RawStream::of(device, stream);
        let site = self.named(py, "CUDAGraph.replay");
        let found = self.core.lock().replay(site, key, raw);
        self.look(py, found, &[], &[])
    }
}
