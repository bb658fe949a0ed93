//! The functions that the shared library exports, by subject: here the driver, its devices and contexts; nvJPEG's are
//! in `jpeg`.

mod code;
mod graphs;
mod jpeg;
mod work;

use std::ffi::{c_char, c_int, c_uint};

use sidestream::backend::Backend;
use sidestream::cuda::driver::{Code, CuContext, CuDevice};

use crate::arguments::{Out, give, word};
use crate::codes::{self, INVALID_CONTEXT, INVALID_VALUE};
use crate::state::{self, always, anywhere, asked, call};
use crate::{devices, streams};

// ------------------------------------------------------------------ devices

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
        // SAFETY: as the documentation of this crate requires, `name` has `len` bytes.
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
