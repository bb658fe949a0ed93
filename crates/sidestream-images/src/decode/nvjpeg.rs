//! nvJPEG's decoder on the hardware engines of a GPU: baseline JPEG straight into device memory.
//!
//! The library comes with CUDA's toolkit or with a wheel, and is loaded when the first engines are opened, so that
//! nothing depends on it. Its functions are those of [NVIDIA's documentation][docs]. Only the batched calls reach the
//! engines; one call at a time is made, since on an H200 (CUDA 13.0) three states used by three threads at once did not
//! come back, and one state with batches of 128 and more kept all seven engines busy by itself.
//!
//! Pixels differ a little from those of a decoder on the processor: the engines interpolate colour of less resolution
//! in another way.
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
/// `nvjpegOutputFormat_t`: red, green and blue bytes of a pixel behind each other.
const OUTPUT_RGBI: c_int = 5;
/// What the library is called where the system finds it by name: the newest first.
pub const FILES: [&str; 3] = ["libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"];

/// `nvjpegImage_t`: where a picture goes.
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
    // What the functions point into; never unloaded, because its threads may still run.
    _library: ManuallyDrop<Library>,
}

/// Why a GPU's engines cannot be used, or did not decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineError {
    /// The library is not there.
    NoLibrary {
        /// Each file that was tried, with what the system said.
        tried: Vec<(PathBuf, String)>,
    },
    /// The library has no such function: it is too old.
    NoFunction {
        /// Where it was looked for.
        file: PathBuf,
        /// Which.
        function: &'static str,
    },
    /// The GPU has no engines.
    NoEngines,
    /// A call failed.
    Failed {
        /// The function of nvJPEG.
        call: &'static str,
        /// What it answered.
        status: i32,
    },
}

/// A picture for the engines.
#[derive(Debug, Clone, Copy)]
pub struct Encoded<'a> {
    /// The file.
    pub bytes: &'a [u8],
    /// What its header says.
    pub size: Size,
    /// The address in device memory where its first pixel goes; rows follow each other without gaps.
    pub to: u64,
}

/// The hardware engines of one GPU.
pub struct Engines {
    functions: Functions,
    handle: *mut c_void,
    state: *mut c_void,
    engines: u32,
    /// How many pictures a call takes; 0 if it has to be said anew.
    initialized: usize,
}

// SAFETY: nvJPEG's handles belong to no thread; `&mut self` at each call sees to it that one thread uses them at a time.
unsafe impl Send for Engines {}

impl Engines {
    /// Opens the engines of the device whose context is current, with nvJPEG from the first of these files that can be loaded:
    /// paths, or names such as [`FILES`].
    ///
    /// # Errors
    /// If there is no library or the GPU has no engines.
    ///
    /// # Safety
    /// - Whichever of the files can be loaded is nvJPEG: loading runs its code, and its functions are called by the types of `nvjpeg.h`.
    /// - Where the engines are dropped, on whatever thread, that context is alive and current.
    pub unsafe fn open(files: &[PathBuf]) -> Result<Engines, EngineError> {
        // SAFETY: the caller says that they are nvJPEG.
        let functions = unsafe { Functions::load(files) }?;
        let mut handle = ptr::null_mut();
        // SAFETY: no allocators of our own, no flags, and a place for the handle.
        let status = unsafe {
            (functions.create_ex)(
                BACKEND_HARDWARE,
                ptr::null_mut(),
                ptr::null_mut(),
                0,
                &mut handle,
            )
        };
        // What a GPU without engines answers: ARCH_MISMATCH or IMPLEMENTATION_NOT_SUPPORTED.
        if matches!(status, 7 | 9) {
            return Err(EngineError::NoEngines);
        }
        said("nvjpegCreateEx", status)?;
        // From here on, dropping it gives back what is there.
        let mut opened = Engines {
            functions,
            handle,
            state: ptr::null_mut(),
            engines: 0,
            initialized: 0,
        };
        let (mut engines, mut cores): (c_uint, c_uint) = (0, 0);
        // SAFETY: the handle was made above, and the answers have a place each.
        said("nvjpegGetHardwareDecoderInfo", unsafe {
            (opened.functions.hardware)(opened.handle, &mut engines, &mut cores)
        })?;
        if engines == 0 {
            return Err(EngineError::NoEngines);
        }
        opened.engines = engines;
        // SAFETY: the handle was made above, and the state has a place.
        said("nvjpegJpegStateCreate", unsafe {
            (opened.functions.state_create)(opened.handle, &mut opened.state)
        })?;
        Ok(opened)
    }

