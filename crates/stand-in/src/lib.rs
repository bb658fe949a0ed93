//! A stand-in for NVIDIA's driver, for tests where there is no GPU.
//!
//! As a shared library it exports the functions that `sidestream::cuda::driver` loads, and carries
//! them out on the simulated machine of `sidestream::sim`. So the back end for CUDA is tested with its own
//! calls, its handles and its contexts. It is stricter than the driver where the driver forgives:
//! an unknown handle, a missing context and a call that a capture forbids are always refused.
//!
//! Time is the machine's: things happen while somebody asks or waits, as `sidestream::sim::Machine` says.
//! Kernels are functions of Rust with the names of the entries in the PTX (`twins`).
//!
//! The functions check for null and for unknown handles. What else `cuda.h` demands of pointers, the
//! caller guarantees: what is not null points to as much as is to be read or written. Every `unsafe`
//! block below relies on that, and no other file reads or writes through a pointer that it was
//! given but for `memory` (pinned memory) and `streams` (functions on the host).

mod capture;
mod codes;
mod devices;
mod failing;
mod graph;
mod handles;
mod memory;
mod modules;
mod pitched;
mod ptx;
mod state;
mod streams;
mod tables;
mod twins;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::path::PathBuf;

use libloading::Library;
use sidestream::backend::{Backend, Grid};
use sidestream::cuda::driver::{
    Code, CuAddress, CuContext, CuDevice, CuEvent, CuFunction, CuGraph, CuGraphExec, CuModule,
    CuNode, CuStream, HostFn, KernelNode, Memcpy2d, Memcpy3d, MemsetNode, UpdateResult,
};
use sidestream::sim::Schedule;

use codes::{
    Answer, INVALID_CONTEXT, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, NOT_SUPPORTED,
};
use failing::submits;
use state::{Config, always, anywhere, asked, call};

