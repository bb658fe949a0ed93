//! Streams, events, memory, and the work that is submitted to streams.

use std::cell::Cell;
use std::ffi::{c_int, c_uint};

use sidestream::cuda::driver::{
    Code, CuAddress, CuEvent, CuGraph, CuStream, IpcEventHandle, Memcpy2d,
};
use sidestream::op::Memory as Place;

use super::cupti::driver;
use crate::arguments::{Out, give, list};
use crate::codes::{INVALID_VALUE, NOT_SUPPORTED};
use crate::state::{self, always, anywhere, asked, call};
use crate::{capture, memory, pitched, streams};

driver! {
    // ------------------------------------------------------------------ streams

    367 fn cuStreamCreateWithPriority(stream: Out<CuStream>, flags: c_uint, priority: c_int) {
        call(|state, here| give(stream, || streams::create(state, here, flags, priority)))
    }

    124 fn cuStreamCreate(stream: Out<CuStream>, flags: c_uint) {
        call(|state, here| give(stream, || streams::create(state, here, flags, 0)))
    }

    326 fn cuStreamDestroy_v2(stream: CuStream) {
        anywhere(|state, _| streams::destroy(state, stream))
    }

    125 fn cuStreamQuery(stream: CuStream) {
        anywhere(|state, here| streams::query(state, here, stream))
    }

    126 fn cuStreamSynchronize(stream: CuStream) {
        anywhere(|state, here| streams::synchronize(state, here, stream))
    }

    295 fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint) {
        anywhere(|state, here| {
            streams::wait_event(state, here, stream, event, flags)
        })
    }

    539 fn cuStreamBeginCapture_v2(stream: CuStream, mode: c_int) {
        anywhere(|state, here| capture::begin(state, here, stream, mode))
    }

    499 fn cuStreamIsCapturing(stream: CuStream, status: Out<c_int>) {
        call(|state, here| give(status, || capture::status(state, here, stream)))
    }

    541 fn cuThreadExchangeStreamCaptureMode(mode: Option<&Cell<c_int>>) {
        always(|| {
            let mode = mode.ok_or(INVALID_VALUE)?;
            mode.set(capture::exchange(mode.get())?);
            Ok(())
        })
    }

    497 fn cuStreamEndCapture(stream: CuStream, graph: Out<CuGraph>) {
        anywhere(|state, here| {
            let mut ended = Ok(0);
            give(graph, || {
                ended = capture::end(state, here, stream);
                Ok(ended.unwrap_or(0))
            })?;
            ended.map(|_| ())
        })
    }

    // ------------------------------------------------------------------ events

    118 fn cuEventCreate(event: Out<CuEvent>, flags: c_uint) {
        call(|state, here| give(event, || streams::create_event(state, here, flags)))
    }

    325 fn cuEventDestroy_v2(event: CuEvent) {
        anywhere(|state, _| streams::destroy_event(state, event))
    }

    119 fn cuEventRecord(event: CuEvent, stream: CuStream) {
        anywhere(|state, here| {
            streams::record(state, here, event, stream)
        })
    }

    587 fn cuEventRecordWithFlags(event: CuEvent, stream: CuStream, flags: c_uint) {
        anywhere(|state, here| match flags {
            0 => streams::record(state, here, event, stream),
            _ => Err(NOT_SUPPORTED),
        })
    }

    /// The only query that a host function may make.
    120 fn cuEventQuery(event: CuEvent) {
        asked(|state| {
            state.refuse_lost()?;
            streams::query_event(state, state::this_thread(), event)
        })
    }

    121 fn cuEventSynchronize(event: CuEvent) {
        anywhere(|state, here| streams::synchronize_event(state, here.thread, event))
    }

    123 fn cuEventElapsedTime(ms: Out<f32>, from: CuEvent, to: CuEvent) {
        anywhere(|state, _| give(ms, || streams::elapsed(state, from, to)))
    }

    334 fn cuIpcGetEventHandle(handle: Out<IpcEventHandle>, event: CuEvent) {
        anywhere(|state, _| give(handle, || streams::share(state, event)))
    }

    335 fn cuIpcOpenEventHandle(event: Out<CuEvent>, handle: IpcEventHandle) {
        call(|state, here| give(event, || streams::open_event(state, here, handle)))
    }

    // ------------------------------------------------------------------ memory

    242 fn cuMemGetInfo_v2(free: Out<usize>, all: Out<usize>) {
        call(|state, here| {
            let (free_bytes, all_bytes) = memory::info(state, here)?;
            give(free, || Ok(free_bytes))?;
            give(all, || Ok(all_bytes))
        })
    }

    243 fn cuMemAlloc_v2(at: Out<CuAddress>, bytes: usize) {
        call(|state, here| give(at, || memory::alloc(state, here, bytes)))
    }

    245 fn cuMemFree_v2(at: CuAddress) {
        anywhere(|state, here| memory::free(state, here, at, Place::Device))
    }

    598 fn cuMemAllocAsync(at: Out<CuAddress>, bytes: usize, stream: CuStream) {
        anywhere(|state, here| give(at, || memory::alloc_async(state, here, bytes, stream)))
    }

    600 fn cuMemFreeAsync(at: CuAddress, stream: CuStream) {
        anywhere(|state, here| memory::free_async(state, here, at, stream))
    }

    39 fn cuMemHostAlloc(at: Out<u64>, bytes: usize, flags: c_uint) {
        call(|state, here| give(at, || memory::alloc_host(state, here, bytes, flags)))
    }

    294 fn cuMemAllocHost_v2(at: Out<u64>, bytes: usize) {
        call(|state, here| give(at, || memory::alloc_host(state, here, bytes, 0)))
    }

    247 fn cuMemHostGetDevicePointer_v2(at: Out<CuAddress>, host: u64, _flags: c_uint) {
        call(|state, _| give(at, || memory::mapped(state, host)))
    }

    38 fn cuMemFreeHost(at: u64) {
        anywhere(|state, here| memory::free(state, here, at, Place::Pinned))
    }

    379 fn cuMemHostRegister_v2(at: u64, bytes: usize, flags: c_uint) {
        call(|state, here| {
            // SAFETY: as `cuda.h` requires of the caller, the memory exists until it is unregistered.
            unsafe { memory::register(state, here, at, bytes, flags) }
        })
    }

    302 fn cuMemHostUnregister(at: u64) {
        call(|state, here| memory::unregister(state, here, at))
    }

    305 fn cuMemcpy(to: CuAddress, from: CuAddress, bytes: usize) {
        copy_blocking(to, from, bytes)
    }

    276 fn cuMemcpyHtoD_v2(to: CuAddress, from: u64, bytes: usize) {
        copy_blocking(to, from, bytes)
    }

    278 fn cuMemcpyDtoH_v2(to: u64, from: CuAddress, bytes: usize) {
        copy_blocking(to, from, bytes)
    }

    280 fn cuMemcpyDtoD_v2(to: CuAddress, from: CuAddress, bytes: usize) {
        copy_blocking(to, from, bytes)
    }

    306 fn cuMemcpyAsync(to: CuAddress, from: CuAddress, bytes: usize, stream: CuStream) {
        copy(to, from, bytes, stream)
    }

    277 fn cuMemcpyHtoDAsync_v2(to: CuAddress, from: u64, bytes: usize, stream: CuStream) {
        copy(to, from, bytes, stream)
    }

    279 fn cuMemcpyDtoHAsync_v2(to: u64, from: CuAddress, bytes: usize, stream: CuStream) {
        copy(to, from, bytes, stream)
    }

    281 fn cuMemcpyDtoDAsync_v2(to: CuAddress, from: CuAddress, bytes: usize, stream: CuStream) {
        copy(to, from, bytes, stream)
    }

    776 fn cuMemcpyBatchAsync(
        to: *const CuAddress,
        from: *const CuAddress,
        bytes: *const usize,
        count: usize,
        attributes: *const CopyAttributes,
        first_of: *const usize,
        attributes_count: usize,
        _failed: *mut usize,
        stream: CuStream,
    ) {
        // SAFETY: as the documentation of this crate requires.
        unsafe { batch((to, from, bytes, count), (attributes, first_of, attributes_count), stream) }
    }

    796 fn cuMemcpyBatchAsync_v2(
        to: *const CuAddress,
        from: *const CuAddress,
        bytes: *const usize,
        count: usize,
        attributes: *const CopyAttributes,
        first_of: *const usize,
        attributes_count: usize,
        stream: CuStream,
    ) {
        // SAFETY: as the documentation of this crate requires.
        unsafe { batch((to, from, bytes, count), (attributes, first_of, attributes_count), stream) }
    }

    289 fn cuMemcpy2DAsync_v2(copy: Option<&Memcpy2d>, stream: CuStream) {
        anywhere(|state, here| {
            let copies = pitched::plane(copy.ok_or(INVALID_VALUE)?)?;
            memory::copy(state, here, &copies, None, stream)
        })
    }

    249 fn cuMemsetD8_v2(at: CuAddress, value: u8, count: usize) {
        call(|state, here| memory::fill_blocking(state, here, (at, value.into(), 1, count)))
    }

    250 fn cuMemsetD16_v2(at: CuAddress, value: u16, count: usize) {
        call(|state, here| memory::fill_blocking(state, here, (at, value.into(), 2, count)))
    }

    251 fn cuMemsetD32_v2(at: CuAddress, value: c_uint, count: usize) {
        call(|state, here| memory::fill_blocking(state, here, (at, value, 4, count)))
    }

    216 fn cuMemsetD8Async(at: CuAddress, value: u8, count: usize, stream: CuStream) {
        anywhere(|state, here| {
            memory::fill(state, here, (at, value.into(), 1, count), stream)
        })
    }

    218 fn cuMemsetD16Async(at: CuAddress, value: u16, count: usize, stream: CuStream) {
        anywhere(|state, here| {
            memory::fill(state, here, (at, value.into(), 2, count), stream)
        })
    }

    220 fn cuMemsetD32Async(at: CuAddress, value: c_uint, count: usize, stream: CuStream) {
        anywhere(|state, here| {
            memory::fill(state, here, (at, value, 4, count), stream)
        })
    }

    663 fn cuStreamWriteValue32_v2(stream: CuStream, at: CuAddress, value: c_uint, flags: c_uint) {
        call(|state, here| match flags {
            0 | 1 => memory::write_value(state, here, at, value, stream),
            _ => Err(INVALID_VALUE),
        })
    }

    659 fn cuStreamWaitValue32_v2(stream: CuStream, at: CuAddress, value: c_uint, flags: c_uint) {
        anywhere(|state, here| memory::wait_value(state, here, (at, value), flags, stream))
    }
}

