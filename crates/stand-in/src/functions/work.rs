//! Streams, events, memory, and the work that is submitted to streams.

use std::ffi::{c_int, c_uint};

use sidestream::cuda::driver::{
    Code, CuAddress, CuEvent, CuGraph, CuStream, IpcEventHandle, Memcpy2d,
};

use crate::arguments::{Out, give};
use crate::codes::INVALID_VALUE;
use crate::failing::submits;
use crate::state::{self, always, anywhere, asked, call};
use crate::{capture, memory, pitched, streams};

// ------------------------------------------------------------------ streams

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(
    stream: Out<CuStream>,
    flags: c_uint,
    priority: c_int,
) -> Code {
    call(|state, here| give(stream, || streams::create(state, here, flags, priority)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: CuStream) -> Code {
    anywhere(|state, _| streams::destroy(state, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: CuStream) -> Code {
    anywhere(|state, here| streams::query(state, here, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: CuStream) -> Code {
    anywhere(|state, here| streams::synchronize(state, here, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: CuStream, event: CuEvent, flags: c_uint) -> Code {
    submits("cuStreamWaitEvent", |state, here| {
        streams::wait_event(state, here, stream, event, flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: CuStream, mode: c_int) -> Code {
    anywhere(|state, here| capture::begin(state, here, stream, mode))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: CuStream, status: Out<c_int>) -> Code {
    call(|state, here| give(status, || capture::status(state, here, stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Option<&mut c_int>) -> Code {
    always(|| {
        let mode = mode.ok_or(INVALID_VALUE)?;
        *mode = capture::exchange(*mode)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: CuStream, graph: Out<CuGraph>) -> Code {
    anywhere(|state, here| {
        let graph = graph.ok_or(INVALID_VALUE)?;
        let ended = capture::end(state, here, stream);
        graph.write(ended.unwrap_or(0));
        ended.map(|_| ())
    })
}

// ------------------------------------------------------------------ events

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<CuEvent>, flags: c_uint) -> Code {
    call(|state, here| give(event, || streams::create_event(state, here, flags)))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: CuEvent) -> Code {
    anywhere(|state, _| streams::destroy_event(state, event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: CuEvent, stream: CuStream) -> Code {
    submits("cuEventRecord", |state, here| {
        streams::record(state, here, event, stream)
    })
}

/// The only query that a host function may make.
#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: CuEvent) -> Code {
    asked(|state| {
        state.refuse_lost()?;
        streams::query_event(state, state::this_thread(), event)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: CuEvent) -> Code {
    anywhere(|state, here| streams::synchronize_event(state, here.thread, event))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(ms: Out<f32>, from: CuEvent, to: CuEvent) -> Code {
    anywhere(|state, _| give(ms, || streams::elapsed(state, from, to)))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcGetEventHandle(handle: Out<IpcEventHandle>, event: CuEvent) -> Code {
    anywhere(|state, _| give(handle, || streams::share(state, event)))
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcOpenEventHandle(event: Out<CuEvent>, handle: IpcEventHandle) -> Code {
    call(|state, here| give(event, || streams::open_event(state, here, handle)))
}

// ------------------------------------------------------------------ memory

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, all: Out<usize>) -> Code {
    call(|state, here| {
        let (free_bytes, all_bytes) = memory::info(state, here)?;
        give(free, || Ok(free_bytes))?;
        give(all, || Ok(all_bytes))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(at: Out<CuAddress>, bytes: usize) -> Code {
    call(|state, here| give(at, || memory::alloc(state, here, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(at: CuAddress) -> Code {
    anywhere(|state, here| memory::free(state, here, at))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(at: Out<CuAddress>, bytes: usize, stream: CuStream) -> Code {
    anywhere(|state, here| give(at, || memory::alloc_async(state, here, bytes, stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(at: CuAddress, stream: CuStream) -> Code {
    anywhere(|state, here| memory::free_async(state, here, at, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(at: Out<u64>, bytes: usize, flags: c_uint) -> Code {
    call(|state, here| give(at, || memory::alloc_host(state, here, bytes, flags)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(at: u64) -> Code {
    anywhere(|state, here| memory::free_host(state, here, at))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(at: u64, bytes: usize, flags: c_uint) -> Code {
    call(|state, here| {
        // SAFETY: as `cuda.h` requires of the caller, the memory exists until it is unregistered.
        unsafe { memory::register(state, here, at, bytes, flags) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(at: u64) -> Code {
    call(|state, here| memory::unregister(state, here, at))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpy(to: CuAddress, from: CuAddress, bytes: usize) -> Code {
    call(|state, here| memory::copy_blocking(state, here, memory::row(to, from, bytes)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyAsync(
    to: CuAddress,
    from: CuAddress,
    bytes: usize,
    stream: CuStream,
) -> Code {
    submits("cuMemcpyAsync", |state, here| {
        let copies = [memory::row(to, from, bytes)];
        let copies = if bytes == 0 { &[][..] } else { &copies };
        memory::copy(state, here, copies, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: Option<&Memcpy2d>, stream: CuStream) -> Code {
    submits("cuMemcpy2DAsync_v2", |state, here| {
        let copies = pitched::plane(copy.ok_or(INVALID_VALUE)?)?;
        memory::copy(state, here, &copies, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(at: CuAddress, value: u8, count: usize) -> Code {
    call(|state, here| memory::fill_blocking(state, here, at, value, count))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(at: CuAddress, value: u8, count: usize, stream: CuStream) -> Code {
    submits("cuMemsetD8Async", |state, here| {
        memory::fill(state, here, (at, value.into(), 1, count), stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16Async(at: CuAddress, value: u16, count: usize, stream: CuStream) -> Code {
    submits("cuMemsetD16Async", |state, here| {
        memory::fill(state, here, (at, value.into(), 2, count), stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(
    at: CuAddress,
    value: c_uint,
    count: usize,
    stream: CuStream,
) -> Code {
    submits("cuMemsetD32Async", |state, here| {
        memory::fill(state, here, (at, value, 4, count), stream)
    })
}
