//! CUPTI's functions, for programs that load this file in place of CUPTI too: a subscriber is called back when a
//! function of the driver is entered and left. And the library that `cuInit` loads, which may be the subscriber.
//!
//! Codes are CUPTI's own. Those of an invalid parameter and of an unknown error are the driver's too.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use libloading::Library;
use sidestream::cuda::driver::{Code, CuContext, CuFunction, SUCCESS};

use super::all;
use crate::arguments::{Out, give, word};
use crate::codes::{Answer, INVALID_VALUE, UNKNOWN};
use crate::failing::refuse_asked;
use crate::handles::fresh;
use crate::state::{self, always};

/// A function of the driver that is exported.
pub struct Function {
    pub name: &'static CStr,
    /// The number by which CUPTI identifies the function.
    pub cbid: u32,
    pub at: *const c_void,
}

/// Exports functions of the driver, and lists them as `FUNCTIONS`. The number is CUPTI's. Arguments are `Copy`, so that
/// the subscriber sees them too: CUPTI's structure of a call has them in the same order.
macro_rules! driver {
    ($($(#[$meta:meta])* $cbid:literal fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        pub const FUNCTIONS: &[crate::functions::cupti::Function] = &[$(
            crate::functions::cupti::Function {
                name: crate::codes::c_text!(stringify!($name)),
                cbid: $cbid,
                at: $name as *const std::ffi::c_void,
            },
        )*];
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $type),*) -> Code {
                #[repr(C)]
                #[allow(dead_code, non_camel_case_types, reason = "the subscriber reads the arguments")]
                struct Params<$($arg),*> { $($arg: $arg),* }
                let params = Params { $($arg),* };
                crate::functions::cupti::traced($cbid, stringify!($name), (&raw const params).cast(), || $body)
            }
        )*
    };
}
pub(super) use driver;

// ------------------------------------------------------------------ callbacks

#[derive(Clone, Copy)]
struct Subscriber {
    handle: u64,
    callback: Callback,
    userdata: usize,
}

type Callback = unsafe extern "C" fn(*mut c_void, c_int, u32, *const CallbackData);

/// `CUpti_CallbackData`.
#[repr(C)]
struct CallbackData {
    site: c_int,
    name: *const c_char,
    params: *const c_void,
    /// Null when the function is entered.
    result: *mut c_void,
    /// The kernel of a launch.
    symbol: *const c_char,
    context: CuContext,
    context_uid: u32,
    correlation_data: *mut u64,
    correlation_id: u32,
}

const ENTER: c_int = 0;
const EXIT: c_int = 1;
const DOMAINS: std::ops::RangeInclusive<c_int> = DRIVER_API..=6;
const DRIVER_API: c_int = 1;
const MULTIPLE_SUBSCRIBERS: Code = 39;

static SUBSCRIBER: Mutex<Option<Subscriber>> = Mutex::new(None);
/// Whether the subscriber is called back, by the function's number.
static ENABLED: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];

fn subscriber() -> MutexGuard<'static, Option<Subscriber>> {
    SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a function of the driver, unless the call is to fail; calls the subscriber back before and after.
pub fn traced(cbid: u32, name: &str, params: *const c_void, f: impl FnOnce() -> Code) -> Code {
    let run = || match refuse_asked(name) {
        Ok(()) => f(),
        Err(code) => code,
    };
    let is_enabled = ENABLED[cbid as usize].load(Ordering::Relaxed);
    let Some(subscriber) = is_enabled.then(|| *subscriber()).flatten() else {
        return run();
    };
    static CALLS: AtomicU32 = AtomicU32::new(1);
    let correlation_id = CALLS.fetch_add(1, Ordering::Relaxed);
    let mut correlation_data = 0;
    let symbol = launched(cbid, params).and_then(state::symbol);
    let mut tell = |site, result| {
        let (context, context_uid) = state::current_context();
        let data = CallbackData {
            site,
            name: name_of(cbid).map_or(std::ptr::null(), CStr::as_ptr),
            params,
            result,
            symbol: symbol.unwrap_or(std::ptr::null()),
            context,
            context_uid,
            correlation_data: &raw mut correlation_data,
            correlation_id,
        };
        let userdata = std::ptr::with_exposed_provenance_mut(subscriber.userdata);
        // SAFETY: the subscriber promised that its function may be called with these.
        unsafe { (subscriber.callback)(userdata, DRIVER_API, cbid, &raw const data) };
    };
    tell(ENTER, std::ptr::null_mut());
    let mut code = run();
    tell(EXIT, (&raw mut code).cast());
    code
}