fn copy_blocking(to: u64, from: u64, bytes: usize) -> Code {
    call(|state, here| memory::copy_blocking(state, here, memory::row(to, from, bytes)))
}

/// Copies in stream order.
fn copy(to: u64, from: u64, bytes: usize, stream: CuStream) -> Code {
    let row = memory::row(to, from, bytes);
    let copies = &[row][..usize::from(bytes > 0)];
    anywhere(|state, here| memory::copy(state, here, copies, None, stream))
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyAttributes {
    order: u32,
    hints_and_flags: [u32; 5],
}

/// A batch of copies: destinations, sources and sizes; then attributes, and for each of these the first copy that has them.
///
/// # Safety
/// The lists are as long as their numbers say.
unsafe fn batch(
    (to, from, bytes, count): (*const u64, *const u64, *const usize, usize),
    (attributes, first_of, len): (*const CopyAttributes, *const usize, usize),
    stream: CuStream,
) -> Code {
    anywhere(|state, here| {
        // SAFETY: the caller promises it.
        let (to, from, bytes) =
            unsafe { (list(to, count)?, list(from, count)?, list(bytes, count)?) };
        // SAFETY: likewise.
        let (attributes, first_of) = unsafe { (list(attributes, len)?, list(first_of, len)?) };
        if bytes.contains(&0) || count == 0 || stream == 0 || first_of.first() != Some(&0) {
            return Err(INVALID_VALUE);
        }
        for (copy, ((&to, &from), &bytes)) in to.iter().zip(from).zip(bytes).enumerate() {
            let with = first_of.partition_point(|&first| first <= copy) - 1;
            let row = memory::row(to, from, bytes);
            memory::copy(state, here, &[row], Some(attributes[with].order), stream)?;
        }
        Ok(())
    })
}
