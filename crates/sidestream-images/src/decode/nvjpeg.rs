//! Decodes baseline JPEGs straight into device memory, with nvJPEG on the hardware engines of a GPU.
//!
//! The library is part of the CUDA toolkit and available as a wheel. It is loaded when the first engines are opened,
//! so that nothing else depends on it. Its functions are those of [NVIDIA's documentation][docs]. Only the batched
//! calls use the engines. One call is made at a time: on an H200 (CUDA 13.0) three states used by three threads at
//! once did not return, and one state with batches of 128 and more kept all seven engines busy.
//!
//! Pixels differ slightly from those of a decoder on the CPU, since the engines interpolate subsampled chroma
//! differently.
//!
//! [docs]: https://docs.nvidia.com/cuda/nvjpeg/

use std::ffi::{c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr;

use libloading::Library;

use crate::placed::Size;

/// `nvjpegStatus_t`; zero is success.
type Status = c_int;
/// `nvjpegBackend_t`: the hardware engines.
const BACKEND_HARDWARE: c_int = 3;
/// `nvjpegOutputFormat_t`: interleaved red, green and blue bytes.
const OUTPUT_RGBI: c_int = 5;
/// Names under which the system finds the library, the newest first.
pub const FILES: [&str; 3] = ["libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"];

/// `nvjpegImage_t`: the destination of a picture.
#[repr(C)]
struct Image {
    channel: [u64; 4],
    pitch: [usize; 4],
}

/// The functions of the library.
struct Functions {
    create_ex:
        unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, c_uint, *mut *mut c_void) -> Status,
    destroy: unsafe extern "C" fn(*mut c_void) -> Status,
    state_create: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> Status,
    state_destroy: unsafe extern "C" fn(*mut c_void) -> Status,
    hardware: unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut c_uint) -> Status,
    initialize: unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, c_int, c_int) -> Status,
    decode: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        *const *const u8,
        *const usize,
        *mut Image,
        *mut c_void,
    ) -> Status,
    file: PathBuf,
    // The functions point into the library, which is never unloaded because its threads may still run.
    _library: ManuallyDrop<Library>,
}

/// Why a GPU's engines cannot be used, or did not decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineError {
    /// The library was not found.
    NoLibrary {
        /// Each file that was tried, with the system's error message.
        tried: Vec<(PathBuf, String)>,
    },
    /// The library lacks a function: it is too old.
    NoFunction {
        /// The library's file.
        file: PathBuf,
        /// Name of the missing function.
        function: &'static str,
    },
    /// The GPU has no engines.
    NoEngines,
    /// A call failed.
    Failed {
        /// The function of nvJPEG.
        call: &'static str,
        /// Status that the function returned.
        status: i32,
    },
}

/// A picture that the engines are to decode.
#[derive(Debug, Clone, Copy)]
pub struct Encoded<'a> {
    /// Contents of the file.
    pub bytes: &'a [u8],
    /// Size in the header.
    pub size: Size,
    /// Address in device memory of the first pixel; rows follow each other without gaps.
    pub to: u64,
}

/// The hardware engines of one GPU.
pub struct Engines {
    functions: Functions,
    handle: *mut c_void,
    state: *mut c_void,
    engines: u32,
    /// Number of pictures per call that the state was initialised for; 0 if it has to be initialised again.
    initialized: usize,
}

// SAFETY: nvJPEG's handles are bound to no thread; every call takes `&mut self`, so only one thread uses them at a
// time.
unsafe impl Send for Engines {}

