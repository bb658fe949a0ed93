//! Modules, their functions, and launches.

use std::ffi::{c_char, c_int, c_uint, c_void};

use sidestream::backend::Grid;
use sidestream::cuda::driver::{Code, CuFunction, CuModule, CuStream, HostFn};

use super::cupti::driver;
use crate::arguments::{Out, give, list, text, values};
use crate::codes::{Answer, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, NOT_SUPPORTED};
use crate::state::{Here, State, anywhere, call};
use crate::{modules, streams};

driver! {
    20 fn cuModuleLoadDataEx(
        module: Out<CuModule>,
        image: *const c_void,
        count: c_uint,
        options: *mut c_int,
        option_values: *mut *mut c_void,
    ) {
        call(|state, _| {
            // SAFETY: as the documentation of this crate requires.
            let loaded = unsafe { load(state, image) };
            let why = loaded.as_ref().err().map_or("", |(_, why)| why);
            // SAFETY: as the documentation of this crate requires.
            unsafe { write_log(count as usize, options, option_values, why)? };
            give(module, || loaded.map_err(|(code, _)| code))
        })
    }

    19 fn cuModuleLoadData(module: Out<CuModule>, image: *const c_void) {
        // SAFETY: as the documentation of this crate requires.
        call(|state, _| give(module, || unsafe { load(state, image) }.map_err(|(code, _)| code)))
    }

    22 fn cuModuleUnload(module: CuModule) {
        anywhere(|state, _| modules::unload(state, module))
    }

    23 fn cuModuleGetFunction(function: Out<CuFunction>, module: CuModule, name: *const c_char) {
        anywhere(|state, _| {
            // SAFETY: as the documentation of this crate requires.
            let name = unsafe { text(name)? }.to_string_lossy();
            give(function, || modules::function(state, module, &name))
        })
    }

    718 fn cuFuncGetName(name: Out<*const c_char>, function: CuFunction) {
        anywhere(|state, _| give(name, || modules::name(state, function)))
    }

    733 fn cuFuncGetParamInfo(function: CuFunction, at: usize, offset: Out<usize>, bytes: Out<usize>) {
        anywhere(|state, _| param_info(state, function, at, offset, bytes))
    }

    481 fn cuFuncSetAttribute(function: CuFunction, attribute: c_int, value: c_int) {
        anywhere(|state, _| modules::set_attribute(state, function, attribute, value))
    }

    307 fn cuLaunchKernel(
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
    ) {
        anywhere(|state, here| {
            let grid = Grid {
                blocks: [blocks_x, blocks_y, blocks_z],
                threads: [threads_x, threads_y, threads_z],
                shared_bytes,
            };
            // SAFETY: as the documentation of this crate requires.
            unsafe { launch(state, here, function, grid, (params, extra), stream) }
        })
    }

    /// The attributes of a launch have no effect.
    652 fn cuLaunchKernelEx(
        config: Option<&LaunchConfig>,
        function: CuFunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        anywhere(|state, here| {
            let config = config.ok_or(INVALID_VALUE)?;
            let grid = Grid {
                blocks: config.blocks,
                threads: config.threads,
                shared_bytes: config.shared_bytes,
            };
            // SAFETY: as the documentation of this crate requires.
            unsafe { launch(state, here, function, grid, (params, extra), config.stream) }
        })
    }

    527 fn cuLaunchHostFunc(stream: CuStream, function: Option<HostFn>, argument: *mut c_void) {
        anywhere(|state, here| {
            let function = function.ok_or(INVALID_VALUE)?;
            let argument = argument.expose_provenance() as u64;
            // SAFETY: as `cuda.h` requires of the caller, the function may be called with the argument.
            unsafe { streams::host_function(state, here, stream, function, argument) }
        })
    }

    // ------------------------------------------------------------------ libraries, whose functions are kernels

    678 fn cuLibraryLoadData(
        library: Out<CuModule>,
        image: *const c_void,
        _options: *const c_int,
        _option_values: *const *mut c_void,
        _options_count: c_uint,
        _library_options: *const c_int,
        _library_option_values: *const *mut c_void,
        _library_options_count: c_uint,
    ) {
        // SAFETY: as the documentation of this crate requires.
        call(|state, _| give(library, || unsafe { load(state, image) }.map_err(|(code, _)| code)))
    }

    680 fn cuLibraryUnload(library: CuModule) {
        anywhere(|state, _| modules::unload(state, library))
    }

    681 fn cuLibraryGetKernel(kernel: Out<u64>, library: CuModule, name: *const c_char) {
        anywhere(|state, _| {
            // SAFETY: as the documentation of this crate requires.
            let name = unsafe { text(name)? }.to_string_lossy();
            give(kernel, || modules::kernel(state, library, &name))
        })
    }

    683 fn cuKernelGetFunction(function: Out<CuFunction>, kernel: u64) {
        call(|state, _| give(function, || modules::function_of(state, kernel)))
    }

    719 fn cuKernelGetName(name: Out<*const c_char>, kernel: u64) {
        anywhere(|state, _| give(name, || modules::name(state, modules::function_of(state, kernel)?)))
    }

    734 fn cuKernelGetParamInfo(kernel: u64, at: usize, offset: Out<usize>, bytes: Out<usize>) {
        anywhere(|state, _| {
            param_info(state, modules::function_of(state, kernel)?, at, offset, bytes)
        })
    }
}

