//! The parameters of kernels: which words of them may be addresses.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::calls::PARAMETER;
use crate::system::{Library, text};

type ParameterFn = unsafe extern "C" fn(u64, usize, *mut usize, *mut usize) -> c_int;
type NameFn = unsafe extern "C" fn(*mut *const c_char, u64) -> c_int;

/// What is known of kernels, by their handles.
pub struct Kernels {
    known: Mutex<HashMap<u64, &'static [Parameter]>>,
    of_function: Option<ParameterFn>,
    of_kernel: Option<ParameterFn>,
    /// The names of a function and of a kernel.
    names: [Option<NameFn>; 2],
    /// All memory that calls made known lies between these addresses.
    lowest: AtomicU64,
    highest: AtomicU64,
}

/// The place of a parameter in the buffer of all, in bytes.
#[derive(Clone, Copy)]
struct Parameter {
    offset: usize,
    bytes: usize,
}

/// A launch's parameters, as the driver takes them.
#[derive(Clone, Copy)]
pub struct LaunchArguments {
    /// An array of pointers, one to each parameter; or null.
    pub parameters: *const *const u8,
    /// An array with the buffer of all parameters; or null.
    pub extra: *const *const u8,
}

/// The largest number of addresses that is written of one launch.
const MAX_ADDRESSES: usize = 256;

impl LaunchArguments {
    /// Of the words of a call.
    pub fn new(parameters: u64, extra: u64) -> LaunchArguments {
        LaunchArguments {
            parameters: parameters as *const *const u8,
            extra: extra as *const *const u8,
        }
    }
}

impl Kernels {
    /// Finds the driver's functions.
    pub fn new() -> Kernels {
        let driver = Library::driver();
        let find = |name: &CStr| {
            // SAFETY: the type is that of `cuda.h`.
            unsafe { driver.function::<ParameterFn>(name) }
        };
        Kernels {
            known: Mutex::new(HashMap::new()),
            of_function: find(c"cuFuncGetParamInfo"),
            of_kernel: find(c"cuKernelGetParamInfo"),
            // SAFETY: as above.
            names: [c"cuFuncGetName", c"cuKernelGetName"]
                .map(|name| unsafe { driver.function(name) }),
            lowest: AtomicU64::new(u64::MAX),
            highest: AtomicU64::new(0),
        }
    }

    /// Takes note of memory: words that lie in it may be addresses.
    pub fn made(&self, at: u64, bytes: u64) {
        self.lowest.fetch_min(at, Ordering::Relaxed);
        self.highest
            .fetch_max(at.saturating_add(bytes), Ordering::Relaxed);
    }

    /// The addresses between which all known memory lies.
    fn memory(&self) -> Range<u64> {
        self.lowest.load(Ordering::Relaxed)..self.highest.load(Ordering::Relaxed)
    }

