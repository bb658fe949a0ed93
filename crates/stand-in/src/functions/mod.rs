//! The functions that the shared library exports, by subject: here the driver, its devices and contexts; nvJPEG's are
//! in `jpeg`, CUPTI's in `cupti`.

mod code;
mod cupti;
mod graphs;
mod jpeg;
mod work;

use std::ffi::{c_char, c_int, c_uint, c_void};

use sidestream::backend::Backend;
use sidestream::cuda::driver::{Code, CuContext, CuDevice};

use crate::arguments::{Out, give, text, word};
use crate::codes::{self, INVALID_CONTEXT, INVALID_VALUE, NOT_FOUND};
use crate::state::{self, always, anywhere, asked, call};
use crate::{devices, streams};
use cupti::{Function, driver};

/// Returns the functions of the driver.
fn all() -> impl Iterator<Item = &'static Function> {
    let lists = [
        FUNCTIONS,
        code::FUNCTIONS,
        graphs::FUNCTIONS,
        work::FUNCTIONS,
    ];
    lists.into_iter().flatten()
}

driver! {
    // ------------------------------------------------------------------ devices

    1 fn cuInit(flags: c_uint) {
        always(|| match flags {
            0 => {
                state::init();
                cupti::inject();
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        })
    }

    2 fn cuDriverGetVersion(version: Out<c_int>) {
        always(|| give(version, || Ok(devices::VERSION)))
    }

    /// Returns the newest variant of a function, whatever version is asked for.
    677 fn cuGetProcAddress_v2(
        symbol: *const c_char,
        function: Out<*const c_void>,
        _version: c_int,
        _flags: u64,
        status: Out<c_int>
    ) {
        always(|| {
            // SAFETY: as the documentation of this crate requires.
            let symbol = unsafe { text(symbol)? }.to_bytes();
            let is_variant = |name: &[u8]| matches!(name, [] | [b'_', b'v', _]);
            let found = all().filter(|known| {
                known.name.to_bytes().strip_prefix(symbol).is_some_and(is_variant)
            });
            let found = found.max_by_key(|known| known.name);
            // `CU_GET_PROC_ADDRESS_SUCCESS` and `..._SYMBOL_NOT_FOUND`.
            _ = give(status, || Ok(c_int::from(found.is_none())));
            give(function, || Ok(found.map_or(std::ptr::null(), |known| known.at)))?;
            found.map(|_| ()).ok_or(NOT_FOUND)
        })
    }

    373 fn cuGetErrorName(code: Code, text: Out<*const c_char>) {
        always(|| word(text, codes::words(code).map(|(name, _)| name)))
    }

    372 fn cuGetErrorString(code: Code, text: Out<*const c_char>) {
        always(|| word(text, codes::words(code).map(|(_, meaning)| meaning)))
    }

    4 fn cuDeviceGetCount(count: Out<c_int>) {
        asked(|state| give(count, || Ok(state.machine.devices().len() as c_int)))
    }

    3 fn cuDeviceGet(device: Out<CuDevice>, number: c_int) {
        asked(|state| give(device, || devices::device(state, number).map(|_| number)))
    }

    5 fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CuDevice) {
        asked(|state| {
            devices::device(state, device)?;
            let room = usize::try_from(len).ok().filter(|&room| room > 0);
            let room = room.filter(|_| !name.is_null()).ok_or(INVALID_VALUE)?;
            let text = &state::NAME.as_bytes()[..state::NAME.len().min(room - 1)];
            // SAFETY: as the documentation of this crate requires, `name` has `len` bytes.
            unsafe {
                name.cast::<u8>()
                    .copy_from_nonoverlapping(text.as_ptr(), text.len());
                name.add(text.len()).write(0);
            }
            Ok(())
        })
    }

    259 fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CuDevice) {
        asked(|state| {
            let device = devices::device(state, device)?;
            give(bytes, || Ok(devices::memory_bytes(state, device)))
        })
    }

    9 fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: CuDevice) {
        asked(|state| {
            let device = devices::device(state, device)?;
            give(value, || devices::attribute(attribute, device))
        })
    }

    386 fn cuDevicePrimaryCtxRetain(context: Out<CuContext>, device: CuDevice) {
        anywhere(|state, _| {
            let device = devices::device(state, device)?;
            give(context, || Ok(state.tables().context(device)))
        })
    }

    544 fn cuDevicePrimaryCtxRelease_v2(device: CuDevice) {
        anywhere(|state, _| devices::device(state, device).map(|_| ()))
    }

    312 fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CuDevice, peer: CuDevice) {
        asked(|state| {
            let (device, peer) = (
                devices::device(state, device)?,
                devices::device(state, peer)?,
            );
            give(can, || Ok(c_int::from(device != peer)))
        })
    }

    // ------------------------------------------------------------------ contexts

    304 fn cuCtxGetCurrent(context: Out<CuContext>) {
        asked(|state| {
            let handle = |device| state.tables().context(device);
            give(context, || Ok(state::current().map_or(0, handle)))
        })
    }

    16 fn cuCtxGetDevice(device: Out<CuDevice>) {
        call(|_, here| give(device, || Ok(here.device()?.0 as CuDevice)))
    }

    303 fn cuCtxSetCurrent(context: CuContext) {
        asked(|state| {
            let device = match context {
                0 => None,
                context => Some(state.tables().device_of(context)?),
            };
            state::set_current(device);
            Ok(())
        })
    }

    323 fn cuCtxPushCurrent_v2(context: CuContext) {
        asked(|state| {
            state::push_current(state.tables().device_of(context)?);
            Ok(())
        })
    }

    324 fn cuCtxPopCurrent_v2(context: Out<CuContext>) {
        asked(|state| {
            let device = state::pop_current().ok_or(INVALID_CONTEXT)?;
            _ = give(context, || Ok(state.tables().context(device)));
            Ok(())
        })
    }

    17 fn cuCtxSynchronize() {
        call(streams::synchronize_device)
    }

    370 fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        call(|_, _| {
            let (most_urgent, least_urgent) = streams::PRIORITIES;
            _ = give(least, || Ok(least_urgent));
            _ = give(greatest, || Ok(most_urgent));
            Ok(())
        })
    }

    313 fn cuCtxEnablePeerAccess(peer: CuContext, flags: c_uint) {
        call(|state, here| devices::enable_peer(state, here, peer, flags))
    }
}
