//! A stand-in for NVIDIA's driver, and for nvJPEG, for tests where there is no GPU.
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
//! block of `arguments` and `functions` relies on that, and no other file reads or writes through a
//! pointer that it was given but for `memory` (pinned memory) and `streams` (functions on the host).

mod arguments;
mod capture;
mod codes;
mod devices;
mod failing;
mod functions;
mod graph;
mod handles;
mod interprocess;
mod memory;
mod modules;
mod pitched;
mod ptx;
mod state;
mod streams;
mod tables;
mod twins;

use std::ffi::{CStr, CString, c_char};
use std::mem::ManuallyDrop;
use std::path::PathBuf;

use libloading::Library;
use sidestream::sim::Schedule;

use codes::INVALID_VALUE;
use state::{Config, always};

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

/// The file of the shared library, and one of the two functions of its own. It is never unloaded.
///
/// # Safety
/// `F` is the type of that function.
unsafe fn own<F: Copy>(name: &str) -> Result<(PathBuf, F), String> {
    let file = library().ok_or("the shared library is not beside this program")?;
    // SAFETY: it is this crate as a shared library, which initialises nothing when it is loaded. That the
    // type is right, the caller promises.
    let function = unsafe {
        let loaded = ManuallyDrop::new(Library::new(&file).map_err(|why| why.to_string())?);
        *loaded.get::<F>(name).map_err(|why| why.to_string())?
    };
    Ok((file, function))
}

/// Says how the machine of the shared library is to be, for this whole process, and gives the file: how
/// many devices (1 to 16), by which seed work is delayed (0: not at all), and how much memory each
/// device has (0: all of an H200).
///
/// # Errors
/// If the library is not there, or `cuInit` was called before.
pub fn configured(devices: u32, seed: u64, memory_bytes: u64) -> Result<PathBuf, String> {
    type Configure = extern "C" fn(u32, u64, u64) -> i32;
    // SAFETY: the function below has that type.
    let (file, configure) = unsafe { own::<Configure>("sidestream_stand_in_configure")? };
    match configure(devices, seed, memory_bytes) {
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
    let function = CString::new(function).map_err(|why| why.to_string())?;
    // SAFETY: the function below has that type, and the text ends with a zero.
    let answer = unsafe {
        let (_, fail) = own::<Fail>("sidestream_stand_in_fail")?;
        fail(function.as_ptr(), after, code)
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
        // SAFETY: as the page of this crate says, it is a text that ends with a zero.
        let function = unsafe { CStr::from_ptr(function) };
        let function = function.to_str().map_err(|_| INVALID_VALUE)?;
        failing::fail(function, after, code);
        Ok(())
    });
    i32::from(done != 0)
}