/// Where the shared library is: beside the running test, which Cargo has built it with.
pub fn library() -> Option<PathBuf> {
    let name = format!(
        "{}sidestream_stand_in{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let program = std::env::current_exe().ok()?;
    let mut folders = program.ancestors().skip(1).take(2);
    folders.find_map(|folder| {
        let beside = [folder.join(&name), folder.join("deps").join(&name)];
        beside.into_iter().find(|file| file.is_file())
    })
}

// ------------------------------------------------------------------ the stand-in itself

/// Says how the machine of the shared library is to be, for this whole process, and gives the file: how
/// many devices (1 to 16), by which seed work is delayed (0: not at all), and how much memory each
/// device has (0: all of an H200).
///
/// # Errors
/// If the library is not there, or `cuInit` was called before.
pub fn configured(devices: u32, seed: u64, memory_bytes: u64) -> Result<PathBuf, String> {
    type Configure = extern "C" fn(u32, u64, u64) -> i32;
    let file = library().ok_or("the shared library is not beside this program")?;
    // SAFETY: it is this crate as a shared library, which has the function below and initialises
    // nothing when it is loaded. It is never unloaded.
    let code = unsafe {
        let loaded = ManuallyDrop::new(Library::new(&file).map_err(|why| why.to_string())?);
        let configure = loaded.get::<Configure>(b"sidestream_stand_in_configure");
        configure.map_err(|why| why.to_string())?(devices, seed, memory_bytes)
    };
    match code {
        0 => Ok(file),
        _ => Err("it is too late, or there would be no devices or more than 16".into()),
    }
}

/// As [`configured`] says. Answers 0, or 1 if it is too late or cannot be.
#[unsafe(no_mangle)]
extern "C" fn sidestream_stand_in_configure(devices: u32, seed: u64, memory_bytes: u64) -> i32 {
    let config = Config {
        devices,
        schedule: match seed {
            0 => Schedule::InOrder,
            seed => Schedule::Seeded(seed),
        },
        memory_bytes: Some(memory_bytes).filter(|&bytes| bytes != 0),
    };
    let done = always(
        || match (1..=16).contains(&devices) && state::configure(config) {
            true => Ok(()),
            false => Err(INVALID_VALUE),
        },
    );
    i32::from(done != 0)
}

/// Lets a call of the shared library fail: of this function, which puts something into a stream, the call that comes
/// behind so many others answers with the code, and does nothing. What was asked for before and did not come
/// about is forgotten.
///
/// # Errors
/// If the library is not there.
pub fn fail(function: &str, after: u32, code: i32) -> Result<(), String> {
    type Fail = unsafe extern "C" fn(*const c_char, u32, i32) -> i32;
    let file = library().ok_or("the shared library is not beside this program")?;
    let function = CString::new(function).map_err(|why| why.to_string())?;
    // SAFETY: as in `configured`; the text ends with a zero.
    let answer = unsafe {
        let loaded = ManuallyDrop::new(Library::new(&file).map_err(|why| why.to_string())?);
        let fail = loaded.get::<Fail>(b"sidestream_stand_in_fail");
        fail.map_err(|why| why.to_string())?(function.as_ptr(), after, code)
    };
    match answer {
        0 => Ok(()),
        _ => Err("the name of the function is no text".into()),
    }
}

/// As [`fail`] says. Answers 0, or 1 if the name is no text.
#[unsafe(no_mangle)]
unsafe extern "C" fn sidestream_stand_in_fail(
    function: *const c_char,
    after: u32,
    code: i32,
) -> i32 {
    let done = always(|| {
        if function.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the page of this module says, it is a text that ends with a zero.
        let function = unsafe { CStr::from_ptr(function) };
        let function = function.to_str().map_err(|_| INVALID_VALUE)?;
        failing::fail(function, after, code);
        Ok(())
    });
    i32::from(done != 0)
}

// ------------------------------------------------------------------ arguments

/// What a function writes its answer into; none if it is null.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Writes an answer. Nothing is done if there is no place for it.
fn give<T>(place: Out<T>, answer: impl FnOnce() -> Answer<T>) -> Answer<()> {
    place.ok_or(INVALID_VALUE)?.write(answer()?);
    Ok(())
}

/// # Safety
/// If it is not null, so many can be read.
unsafe fn list<'a, T>(at: *const T, count: usize) -> Answer<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if at.is_null() || count > MOST_NODES {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller promises it.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

/// The most nodes that one may stand behind.
const MOST_NODES: usize = 1 << 20;

/// The values of a kernel's parameters, each of so many bytes, in words of eight: a structure has
/// several.
///
/// # Safety
/// If it is not null it points to as many pointers, and each that is not null to that many bytes.
unsafe fn values(params: *mut *mut c_void, bytes: &[u64]) -> Answer<Vec<u64>> {
    if params.is_null() && !bytes.is_empty() {
        return Err(INVALID_VALUE);
    }
    let mut words = Vec::new();
    for (at, &len) in bytes.iter().enumerate() {
        // SAFETY: the caller promises it.
        let from = unsafe { *params.add(at) }.cast::<u8>();
        if from.is_null() {
            return Err(INVALID_VALUE);
        }
        for start in (0..len as usize).step_by(8) {
            let mut word = [0; 8];
            let left = (len as usize - start).min(8);
            // SAFETY: the caller promises that `len` bytes are there, and there is room for eight.
            unsafe {
                let from = from.add(start);
                from.copy_to_nonoverlapping(word.as_mut_ptr(), left);
            }
            words.push(u64::from_le_bytes(word));
        }
    }
    Ok(words)
}

// ------------------------------------------------------------------ the driver and its devices

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> Code {
    always(|| match flags {
        0 => {
            state::init();
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> Code {
    always(|| give(version, || Ok(devices::VERSION)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Code, text: Out<*const c_char>) -> Code {
    always(|| word(text, codes::words(code).map(|(name, _)| name)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Code, text: Out<*const c_char>) -> Code {
    always(|| word(text, codes::words(code).map(|(_, meaning)| meaning)))
}

/// A constant text, or null for an unknown code.
fn word(place: Out<*const c_char>, text: Option<&'static CStr>) -> Answer<()> {
    let at = text.map_or(std::ptr::null(), CStr::as_ptr);
    give(place, || Ok(at))?;
    text.map(|_| ()).ok_or(INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> Code {
    asked(|state| give(count, || Ok(state.machine.devices().len() as c_int)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<CuDevice>, number: c_int) -> Code {
    asked(|state| give(device, || devices::device(state, number).map(|_| number)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CuDevice) -> Code {
    asked(|state| {
        devices::device(state, device)?;
        let room = usize::try_from(len).ok().filter(|&room| room > 0);
        let room = room.filter(|_| !name.is_null()).ok_or(INVALID_VALUE)?;
        let text = &state::NAME.as_bytes()[..state::NAME.len().min(room - 1)];
        // SAFETY: as the page of this module says, there are `len` bytes.
        unsafe {
            name.cast::<u8>()
                .copy_from_nonoverlapping(text.as_ptr(), text.len());
            name.add(text.len()).write(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CuDevice) -> Code {
    asked(|state| {
        let device = devices::device(state, device)?;
        give(bytes, || Ok(devices::memory_bytes(state, device)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: CuDevice) -> Code {
    asked(|state| {
        let device = devices::device(state, device)?;
        give(value, || devices::attribute(attribute, device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: Out<CuContext>, device: CuDevice) -> Code {
    anywhere(|state, _| {
        let device = devices::device(state, device)?;
        give(context, || Ok(state.tables().context(device)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CuDevice, peer: CuDevice) -> Code {
    asked(|state| {
        let (device, peer) = (
            devices::device(state, device)?,
            devices::device(state, peer)?,
        );
        give(can, || Ok(c_int::from(device != peer)))
    })
}

// ------------------------------------------------------------------ contexts

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: Out<CuContext>) -> Code {
    asked(|state| {
        let handle = |device| state.tables().context(device);
        give(context, || Ok(state::current().map_or(0, handle)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: CuContext) -> Code {
    asked(|state| {
        let device = match context {
            0 => None,
            context => Some(state.tables().device_of(context)?),
        };
        state::set_current(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: CuContext) -> Code {
    asked(|state| {
        state::push_current(state.tables().device_of(context)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: Out<CuContext>) -> Code {
    asked(|state| {
        let device = state::pop_current().ok_or(INVALID_CONTEXT)?;
        if let Some(context) = context {
            context.write(state.tables().context(device));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    call(streams::synchronize_device)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> Code {
    call(|_, _| {
        let (most_urgent, least_urgent) = streams::PRIORITIES;
        if let Some(least) = least {
            least.write(least_urgent);
        }
        if let Some(greatest) = greatest {
            greatest.write(most_urgent);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: CuContext, flags: c_uint) -> Code {
    call(|state, here| devices::enable_peer(state, here, peer, flags))
}

// ------------------------------------------------------------------ modules and launches

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: Out<CuModule>,
    image: *const c_void,
    count: c_uint,
    options: *mut c_int,
    option_values: *mut *mut c_void,
) -> Code {
    call(|state, _| {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the page of this module says; a text ends with a zero, and the first bytes of
        // other images have one too.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        let loaded = load(state, image);
        let why = loaded.as_ref().err().map_or("", |(_, why)| why);
        // SAFETY: as the page of this module says.
        unsafe { write_log(count as usize, options, option_values, why)? };
        give(module, || loaded.map_err(|(code, _)| code))
    })
}

fn load(state: &state::State, image: &CStr) -> Result<CuModule, (Code, String)> {
    let bytes = image.to_bytes();
    if bytes.starts_with(b"\x7fELF") || bytes.starts_with(b"\x50\xed\x55\xba") {
        let why = "the stand-in has no use for machine code; load PTX";
        return Err((NO_BINARY_FOR_GPU, why.into()));
    }
    let text = image.to_str();
    let text = text.map_err(|_| (INVALID_PTX, "the text is not in UTF-8".to_owned()))?;
    modules::load(state, text)
}

/// Writes into the buffer for errors, if the options name one, and how much was written.
///
/// # Safety
/// There are so many options and values; the buffer is as long as its option says.
unsafe fn write_log(
    count: usize,
    options: *const c_int,
    option_values: *mut *mut c_void,
    text: &str,
) -> Answer<()> {
    // `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
    const BUFFER: c_int = 5;
    const BUFFER_BYTES: c_int = 6;
    // SAFETY: the caller promises it.
    let options = unsafe { list(options, count)? };
    if count > 0 && option_values.is_null() {
        return Err(INVALID_VALUE);
    }
    let place = |wanted| options.iter().position(|&option| option == wanted);
    let (Some(buffer), Some(bytes)) = (place(BUFFER), place(BUFFER_BYTES)) else {
        return Ok(());
    };
    // SAFETY: the caller promises it.
    let (buffer, room) = unsafe {
        let room = option_values.add(bytes);
        ((*option_values.add(buffer)).cast::<u8>(), room)
    };
    // SAFETY: the caller promises it. The number stands where a pointer would.
    let len = unsafe { (*room).addr() };
    if buffer.is_null() || len == 0 {
        return Ok(());
    }
    let text = &text.as_bytes()[..text.len().min(len - 1)];
    // SAFETY: the caller promises that the buffer has `len` bytes.
    unsafe {
        buffer.copy_from_nonoverlapping(text.as_ptr(), text.len());
        buffer.add(text.len()).write(0);
        *room = std::ptr::without_provenance_mut(text.len());
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: CuModule) -> Code {
    anywhere(|state, _| modules::unload(state, module))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    function: Out<CuFunction>,
    module: CuModule,
    name: *const c_char,
) -> Code {
    anywhere(|state, _| {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the page of this module says.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        give(function, || modules::function(state, module, &name))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: CuFunction, attribute: c_int, value: c_int) -> Code {
    anywhere(|state, _| modules::set_attribute(state, function, attribute, value))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    function: CuFunction,
    blocks_x: c_uint,
    blocks_y: c_uint,
    blocks_z: c_uint,
    threads_x: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared_bytes: c_uint,
    stream: CuStream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    submits("cuLaunchKernel", |state, here| {
        if !extra.is_null() {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: as the page of this module says.
        let values = unsafe { values(params, modules::params(state, function)?)? };
        let grid = Grid {
            blocks: [blocks_x, blocks_y, blocks_z],
            threads: [threads_x, threads_y, threads_z],
            shared_bytes,
        };
        modules::launch(state, here, function, grid, &values, stream)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchHostFunc(
    stream: CuStream,
    function: Option<HostFn>,
    argument: *mut c_void,
) -> Code {
    submits("cuLaunchHostFunc", |state, here| {
        let function = function.ok_or(INVALID_VALUE)?;
        let argument = argument.expose_provenance() as u64;
        // SAFETY: as `cuda.h` demands of the caller, the function may be called with the argument.
        unsafe { streams::host_function(state, here, stream, function, argument) }
    })
}

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

/// The one question that a function on the host may ask.
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
        // SAFETY: as `cuda.h` demands of the caller, the memory stays until it is unregistered.
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

// ------------------------------------------------------------------ graphs

#[unsafe(no_mangle)]
extern "C" fn cuGraphCreate(graph: Out<CuGraph>, flags: c_uint) -> Code {
    anywhere(|state, _| match flags {
        0 => give(graph, || Ok(graph::create(state))),
        _ => Err(INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(graph: CuGraph) -> Code {
    anywhere(|state, _| graph::destroy(state, graph))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddKernelNode_v2(
    node: Out<CuNode>,
    graph: CuGraph,
    after: *const CuNode,
    count: usize,
    kernel: Option<&KernelNode>,
) -> Code {
    // SAFETY: as the page of this module says.
    let after = unsafe { list(after, count) };
    anywhere(|state, here| {
        let kernel = kernel.ok_or(INVALID_VALUE)?;
        if !kernel.extra.is_null() || kernel.kernel != 0 {
            return Err(NOT_SUPPORTED);
        }
        let at = in_context(state, here, kernel.context)?;
        let function = kernel.function;
        // SAFETY: as the page of this module says.
        let values = unsafe { values(kernel.params, modules::params(state, function)?)? };
        let grid = Grid {
            blocks: kernel.grid,
            threads: kernel.block,
            shared_bytes: kernel.shared_bytes,
        };
        let launch = (function, grid, &values[..]);
        give(node, || {
            graph::add_kernel(state, at, (graph, after?), launch)
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddMemcpyNode(
    node: Out<CuNode>,
    graph: CuGraph,
    after: *const CuNode,
    count: usize,
    copy: Option<&Memcpy3d>,
    context: CuContext,
) -> Code {
    // SAFETY: as the page of this module says.
    let after = unsafe { list(after, count) };
    anywhere(|state, here| {
        in_context(state, here, context)?;
        let copies = pitched::solid(copy.ok_or(INVALID_VALUE)?)?;
        let placed = |copy| Ok((copy, memory::sides(&state.tables().memory, &copy)?));
        let copies: Answer<Vec<_>> = copies.into_iter().map(placed).collect();
        give(node, || graph::add_copies(state, (graph, after?), copies?))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphAddMemsetNode(
    node: Out<CuNode>,
    graph: CuGraph,
    after: *const CuNode,
    count: usize,
    fill: Option<&MemsetNode>,
    context: CuContext,
) -> Code {
    // SAFETY: as the page of this module says.
    let after = unsafe { list(after, count) };
    anywhere(|state, here| {
        in_context(state, here, context)?;
        let fills = memory::fills(state, fill.ok_or(INVALID_VALUE)?)?;
        give(node, || graph::add_fills(state, (graph, after?), fills))
    })
}

/// The context that a node names; the current one if it names none.
fn in_context(state: &state::State, here: state::Here, context: CuContext) -> Answer<state::Here> {
    let device = match context {
        0 => here.device()?,
        context => state.tables().device_of(context)?,
    };
    Ok(here.with(device))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphInstantiateWithFlags(
    exec: Out<CuGraphExec>,
    graph: CuGraph,
    _flags: u64,
) -> Code {
    call(|state, here| give(exec, || graph::instantiate(state, here, graph)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecUpdate_v2(
    exec: CuGraphExec,
    graph: CuGraph,
    result: Out<UpdateResult>,
) -> Code {
    anywhere(|state, here| {
        let place = result.ok_or(INVALID_VALUE)?;
        let (updated, result) = graph::update(state, here, exec, graph);
        place.write(result);
        updated
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(exec: CuGraphExec) -> Code {
    anywhere(|state, _| graph::destroy_exec(state, exec))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(exec: CuGraphExec, stream: CuStream) -> Code {
    submits("cuGraphLaunch", |state, here| {
        graph::launch(state, here, exec, stream)
    })
}