    /// Returns the parameters of a kernel, and whether this is the first time.
    fn of(&self, kernel: u64) -> (&'static [Parameter], bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parameters) = known.get(&kernel) {
            return (parameters, false);
        }
        let ask = |function: Option<ParameterFn>| {
            let function = function?;
            let mut all = Vec::new();
            // CUDA allows 32 KiB of parameters.
            while all.len() < 4096 {
                let (mut offset, mut bytes) = (0, 0);
                // SAFETY: the handle was just launched; a handle of the other kind is refused.
                if unsafe { function(kernel, all.len(), &mut offset, &mut bytes) } != 0 {
                    break;
                }
                all.push(Parameter { offset, bytes });
            }
            (!all.is_empty()).then_some(all)
        };
        let parameters = ask(self.of_function)
            .or_else(|| ask(self.of_kernel))
            .unwrap_or_default();
        let parameters: &'static [Parameter] = Box::leak(parameters.into_boxed_slice());
        known.insert(kernel, parameters);
        (parameters, true)
    }

    /// Returns the name of a kernel that the driver knows; nothing if it does not tell.
    pub fn name(&self, kernel: u64) -> &[u8] {
        let mut name = std::ptr::null();
        for of in self.names.into_iter().flatten() {
            // SAFETY: a handle of the other kind is refused; a name is a text of C that lives as long as the kernel.
            unsafe {
                if of(&mut name, kernel) == 0 {
                    return text(name);
                }
            }
        }
        &[]
    }

    /// Forgets all kernels: their handles may be used again.
    pub fn forget(&self) {
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Appends a number that differs if the other words of a launch's parameters do, then the words that may be addresses.
    /// Returns whether the kernel is new.
    ///
    /// # Safety
    /// The driver was given the kernel and the parameters, and they are still there.
    pub unsafe fn addresses(
        &self,
        kernel: u64,
        given: LaunchArguments,
        into: &mut Vec<u64>,
    ) -> bool {
        let (parameters, is_new) = self.of(kernel);
        let (others, mut hash) = (into.len(), 0_u64);
        into.push(0);
        let known = self.memory();
        let room = into.len() + 2 * MAX_ADDRESSES;
        // SAFETY: the caller promises it.
        for (number, from, len_bytes) in unsafe { places(parameters, given) } {
            for offset in (0..len_bytes).step_by(8) {
                let mut bytes = [0; 8];
                let len = (len_bytes - offset).min(8);
                // SAFETY: the driver reads all bytes of the parameter.
                unsafe {
                    bytes
                        .as_mut_ptr()
                        .copy_from_nonoverlapping(from.add(offset), len)
                };
                let word = u64::from_ne_bytes(bytes);
                if len == 8 && known.contains(&word) && into.len() < room {
                    into.push(PARAMETER | (number as u64) << 32 | offset as u64);
                    into.push(word);
                } else {
                    hash = (hash ^ word)
                        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                        .rotate_left(29);
                }
            }
        }
        into[others] = hash;
        is_new
    }

    /// Appends the words of what may be tensor maps among a launch's parameters.
    ///
    /// # Safety
    /// As of [`Kernels::addresses`].
    pub unsafe fn maps(&self, kernel: u64, given: LaunchArguments, into: &mut Vec<u64>) {
        let known = self.memory();
        // SAFETY: the caller promises it.
        for (_, from, len_bytes) in unsafe { places(self.of(kernel).0, given) } {
            // All are aligned to 64 bytes.
            let places = (0..len_bytes).step_by(64);
            for at in places.take_while(|at| at + size_of::<Map>() <= len_bytes) {
                // SAFETY: the driver reads all bytes of the parameter.
                let map: Map = unsafe { from.add(at).cast::<Map>().read_unaligned() };
                let is_map = known.contains(&map[0]) && may_be(&map);
                if is_map && into.len() < MAX_MAPS * map.len() {
                    into.extend(map);
                }
            }
        }
    }
}

/// The words of a `CUtensorMap`.
type Map = [u64; 16];
/// The largest number of maps that are written of one launch.
const MAX_MAPS: usize = 8;

/// Whether these words may be a tensor map: the tensor is aligned, the bits that say of what kind it is are no others, and there
/// are neither strides nor sizes beyond its dimensions. (The command reads the rest, and says how that is known.)
fn may_be(map: &Map) -> bool {
    let half = |at: usize| (map[at / 2] >> (32 * (at % 2))) as u32;
    let dimensions = (half(2) >> 4 & 7) as usize + 1;
    map[0].is_multiple_of(16)
        && half(2) & !0x7_fff1 == 0
        && dimensions <= 5
        && (2 + dimensions..7)
            .chain(8 + dimensions..13)
            .all(|beyond| half(beyond) == 0)
}

/// Returns the parameters of a launch: their numbers, where they are, and their bytes.
///
/// # Safety
/// As of [`Kernels::addresses`].
unsafe fn places(
    parameters: &'static [Parameter],
    given: LaunchArguments,
) -> impl Iterator<Item = (usize, *const u8, usize)> {
    // `CU_LAUNCH_PARAM_BUFFER_POINTER`, which the buffer follows.
    const BUFFER: usize = 1;
    let mut buffer: *const u8 = std::ptr::null();
    if given.parameters.is_null() && !given.extra.is_null() {
        for at in 0..4 {
            // SAFETY: pairs of a name and a value, which end with a null name.
            let name = unsafe { *given.extra.add(2 * at) }.addr();
            if name == BUFFER {
                // SAFETY: as above.
                buffer = unsafe { *given.extra.add(2 * at + 1) };
            }
            if name <= BUFFER {
                break;
            }
        }
    }
    let place = move |(number, parameter): (usize, &Parameter)| {
        let from = if !given.parameters.is_null() {
            // SAFETY: the driver reads a pointer for each parameter.
            unsafe { *given.parameters.add(number) }
        } else if !buffer.is_null() {
            buffer.wrapping_add(parameter.offset)
        } else {
            std::ptr::null()
        };
        (!from.is_null()).then_some((number, from, parameter.bytes))
    };
    parameters.iter().enumerate().filter_map(place)
}