impl Engines {
    /// Opens the engines of the device whose context is current, with nvJPEG from the first of these files that can
    /// be loaded: paths, or names such as [`FILES`].
    ///
    /// # Errors
    /// If no library is found or the GPU has no engines.
    ///
    /// # Safety
    /// - Each of the files that can be loaded is nvJPEG: loading runs its code, and its functions are called with the
    ///   types of `nvjpeg.h`.
    /// - When the engines are dropped, on whichever thread, that context is alive and current.
    pub unsafe fn open(files: &[PathBuf]) -> Result<Engines, EngineError> {
        // SAFETY: the caller promises that the files are nvJPEG.
        let functions = unsafe { Functions::load(files) }?;
        let mut handle = ptr::null_mut();
        // SAFETY: no custom allocators, no flags, and a valid place for the handle.
        let status = unsafe {
            (functions.create_ex)(
                BACKEND_HARDWARE,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
                &mut handle,
            )
        };
        // The status of a GPU without engines: ARCH_MISMATCH or IMPLEMENTATION_NOT_SUPPORTED.
        if matches!(status, 7 | 9) {
            return Err(EngineError::NoEngines);
        }
        said("nvjpegCreateEx", status)?;
        // From here on, dropping `opened` frees what was created.
        let mut opened = Engines {
            functions,
            handle,
            state: ptr::null_mut(),
            engines: 0,
            initialized: 0,
        };
        let (mut engines, mut cores): (c_uint, c_uint) = (0, 0);
        // SAFETY: the handle was created above, and both results have a place.
        said("nvjpegGetHardwareDecoderInfo", unsafe {
            (opened.functions.hardware)(opened.handle, &mut engines, &mut cores)
        })?;
        if engines == 0 {
            return Err(EngineError::NoEngines);
        }
        opened.engines = engines;
        // SAFETY: the handle was created above, and the state has a place.
        said("nvjpegJpegStateCreate", unsafe {
            (opened.functions.state_create)(opened.handle, &mut opened.state)
        })?;
        Ok(opened)
    }

    /// Returns the number of engines of the GPU.
    pub fn count(&self) -> u32 {
        self.engines
    }

    /// Returns the file of the library in use.
    pub fn file(&self) -> &Path {
        &self.functions.file
    }

