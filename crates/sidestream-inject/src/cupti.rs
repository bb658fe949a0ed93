//! CUPTI's functions, which are looked up in the user's own library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;

use crate::calls::RUNTIME;
use crate::system::Library;

/// The data of a callback for a call, as far as `CUpti_CallbackData` and `Sanitizer_CallbackData` have them both.
#[repr(C)]
pub struct Data {
    /// Zero before the call, one after it.
    pub site: c_int,
    /// The name of the function.
    pub function: *const c_char,
    /// The arguments, as a structure.
    pub arguments: *const u64,
    /// The result, after the call.
    pub result: *const c_int,
    /// The name of the kernel that is launched.
    pub kernel: *const c_char,
    /// The current context of the thread.
    pub context: u64,
}

/// The function that CUPTI calls.
pub type Callback = extern "C" fn(*mut c_void, c_int, u32, *const Data);

/// The domain of the driver's functions, and that of the runtime's.
pub const DRIVER: c_int = 1;
pub const OF_RUNTIME: c_int = 2;

type Subscriber = *mut c_void;

/// `CUpti_SubscriberParams`.
#[repr(C)]
struct Terms {
    bytes: usize,
    name: *const c_char,
    other: *mut c_char,
    other_bytes: usize,
    shares: u8,
}

/// A subscription, by which the calls are heard.
pub struct Cupti {
    /// The library.
    pub library: Library,
    subscriber: Subscriber,
}

/// Why there is no subscription.
pub enum NotSubscribed {
    /// The library lacks a function.
    Unknown,
    /// Another tool has subscribed; its name, if the library tells it.
    Taken(String),
    /// CUPTI's error.
    Error(c_int),
}

impl Cupti {
    /// Subscribes. Nothing is heard yet. Without sharing, it keeps other profilers out, or is kept out by them.
    pub fn subscribe(
        library: Library,
        callback: Callback,
        shares: bool,
    ) -> Result<Cupti, NotSubscribed> {
        // `CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED`.
        const TAKEN: c_int = 39;
        // `CUPTI_ERROR_INVALID_PARAMETER`.
        const INVALID: c_int = 1;
        let mut subscriber: Subscriber = std::ptr::null_mut();
        let mut other = [0 as c_char; 128];
        type SharedFn =
            unsafe extern "C" fn(*mut Subscriber, Callback, *mut c_void, *mut Terms) -> c_int;
        type AloneFn = unsafe extern "C" fn(*mut Subscriber, Callback, *mut c_void) -> c_int;
        // SAFETY: the types are those of CUPTI's header.
        let (shared, alone) = unsafe {
            (
                library.function::<SharedFn>(c"cuptiSubscribe_v2"),
                library.function::<AloneFn>(c"cuptiSubscribe"),
            )
        };
        if let (Some(subscribe), false) = (alone, shares) {
            // The functions for activity records that exist in all versions go with this one.
            // SAFETY: as below.
            let answer = unsafe { subscribe(&mut subscriber, callback, std::ptr::null_mut()) };
            if answer == 0 {
                return Ok(Cupti {
                    library,
                    subscriber,
                });
            }
        }
        let answer = match (shared, alone) {
            (Some(subscribe), _) => {
                let mut terms = Terms {
                    bytes: size_of::<Terms>(),
                    name: c"sidestream".as_ptr(),
                    other: other.as_mut_ptr(),
                    other_bytes: other.len(),
                    shares: u8::from(shares),
                };
                let mut ask = |bytes| {
                    terms.bytes = bytes;
                    // SAFETY: the pointers are valid for the call; the callback stays.
                    unsafe {
                        subscribe(&mut subscriber, callback, std::ptr::null_mut(), &mut terms)
                    }
                };
                // Before CUPTI 13.2, the structure ended before the word that asks to share.
                match ask(size_of::<Terms>()) {
                    INVALID => ask(offset_of!(Terms, shares)),
                    answer => answer,
                }
            }
            // SAFETY: as above.
            (None, Some(subscribe)) => unsafe {
                subscribe(&mut subscriber, callback, std::ptr::null_mut())
            },
            (None, None) => return Err(NotSubscribed::Unknown),
        };
        match answer {
            0 => Ok(Cupti {
                library,
                subscriber,
            }),
            TAKEN => {
                let last = other.len() - 1;
                other[last] = 0;
                // SAFETY: the array ends with a zero.
                let name = unsafe { CStr::from_ptr(other.as_ptr()) };
                Err(NotSubscribed::Taken(name.to_string_lossy().into_owned()))
            }
            error => Err(NotSubscribed::Error(error)),
        }
    }

    /// Hears a call from now on, if this CUPTI knows it.
    pub fn hear(&self, call: u16) {
        type EnableFn = unsafe extern "C" fn(u32, Subscriber, c_int, u32) -> c_int;
        // SAFETY: the type is that of CUPTI's header.
        let enable = unsafe { self.library.function::<EnableFn>(c"cuptiEnableCallback") };
        let (domain, call) = match call.checked_sub(RUNTIME) {
            Some(of_runtime) => (OF_RUNTIME, of_runtime),
            None => (DRIVER, call),
        };
        if let Some(enable) = enable {
            // SAFETY: the subscriber is CUPTI's own.
            unsafe { enable(1, self.subscriber, domain, u32::from(call)) };
        }
    }
}