/// Returns the function that a launch names.
fn launched(cbid: u32, params: *const c_void) -> Option<CuFunction> {
    let place = match cbid {
        LAUNCH => 0,
        LAUNCH_EX => 1,
        _ => return None,
    };
    // SAFETY: this many words after its start, the structure has the function.
    Some(unsafe { *params.cast::<CuFunction>().add(place) })
}

const LAUNCH: u32 = 307;
const LAUNCH_EX: u32 = 652;

fn name_of(cbid: u32) -> Option<&'static CStr> {
    all()
        .find(|function| function.cbid == cbid)
        .map(|function| function.name)
}

// ------------------------------------------------------------------ CUPTI's functions

#[unsafe(no_mangle)]
extern "C" fn cuptiGetVersion(version: Out<u32>) -> Code {
    always(|| give(version, || Ok(130_000)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetResultString(code: Code, text: Out<*const c_char>) -> Code {
    always(|| {
        let known = match code {
            SUCCESS => Some(c"CUPTI_SUCCESS"),
            INVALID_VALUE => Some(c"CUPTI_ERROR_INVALID_PARAMETER"),
            MULTIPLE_SUBSCRIBERS => Some(c"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"),
            UNKNOWN => Some(c"CUPTI_ERROR_UNKNOWN"),
            _ => None,
        };
        word(text, known)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuptiGetCallbackName(domain: c_int, cbid: u32, name: Out<*const c_char>) -> Code {
    always(|| word(name, name_of(cbid).filter(|_| domain == DRIVER_API)))
}

#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe(
    handle: Out<u64>,
    callback: Option<Callback>,
    userdata: *mut c_void,
) -> Code {
    always(|| {
        let callback = callback.ok_or(INVALID_VALUE)?;
        let mut subscriber = subscriber();
        if subscriber.is_some() {
            return Err(MULTIPLE_SUBSCRIBERS);
        }
        give(handle, || {
            let userdata = userdata.expose_provenance();
            let handle = fresh();
            *subscriber = Some(Subscriber {
                handle,
                callback,
                userdata,
            });
            Ok(handle)
        })
    })
}

/// Never allows a second subscriber, whatever the parameters ask for.
#[unsafe(no_mangle)]
extern "C" fn cuptiSubscribe_v2(
    handle: Out<u64>,
    callback: Option<Callback>,
    userdata: *mut c_void,
    _params: *mut c_void,
) -> Code {
    cuptiSubscribe(handle, callback, userdata)
}

#[unsafe(no_mangle)]
extern "C" fn cuptiUnsubscribe(handle: u64) -> Code {
    always(|| {
        enable(handle, DRIVER_API, false, &ENABLED)?;
        *subscriber() = None;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableCallback(enabled: u32, handle: u64, domain: c_int, cbid: u32) -> Code {
    always(|| {
        let one = ENABLED.get(cbid as usize).ok_or(INVALID_VALUE)?;
        enable(handle, domain, enabled != 0, std::slice::from_ref(one))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuptiEnableDomain(enabled: u32, handle: u64, domain: c_int) -> Code {
    always(|| enable(handle, domain, enabled != 0, &ENABLED))
}

/// Enables callbacks, or disables them. The other domains exist, but nothing happens in them.
fn enable(handle: u64, domain: c_int, enabled: bool, which: &[AtomicBool]) -> Answer<()> {
    let is_subscriber = subscriber().is_some_and(|known| known.handle == handle);
    if !is_subscriber || !DOMAINS.contains(&domain) {
        return Err(INVALID_VALUE);
    }
    if domain == DRIVER_API {
        which
            .iter()
            .for_each(|callback| callback.store(enabled, Ordering::Relaxed));
    }
    Ok(())
}

// ------------------------------------------------------------------ injection

/// Loads the library that `CUDA_INJECTION64_PATH` names and calls its function, as `cuInit` of the driver does, once.
pub fn inject() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(file) = std::env::var_os("CUDA_INJECTION64_PATH").filter(|file| !file.is_empty())
        else {
            return;
        };
        // SAFETY: who sets the variable promises that the library has the function, of this type. It stays loaded.
        let answer = unsafe {
            Library::new(&file).and_then(|library| {
                let library = ManuallyDrop::new(library);
                let initialize = *library.get::<extern "C" fn() -> c_int>("InitializeInjection")?;
                Ok(initialize())
            })
        };
        match answer {
            Ok(0) => eprintln!("stand-in for the CUDA driver: {} refused", file.display()),
            Ok(_) => {}
            Err(why) => eprintln!("stand-in for the CUDA driver: {why}"),
        }
    });
}