    /// Decodes these pictures. Work that is enqueued on the stream after this call finds them decoded.
    ///
    /// # Ordering
    /// Blocks the host for most of the time that the engines take. The engines do **not** wait for the stream's
    /// pending work: on an H100, nvJPEG of CUDA 12 and 13 wrote while the stream was still busy, and also while it
    /// waited for an event (measured by the developers of torchcodec, pull request 1634). Only a wait on the host
    /// orders earlier work before the decoding.
    ///
    /// # Errors
    /// If nvJPEG refuses the batch. The destination is then undefined.
    ///
    /// # Safety
    /// - `stream` is a stream of the current context, which is the context that the engines were opened in.
    /// - Each address has three bytes for each pixel. All earlier uses of these bytes have completed (being ahead in
    ///   the stream is not enough), and no other work uses them until the stream has completed this call.
    /// - The files' bytes do not change until then.
    /// - Each file is a baseline JPEG whose header has the size given here.
    pub unsafe fn decode(
        &mut self,
        pictures: &[Encoded<'_>],
        stream: u64,
    ) -> Result<(), EngineError> {
        if pictures.is_empty() {
            return Ok(());
        }
        // A call takes as many pictures as the state was initialised for, and another initialisation takes time. If a
        // few are missing, the smallest picture is decoded again, to its own place.
        let wanted = match self.initialized {
            count if (pictures.len()..=pictures.len() + pictures.len() / 8).contains(&count) => {
                count
            }
            _ => pictures.len(),
        };
        let smallest = pictures.iter().min_by_key(|one| one.bytes.len());
        let again = smallest.into_iter().cycle().take(wanted - pictures.len());
        let pictures: Vec<&Encoded<'_>> = pictures.iter().chain(again).collect();
        if self.initialized != wanted {
            self.initialized = 0;
            let count = c_int::try_from(wanted).unwrap_or(c_int::MAX);
            // SAFETY: handle and state are alive, one thread parses, and the output format is valid.
            said("nvjpegDecodeBatchedInitialize", unsafe {
                (self.functions.initialize)(self.handle, self.state, count, 1, OUTPUT_RGBI)
            })?;
            self.initialized = wanted;
        }
        let files: Vec<*const u8> = pictures.iter().map(|one| one.bytes.as_ptr()).collect();
        let lengths: Vec<usize> = pictures.iter().map(|one| one.bytes.len()).collect();
        let mut images: Vec<Image> = pictures.iter().map(|one| Image::of(one)).collect();
        // SAFETY: the three lists are as long as the state was initialised for; the caller guarantees what they point
        // to, and the stream.
        said("nvjpegDecodeBatched", unsafe {
            (self.functions.decode)(
                self.handle,
                self.state,
                files.as_ptr(),
                lengths.as_ptr(),
                images.as_mut_ptr(),
                stream as *mut c_void,
            )
        })
        .inspect_err(|_| self.initialized = 0)
    }
}

impl Image {
    fn of(picture: &Encoded<'_>) -> Image {
        let row_bytes = picture.size.width as usize * 3;
        Image {
            channel: [picture.to, 0, 0, 0],
            pitch: [row_bytes, 0, 0, 0],
        }
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        // An error while freeing cannot be handled here.
        if !self.state.is_null() {
            // SAFETY: the state was created by this library and is no longer in use; the caller of `open` guarantees
            // the context.
            unsafe { (self.functions.state_destroy)(self.state) };
        }
        // SAFETY: as above.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

impl Functions {
    /// # Safety
    /// Each of the files that can be loaded is nvJPEG.
    unsafe fn load(files: &[PathBuf]) -> Result<Functions, EngineError> {
        let mut tried = Vec::new();
        for file in files {
            // SAFETY: the caller promises that the file is nvJPEG; loading it runs its initialisers.
            match unsafe { Library::new(file) } {
                Ok(library) => return Functions::of(library, file.clone()),
                Err(error) => tried.push((file.clone(), error.to_string())),
            }
        }
        Err(EngineError::NoLibrary { tried })
    }

    fn of(library: Library, file: PathBuf) -> Result<Functions, EngineError> {
        /// # Safety
        /// The function with this name has the type `F`.
        unsafe fn found<F: Copy>(
            library: &Library,
            file: &Path,
            function: &'static str,
        ) -> Result<F, EngineError> {
            // SAFETY: the caller promises the type.
            let symbol = unsafe { library.get::<F>(function.as_bytes()) };
            symbol
                .map(|symbol| *symbol)
                .map_err(|_| EngineError::NoFunction {
                    file: file.to_owned(),
                    function,
                })
        }
        // SAFETY: the types are those of `nvjpeg.h`.
        unsafe {
            Ok(Functions {
                create_ex: found(&library, &file, "nvjpegCreateEx")?,
                destroy: found(&library, &file, "nvjpegDestroy")?,
                state_create: found(&library, &file, "nvjpegJpegStateCreate")?,
                state_destroy: found(&library, &file, "nvjpegJpegStateDestroy")?,
                hardware: found(&library, &file, "nvjpegGetHardwareDecoderInfo")?,
                initialize: found(&library, &file, "nvjpegDecodeBatchedInitialize")?,
                decode: found(&library, &file, "nvjpegDecodeBatched")?,
                file,
                _library: ManuallyDrop::new(library),
            })
        }
    }
}

fn said(call: &'static str, status: Status) -> Result<(), EngineError> {
    match status {
        0 => Ok(()),
        status => Err(EngineError::Failed { call, status }),
    }
}

/// Returns the name of a status in `nvjpeg.h`.
fn named(status: i32) -> &'static str {
    match status {
        1 => "not initialized",
        2 => "invalid parameter",
        3 => "bad JPEG",
        4 => "JPEG not supported",
        5 => "allocator failure",
        6 => "execution failed",
        7 => "architecture mismatch",
        8 => "internal error",
        9 => "implementation not supported",
        10 => "incomplete bit stream",
        _ => "unknown",
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::NoLibrary { tried } => {
                write!(f, "nvJPEG could not be loaded; tried")?;
                for (at, (file, why)) in tried.iter().enumerate() {
                    let comma = if at == 0 { "" } else { "," };
                    write!(f, "{comma} {} ({why})", file.display())?;
                }
                write!(
                    f,
                    "; install CUDA's toolkit or a wheel (nvidia-nvjpeg for CUDA 13, nvidia-nvjpeg-cu12 for CUDA 12), or decode on the CPU"
                )
            }
            EngineError::NoFunction { file, function } => write!(
                f,
                "{} has no function {function}: it is too old; nvJPEG of CUDA 12 or later is needed",
                file.display()
            ),
            EngineError::NoEngines => {
                write!(f, "this GPU has no engines for JPEG: decode on the CPU")
            }
            EngineError::Failed { call, status } => {
                write!(f, "{call} failed: {} ({status})", named(*status))
            }
        }
    }
}

impl std::error::Error for EngineError {}