/// Loads an image.
///
/// # Safety
/// A text ends with a zero, and the first bytes of other images contain one too.
unsafe fn load(state: &State, image: *const c_void) -> Result<CuModule, (Code, String)> {
    // SAFETY: the caller promises it.
    let image = unsafe { text(image.cast()) }.map_err(|code| (code, String::new()))?;
    let bytes = image.to_bytes();
    if bytes.starts_with(b"\x7fELF") || bytes.starts_with(b"\x50\xed\x55\xba") {
        let why = "the stand-in has no use for machine code; load PTX";
        return Err((NO_BINARY_FOR_GPU, why.into()));
    }
    let text = image.to_str();
    let text = text.map_err(|_| (INVALID_PTX, "the text is not in UTF-8".to_owned()))?;
    modules::load(state, text)
}

/// Writes the message into the buffer for errors, if the options name one, and its length.
///
/// # Safety
/// There are `count` options and values; the buffer is as long as its option says.
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
    // SAFETY: the caller promises it. The value is a number in place of a pointer.
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

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    blocks: [c_uint; 3],
    threads: [c_uint; 3],
    shared_bytes: c_uint,
    stream: CuStream,
    attributes: *mut c_void,
    attributes_count: c_uint,
}

/// Launches a function, or the function of a kernel.
///
/// # Safety
/// The parameters are as `cuda.h` requires.
unsafe fn launch(
    state: &State,
    here: Here,
    function: CuFunction,
    grid: Grid,
    (params, extra): (*mut *mut c_void, *mut *mut c_void),
    stream: CuStream,
) -> Answer<()> {
    if !extra.is_null() {
        return Err(NOT_SUPPORTED);
    }
    let function = modules::function_of(state, function).unwrap_or(function);
    // SAFETY: the caller promises it.
    let values = unsafe { values(params, &modules::params(state, function)?)? };
    modules::launch(state, here, function, grid, &values, stream)
}

/// Writes the place of a parameter. The caller may not want its size.
fn param_info(
    state: &State,
    function: CuFunction,
    at: usize,
    offset: Out<usize>,
    bytes: Out<usize>,
) -> Answer<()> {
    let params = modules::params(state, function)?;
    let param = params.get(at).ok_or(INVALID_VALUE)?;
    _ = give(bytes, || Ok(param.bytes as usize));
    give(offset, || Ok(param.offset as usize))
}
