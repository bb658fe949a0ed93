//! A stand-in for NVIDIA's driver, for nvJPEG and for the callbacks of CUPTI, for tests without a GPU.
//!
//! As a shared library it exports the functions that `sidestream::cuda::driver` loads, and executes them on the
//! simulated machine of `sidestream::sim`. So tests cover the CUDA back end with its own calls, handles and contexts.
//! The stand-in is stricter than the driver where the driver is lenient: an unknown handle, a missing context and a
//! call that a capture forbids are always refused.
//!
//! Time is the machine's: work advances while a thread queries or waits, as `sidestream::sim::Machine` describes.
//! Kernels are Rust functions with the names of the entries in the PTX (`twins`). An entry that only returns needs none.
//!
//! The functions check for null and for unknown handles. The caller guarantees everything else that `cuda.h` requires
//! of pointers: a pointer that is not null points to as much memory as is read or written. Every `unsafe` block of
//! `arguments` and `functions` relies on that, and no other file accesses memory through a caller's pointer except
//! `memory` (pinned memory), `host` (copies) and `streams` (functions on the host).

mod arguments;
mod capture;
mod codes;
mod devices;
mod failing;
mod functions;
mod graph;
mod handles;
mod host;
mod interprocess;
mod memory;
mod modules;
mod pitched;
mod ptx;
mod state;
mod streams;
mod tables;
mod twins;

use std::ffi::{CString, c_char};
use std::mem::ManuallyDrop;
use std::path::PathBuf;

use libloading::Library;
use sidestream::sim::Schedule;

use codes::INVALID_VALUE;
use state::{Config, always};

/// Returns the path of the shared library, which Cargo has built together with the running test.
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

/// Returns the file of the shared library, and one of its two own functions. The library is never unloaded.
///
/// # Safety
/// `F` is the type of that function.
unsafe fn own<F: Copy>(name: &str) -> Result<(PathBuf, F), String> {
    let file = library().ok_or("the shared library is not beside this program")?;
    // SAFETY: the library is this crate, which runs no initialiser when it is loaded. The caller promises that the
    // type is right.
    let function = unsafe {
        let loaded = ManuallyDrop::new(Library::new(&file).map_err(|why| why.to_string())?);
        *loaded.get::<F>(name).map_err(|why| why.to_string())?
    };
    Ok((file, function))
}

/// Configures the machine of the shared library for the whole process, and returns the file: the number of devices (1
/// to 16), the seed by which work is delayed (0: no delays), and the memory of each device in bytes (0: that of an
/// H200).
///
/// # Errors
/// If the library is not found, or `cuInit` was called before.
pub fn configured(devices: u32, seed: u64, memory_bytes: u64) -> Result<PathBuf, String> {
    type Configure = extern "C" fn(u32, u64, u64) -> i32;
    // SAFETY: the function below has that type.
    let (file, configure) = unsafe { own::<Configure>("sidestream_stand_in_configure")? };
    match configure(devices, seed, memory_bytes) {
        0 => Ok(file),
        _ => Err("it is too late, or the number of devices is not from 1 to 16".into()),
    }
}

/// Implements [`configured`]. Returns 0, or 1 if it is too late or the values are invalid.
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
    let done = always(|| {
        if (1..=16).contains(&devices) && state::configure(config) {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    });
    i32::from(done != 0)
}

/// Makes a call of the shared library fail: after `after` further calls of this function, the next one returns the code
/// without any effect. An earlier request that has not taken effect is dropped.
///
/// # Errors
/// If the library is not found.
pub fn fail(function: &str, after: u32, code: i32) -> Result<(), String> {
    type Fail = unsafe extern "C" fn(*const c_char, u32, i32) -> i32;
    let function = CString::new(function).map_err(|why| why.to_string())?;
    // SAFETY: the function below has that type, and the text ends with a zero.
    let answer = unsafe {
        let (_, fail) = own::<Fail>("sidestream_stand_in_fail")?;
        fail(function.as_ptr(), after, code)
    };
    match answer {
        0 => Ok(()),
        _ => Err("the name of the function is not UTF-8".into()),
    }
}

/// Implements [`fail`]. Returns 0, or 1 if the name is not UTF-8.
#[unsafe(no_mangle)]
unsafe extern "C" fn sidestream_stand_in_fail(
    function: *const c_char,
    after: u32,
    code: i32,
) -> i32 {
    let done = always(|| {
        // SAFETY: as the documentation of this crate requires, `function` is a string that ends with a zero byte.
        let function = unsafe { arguments::text(function)? }
            .to_str()
            .map_err(|_| INVALID_VALUE)?;
        failing::fail(function, after, code);
        Ok(())
    });
    i32::from(done != 0)
}
