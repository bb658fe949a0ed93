//! Kernels: loading their code on a device, and passing their arguments.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::devices::{COMPUTE_MAJOR, COMPUTE_MINOR, Opened};
use super::driver::{Code as Answer, CuDevice, CuFunction, CuModule, Driver, SUCCESS};
use super::nvrtc::{NotCompiled, Nvrtc};
use crate::backend::{Arg, Code, Grid, Image};
use crate::error::{Error, Result};
use crate::op::DeviceId;

/// The loaded code: modules by device and image, so that each image is loaded only once, and functions by device and
/// kernel.
pub(super) struct Kernels {
    modules: Mutex<HashMap<(DeviceId, Image), CuModule>>,
    functions: Mutex<HashMap<(DeviceId, u64), CuFunction>>,
    /// Names of kernels, in the order of their first use.
    names: Mutex<Vec<String>>,
    numbers: Mutex<HashMap<u64, u32>>,
    /// Architecture per device: 90 is compute capability 9.0.
    architectures: Vec<u32>,
    /// NVRTC, loaded when the first kernel in CUDA C++ is used.
    compiler: OnceLock<Nvrtc>,
    /// The file of NVRTC; `None` to search for it.
    compiler_file: Option<PathBuf>,
}

/// A kernel loaded on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loaded {
    pub function: CuFunction,
    /// Index of its name in the list of names.
    pub name: u32,
}

impl Kernels {
    /// Makes an empty table for these devices. `compiler_file` is the file of NVRTC; `None` to search for it.
    ///
    /// # Safety
    /// As for [`Nvrtc::load`], which any launch may call.
    pub(super) unsafe fn new(
        opened: &Opened,
        devices: &[CuDevice],
        compiler_file: Option<&Path>,
    ) -> Kernels {
        let architecture = |&device: &CuDevice| {
            let attribute = |which| opened.attribute(device, which).max(0) as u32;
            attribute(COMPUTE_MAJOR) * 10 + attribute(COMPUTE_MINOR)
        };
        Kernels {
            modules: Mutex::default(),
            functions: Mutex::default(),
            names: Mutex::default(),
            numbers: Mutex::default(),
            architectures: devices.iter().map(architecture).collect(),
            compiler: OnceLock::new(),
            compiler_file: compiler_file.map(Path::to_owned),
        }
    }

    /// Loads the kernel on a device. The context of the device is current.
    ///
    /// # Errors
    /// If the kernel has no image, or any error of the compiler or the driver.
    pub(super) fn load(&self, driver: &Driver, device: DeviceId, code: &Code) -> Result<Loaded> {
        let name = self.number(code);
        let key = (device, code.loaded.id());
        if let Some(&function) = self.functions.lock().get(&key) {
            return Ok(Loaded { function, name });
        }
        let module = self.module(driver, device, code)?;
        let entry = CString::new(code.name.as_str()).map_err(|_| refused(500, NUL.into()))?;
        let mut function = 0;
        // SAFETY: the module is loaded, the name ends with a zero, and one handle is written.
        let answer = unsafe { (driver.cuModuleGetFunction)(&mut function, module, entry.as_ptr()) };
        if answer != SUCCESS {
            let why = format!(
                "the image has no entry `{}` ({}); declare it `extern \"C\" __global__`",
                code.name,
                driver.words(answer)
            );
            return Err(refused(answer, why));
        }
        self.functions.lock().insert(key, function);
        Ok(Loaded { function, name })
    }

    pub(super) fn name(&self, number: u32) -> String {
        let names = self.names.lock();
        names.get(number as usize).cloned().unwrap_or_default()
    }

    /// Unloads all modules.
    pub(super) fn close(&self, driver: &Driver, mut bind: impl FnMut(DeviceId)) {
        self.functions.lock().clear();
        for ((device, _), module) in self.modules.lock().drain() {
            bind(device);
            // SAFETY: the module was loaded in the context of its device, and no work is left.
            unsafe { (driver.cuModuleUnload)(module) };
        }
    }

    fn module(&self, driver: &Driver, device: DeviceId, code: &Code) -> Result<CuModule> {
        let Some(image) = &code.image else {
            return Err(Error::NoForm {
                kernel: code.name.clone(),
                needed: "PTX or CUDA source, which a real GPU runs",
            });
        };
        let mut modules = self.modules.lock();
        let key = (device, image.clone());
        if let Some(&module) = modules.get(&key) {
            return Ok(module);
        }
        let module = match image {
            Image::Ptx(text) => {
                let text = CString::new(text.as_str()).map_err(|_| refused(218, NUL.into()))?;
                load_image(driver, &code.name, text.as_bytes_with_nul())?
            }
            Image::Cuda(source) => {
                let built = self.compiled(driver, source, &code.name, device);
                let built = built.map_err(|why| Error::NotCompiled {
                    kernel: code.name.clone(),
                    why: why.to_string(),
                })?;
                load_image(driver, &code.name, &built)?
            }
        };
        modules.insert(key, module);
        Ok(module)
    }