    /// How many engines the GPU has.
    pub fn count(&self) -> u32 {
        self.engines
    }

    /// The library in use.
    pub fn file(&self) -> &Path {
        &self.functions.file
    }

    /// Decodes these pictures. What is put on the stream from here on finds them decoded.
    ///
    /// # Ordering
    /// The host blocks for most of the time that the engines take. They do **not** wait for what is on the stream already: on an
    /// H100, nvJPEG of CUDA 12 and 13 wrote while the stream was still busy, and also while it waited for an event (measured by the
    /// developers of torchcodec, pull request 1634). Only a wait of the host comes before.
    ///
    /// # Errors
    /// If nvJPEG refuses the batch. What it wrote until then is undefined.
    ///
    /// # Safety
    /// - `stream` is a stream of the context that is current, which is the one that the engines were opened in.
    /// - At each address there are three bytes for each pixel. Whatever was to use them is over, not just ahead in the stream, and nothing
    ///   else uses them until the stream has come past this call.
    /// - The files' bytes stay as they are until then.
    /// - Each file is baseline JPEG whose header says the size given here.
    pub unsafe fn decode(
        &mut self,
        pictures: &[Encoded<'_>],
        stream: u64,
    ) -> Result<(), EngineError> {
        if pictures.is_empty() {
            return Ok(());
        }
        // A call takes as many pictures as were said before, and to say another number costs time. If a few are missing, the
        // smallest one is decoded again, to where it goes anyway.
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
            // SAFETY: handle and state are alive, one thread parses, and the format is known.
            said("nvjpegDecodeBatchedInitialize", unsafe {
                (self.functions.initialize)(self.handle, self.state, count, 1, OUTPUT_RGBI)
            })?;
            self.initialized = wanted;
        }
        let files: Vec<*const u8> = pictures.iter().map(|one| one.bytes.as_ptr()).collect();
        let lengths: Vec<usize> = pictures.iter().map(|one| one.bytes.len()).collect();
        let mut images: Vec<Image> = pictures.iter().map(|one| Image::of(one)).collect();
        // SAFETY: three lists as long as the state was initialised for; the caller answers for what they point to, and
        // for the stream.
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
        // A failure to give something back cannot be mended here.
        if !self.state.is_null() {
            // SAFETY: made by the same library, and used by nobody any more; whoever opened it sees to the context.
            unsafe { (self.functions.state_destroy)(self.state) };
        }
        // SAFETY: as above.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

impl Functions {
    /// # Safety
    /// Whichever of the files can be loaded is nvJPEG.
    unsafe fn load(files: &[PathBuf]) -> Result<Functions, EngineError> {
        let mut tried = Vec::new();
        for file in files {
            // SAFETY: the caller says that it is nvJPEG; loading it runs its initialisers.
            match unsafe { Library::new(file) } {
                Ok(library) => return Functions::of(library, file.clone()),
                Err(error) => tried.push((file.clone(), error.to_string())),
            }
        }
        Err(EngineError::NoLibrary { tried })
    }

    fn of(library: Library, file: PathBuf) -> Result<Functions, EngineError> {
        /// # Safety
        /// The function of this name has the type `F`.
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

/// The name of a status in `nvjpeg.h`.
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
                    "; install CUDA's toolkit or a wheel (nvidia-nvjpeg for CUDA 13, nvidia-nvjpeg-cu12 for CUDA 12), or decode on \
                     the processor"
                )
            }
            EngineError::NoFunction { file, function } => write!(
                f,
                "{} has no function {function}: it is too old; nvJPEG of CUDA 12 or later is needed",
                file.display()
            ),
            EngineError::NoEngines => {
                write!(
                    f,
                    "this GPU has no engines for JPEG: decode on the processor"
                )
            }
            EngineError::Failed { call, status } => {
                write!(f, "{call} failed: {} ({status})", named(*status))
            }
        }
    }
}

impl std::error::Error for EngineError {}
