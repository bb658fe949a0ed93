//! Modules, their functions, and launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use sidestream::backend::Grid;
use sidestream::cuda::driver::{Code, CuFunction, CuModule, CuStream, HostFn};

use crate::arguments::{Out, give, list, values};
use crate::codes::{Answer, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, NOT_SUPPORTED};
use crate::failing::submits;
use crate::state::{State, anywhere, call};
use crate::{modules, streams};

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
        // SAFETY: as the documentation of this crate requires; a text ends with a zero, and the first bytes of other
        // images contain one too.
        let image = unsafe { CStr::from_ptr(image.cast()) };
        let loaded = load(state, image);
        let why = loaded.as_ref().err().map_or("", |(_, why)| why);
        // SAFETY: as the documentation of this crate requires.
        unsafe { write_log(count as usize, options, option_values, why)? };
        give(module, || loaded.map_err(|(code, _)| code))
    })
}

fn load(state: &State, image: &CStr) -> Result<CuModule, (Code, String)> {
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
        // SAFETY: as the documentation of this crate requires.
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
        // SAFETY: as the documentation of this crate requires.
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
        // SAFETY: as `cuda.h` requires of the caller, the function may be called with the argument.
        unsafe { streams::host_function(state, here, stream, function, argument) }
    })
}
