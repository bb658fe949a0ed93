//! Modules, functions and launches.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use sidestream::backend::{Arg, Code as Kernel, Grid, Launch, Payload};
use sidestream::cuda::driver::{CuFunction, CuModule, CuStream};
use sidestream::op::{DeviceId, Kind};

use crate::codes::{Answer, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, NOT_FOUND};
use crate::memory::Reach;
use crate::ptx::{self, Entry, Param};
use crate::state::{Here, State};
use crate::streams;
use crate::tables::Tables;
use crate::twins::{self, Twin, View};

pub struct Module {
    entries: Vec<Entry>,
}

pub struct Function {
    module: CuModule,
    name: CString,
    params: Vec<Param>,
    twin: &'static Twin,
    code: Arc<Kernel>,
    /// Maximum dynamic shared memory of a block.
    shared_bytes: u32,
}

/// Dynamic shared memory of a block: by default, and the maximum that can be requested.
const SHARED_BYTES: (u32, u32) = (48 << 10, 227 << 10);
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: i32 = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`.
const SHARED_CARVEOUT: i32 = 9;

/// Loads the text of a module.
///
/// # Errors
/// The code, and the driver's log message.
pub fn load(state: &State, text: &str) -> Result<CuModule, (i32, String)> {
    let entries = ptx::entries(text).map_err(|why| (INVALID_PTX, why))?;
    Ok(state.tables().modules.add(Module { entries }))
}

pub fn unload(state: &State, handle: CuModule) -> Answer<()> {
    let tables = &mut *state.tables();
    tables.modules.remove(handle)?;
    let functions = &mut tables.functions;
    functions.retain(|_, function| function.module != handle);
    let kernels = &mut tables.kernels;
    kernels.retain(|_, function| functions.get(*function).is_ok());
    Ok(())
}

pub fn function(state: &State, module: CuModule, name: &str) -> Answer<CuFunction> {
    let mut tables = state.tables();
    let entries = &tables.modules.get(module)?.entries;
    let entry = entries.iter().find(|entry| entry.name == name);
    let entry = entry.ok_or(NOT_FOUND)?;
    let params: Vec<u64> = entry.params.iter().map(|param| param.bytes).collect();
    let nothing = || twins::of("empty").filter(|_| entry.is_empty);
    let known = twins::of(name);
    let Some(twin) = known.or_else(nothing) else {
        eprintln!(
            "stand-in for the CUDA driver: the kernel `{name}` does something and has no twin in \
             Rust; add one in crates/stand-in/src/twins.rs"
        );
        return Err(NOT_FOUND);
    };
    if known.is_some() && params != twin.params {
        eprintln!(
            "stand-in for the CUDA driver: the parameters of the kernel `{name}` have {params:?} \
             bytes, those of its twin in Rust {:?}; make them alike",
            twin.params
        );
        return Err(NOT_FOUND);
    }
    let is_it =
        |known: &Function| known.module == module && known.name.as_bytes() == name.as_bytes();
    if let Some(known) = tables.functions.find(is_it) {
        return Ok(known);
    }
    let function = Function {
        module,
        name: CString::new(name).map_err(|_| NOT_FOUND)?,
        params: entry.params.clone(),
        twin,
        // An entry that does nothing keeps its own name.
        code: known.map_or_else(|| twins::empty(name), |twin| Arc::clone(&twin.code)),
        shared_bytes: SHARED_BYTES.0,
    };
    Ok(tables.functions.add(function))
}

/// Returns the kernel of a library: another handle of a function.
pub fn kernel(state: &State, library: CuModule, name: &str) -> Answer<u64> {
    let function = function(state, library, name)?;
    let kernels = &mut state.tables().kernels;
    let known = kernels.find(|&of| of == function);
    Ok(known.unwrap_or_else(|| kernels.add(function)))
}

pub fn function_of(state: &State, kernel: u64) -> Answer<CuFunction> {
    state.tables().kernels.get(kernel).copied()
}

pub fn set_attribute(state: &State, handle: CuFunction, attribute: i32, value: i32) -> Answer<()> {
    let mut tables = state.tables();
    let function = tables.functions.get_mut(handle)?;
    match (attribute, u32::try_from(value)) {
        (MAX_DYNAMIC_SHARED, Ok(bytes)) if bytes <= SHARED_BYTES.1 => {
            function.shared_bytes = bytes;
            Ok(())
        }
        (SHARED_CARVEOUT, _) if (-1..=100).contains(&value) => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns the places of a function's parameters.
pub fn params(state: &State, handle: CuFunction) -> Answer<Vec<Param>> {
    Ok(state.tables().functions.get(handle)?.params.clone())
}

/// Returns the name of a function, which is there until the module is unloaded.
pub fn name(state: &State, handle: CuFunction) -> Answer<*const c_char> {
    Ok(state.tables().functions.get(handle)?.name.as_ptr())
}

/// Returns the checked arguments of a launch for the machine.
pub fn ready(
    tables: &Tables,
    device: DeviceId,
    handle: CuFunction,
    grid: Grid,
    values: &[u64],
) -> Answer<(Arc<Kernel>, Vec<Arg>)> {
    let function = tables.functions.get(handle)?;
    let [x, y, z] = grid.threads;
    let threads = u64::from(x) * u64::from(y) * u64::from(z);
    let most = [i32::MAX as u32, 65_535, 65_535];
    let fits = grid
        .blocks
        .iter()
        .zip(most)
        .all(|(&n, most)| (1..=most).contains(&n));
    let is_block = (1..=1024).contains(&threads) && z <= 64;
    if !fits || !is_block || grid.shared_bytes > function.shared_bytes {
        return Err(INVALID_VALUE);
    }
    let words = function.params.iter().map(|param| param.bytes.div_ceil(8));
    if values.len() as u64 != words.sum::<u64>() {
        return Err(INVALID_HANDLE);
    }
    let peers = &tables.peers;
    let view = View {
        memory: &tables.memory,
        reach: Reach { device, peers },
    };
    Ok((
        Arc::clone(&function.code),
        (function.twin.args)(values, &view),
    ))
}

pub fn launch(
    state: &State,
    here: Here,
    function: CuFunction,
    grid: Grid,
    values: &[u64],
    handle: CuStream,
) -> Answer<()> {
    let stream = streams::stream(state, here, handle)?;
    let (code, args) = ready(&state.tables(), stream.device, function, grid, values)?;
    let kind = Kind::kernel(stream.id);
    let launch = Launch {
        code: &code,
        grid,
        args: &args,
    };
    streams::submit(state, here.thread, kind, Payload::Launch(launch))
}