    /// Compiles a source for a device. If no compiler is found, the next call searches again.
    fn compiled(
        &self,
        driver: &Driver,
        source: &str,
        name: &str,
        device: DeviceId,
    ) -> Result<Vec<u8>, NotCompiled> {
        let compiler = match self.compiler.get() {
            Some(compiler) => compiler,
            None => {
                let mut version = 0;
                // SAFETY: writes one integer.
                unsafe { (driver.cuDriverGetVersion)(&mut version) };
                // SAFETY: the caller that named the file has promised it to `Kernels::new`.
                let loaded = unsafe { Nvrtc::load(self.compiler_file.as_deref(), version)? };
                self.compiler.get_or_init(|| loaded)
            }
        };
        compiler.compile(source, name, self.architectures[device.0 as usize])
    }

    fn number(&self, code: &Code) -> u32 {
        let mut numbers = self.numbers.lock();
        *numbers.entry(code.loaded.id()).or_insert_with(|| {
            let mut names = self.names.lock();
            names.push(code.name.clone());
            names.len() as u32 - 1
        })
    }
}

const NUL: &str = "it contains a zero byte; remove it";

/// Loads PTX or a cubin. The error contains the messages of the driver's compiler.
fn load_image(driver: &Driver, name: &str, image: &[u8]) -> Result<CuModule> {
    /// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
    const LOG: [c_int; 2] = [5, 6];
    let mut log = vec![0u8; 4096];
    let mut options = LOG;
    let mut values = [
        log.as_mut_ptr().cast::<c_void>(),
        // The size itself is passed where a pointer is expected.
        ptr::without_provenance_mut(log.len()),
    ];
    let mut module = 0;
    // SAFETY: the image ends with a zero or contains its own length, as the driver requires; the log has the stated
    // size, and two options with two values are passed.
    let answer = unsafe {
        (driver.cuModuleLoadDataEx)(
            &mut module,
            image.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    if answer == SUCCESS {
        return Ok(module);
    }
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(0);
    let said = String::from_utf8_lossy(&log[..end]);
    let said = said.trim().replace('\n', "; ");
    let words = driver.words(answer);
    let why = if said.is_empty() {
        format!("kernel `{name}` cannot be loaded: {words}")
    } else {
        format!("kernel `{name}` cannot be loaded: {words}; the compiler says: {said}")
    };
    Err(refused(answer, why))
}

fn refused(code: Answer, why: String) -> Error {
    Error::Refused {
        call: "kernel",
        code,
        why,
    }
}

// ------------------------------------------------------------------ arguments

/// The values of a launch's arguments, with the pointers to them that the driver reads.
pub(super) struct Params {
    /// Up to [`FEW`] values, as almost every kernel has; if there are more, the vectors contain all of them.
    values: [u64; FEW],
    pointers: [*mut c_void; FEW],
    many: (Vec<u64>, Vec<*mut c_void>),
}

const FEW: usize = 8;

impl Params {
    pub(super) const NONE: Params = Params {
        values: [0; FEW],
        pointers: [ptr::null_mut(); FEW],
        many: (Vec::new(), Vec::new()),
    };

    /// Returns the driver's argument array for these; valid until the params are moved or changed.
    #[inline]
    pub(super) fn of(&mut self, args: &[Arg]) -> *mut *mut c_void {
        let pointer = |value: &mut u64| ptr::from_mut(value).cast();
        if args.len() > FEW {
            let (values, pointers) = &mut self.many;
            *values = args.iter().map(word).collect();
            *pointers = values.iter_mut().map(pointer).collect();
            return pointers.as_mut_ptr();
        }
        let places = self.values.iter_mut().zip(&mut self.pointers);
        for (arg, (value, pointed)) in args.iter().zip(places) {
            *value = word(arg);
            *pointed = pointer(value);
        }
        self.pointers.as_mut_ptr()
    }
}

#[inline]
fn word(arg: &Arg) -> u64 {
    match *arg {
        Arg::Memory { at, .. } => at.0,
        // A shorter number is read from its lowest bytes.
        Arg::Scalar { bytes, .. } => u64::from_le_bytes(bytes),
    }
}

/// Dynamic shared memory per block above this size has to be requested.
const SHARED_BYTES: u32 = 48 << 10;

/// Requests for a function the dynamic shared memory that a grid needs.
pub(super) fn allow_shared(driver: &Driver, function: CuFunction, grid: &Grid) -> Answer {
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    const MAX_DYNAMIC: c_int = 8;
    if grid.shared_bytes > SHARED_BYTES {
        // SAFETY: the function is loaded.
        unsafe { (driver.cuFuncSetAttribute)(function, MAX_DYNAMIC, grid.shared_bytes as c_int) }
    } else {
        SUCCESS
    }
}

/// Adds the kernel and the grid to the error of a refused launch: only the driver knows which grids fit, and its
/// message names neither.
#[cold]
pub(super) fn of_launch(error: Error, kernel: &Code, grid: &Grid) -> Error {
    let Error::Refused { call, code, why } = error else {
        return error;
    };
    let times = |[x, y, z]: [u32; 3]| format!("{x} x {y} x {z}");
    let why = format!(
        "kernel `{}` on {} blocks of {} threads with {} bytes of shared memory: {why}",
        kernel.name,
        times(grid.blocks),
        times(grid.threads),
        grid.shared_bytes
    );
    Error::Refused { call, code, why }
}

const _: () = assert!(size_of::<c_uint>() == 4 && size_of::<c_char>() == 1);
