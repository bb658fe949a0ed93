//! NVRTC: the compiler for kernels in CUDA C++, loaded when the first such kernel is used.
//!
//! NVRTC compiles to machine code for the device: that runs even under a driver that is older than the compiler and
//! would refuse its PTX. A compiler that is older than the device produces PTX for the newest architecture that it
//! knows, and the driver compiles that.

#![expect(
    non_snake_case,
    reason = "functions have the names that `nvrtc.h` gives them"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;

use super::library::{self, NotLoaded};

/// The return type of NVRTC's functions; zero is success.
type Code = c_int;
/// `nvrtcProgram`.
type Program = *mut c_void;

const SUCCESS: Code = 0;
/// The source does not compile; the log says why.
const COMPILATION: Code = 6;

library::functions! {
    /// The compiler.
    pub(self) Nvrtc:
    nvrtcVersion: fn(*mut c_int, *mut c_int);
    nvrtcGetNumSupportedArchs: fn(*mut c_int);
    nvrtcGetSupportedArchs: fn(*mut c_int);
    nvrtcCreateProgram: fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
    nvrtcDestroyProgram: fn(*mut Program);
    nvrtcCompileProgram: fn(Program, c_int, *const *const c_char);
    nvrtcGetProgramLogSize: fn(Program, *mut usize);
    nvrtcGetProgramLog: fn(Program, *mut c_char);
    nvrtcGetCUBINSize: fn(Program, *mut usize);
    nvrtcGetCUBIN: fn(Program, *mut c_char);
    nvrtcGetPTXSize: fn(Program, *mut usize);
    nvrtcGetPTX: fn(Program, *mut c_char);
    nvrtcGetErrorString: fn(Code) -> *const c_char;
}

/// The files that are tried, the newest first, each with its major version of CUDA if the name has it.
const FILES: &[(&str, i32)] = &[
    ("libnvrtc.so.13", 13),
    ("libnvrtc.so.12", 12),
    ("libnvrtc.so", 0),
    ("libnvrtc.so.11.2", 11),
];

/// The reason why a kernel was not compiled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotCompiled {
    /// No compiler was found.
    NoCompiler {
        /// The files that were tried.
        why: NotLoaded,
    },
    /// The compiler supports newer devices only.
    Architecture {
        /// The device's architecture: 70 is compute capability 7.0.
        device: u32,
        /// The architectures that the compiler supports.
        supported: Vec<u32>,
        /// The compiler's file.
        file: String,
    },
    /// The source contains a zero byte.
    ZeroByte,
    /// The source does not compile.
    Source {
        /// The compiler's messages.
        log: String,
    },
    /// The compiler itself failed.
    Failed {
        /// The compiler's error code.
        code: i32,
        /// The description of the error.
        why: String,
        /// The compiler's file.
        file: String,
    },
}

impl Nvrtc {
    /// Loads the compiler: this file, or the one that the system finds. If there are several, those of a later CUDA
    /// than the driver's come last, because a driver may not accept their machine code. `driver_version` is as the
    /// driver reports it: 12040 is 12.4.
    ///
    /// # Safety
    /// As for [`Driver::load`](super::driver::Driver::load), with NVRTC in place of the driver.
    ///
    /// # Errors
    /// [`NotCompiled::NoCompiler`].
    pub unsafe fn load(file: Option<&Path>, driver_version: i32) -> Result<Nvrtc, NotCompiled> {
        // SAFETY: the caller's promise.
        let opened = unsafe {
            match file {
                Some(file) => library::open(&[&file.to_string_lossy()]),
                None => library::open(&files(driver_version / 1000)),
            }
        };
        opened
            .and_then(Nvrtc::of)
            .map_err(|why| NotCompiled::NoCompiler { why })
    }

    /// Returns the file from which the compiler was loaded.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the compiler's CUDA version, such as 12 and 4.
    pub fn version(&self) -> (i32, i32) {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        unsafe { (self.nvrtcVersion)(&mut major, &mut minor) };
        (major, minor)
    }

    /// Compiles CUDA C++ for a device: 90 is compute capability 9.0. The compiler's messages call the source
    /// `NAME.cu`. The result can be passed to the driver as it is: machine code, or PTX with a terminating zero.
    ///
    /// Blocks the calling thread for a tenth of a second or more.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, source: &str, name: &str, device: u32) -> Result<Vec<u8>, NotCompiled> {
        let target = target(&self.supported()?, device);
        let target = target.map_err(|supported| NotCompiled::Architecture {
            device,
            supported,
            file: self.file.clone(),
        })?;
        let program = self.program(source, name)?;
        self.build(&program, target)?;
        match target {
            Target::Cubin(_) => self.bytes(&program, self.nvrtcGetCUBINSize, self.nvrtcGetCUBIN),
            Target::Ptx(_) => {
                let mut ptx = self.bytes(&program, self.nvrtcGetPTXSize, self.nvrtcGetPTX)?;
                // NVRTC includes a terminating zero in its size; this one is added in any case.
                ptx.push(0);
                Ok(ptx)
            }
        }
    }

    /// Returns the architectures that the compiler supports, the oldest first.
    fn supported(&self) -> Result<Vec<u32>, NotCompiled> {
        let mut count = 0;
        // SAFETY: writes one integer.
        self.worked(unsafe { (self.nvrtcGetNumSupportedArchs)(&mut count) })?;
        let mut found: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: writes as many integers as it reported before.
        self.worked(unsafe { (self.nvrtcGetSupportedArchs)(found.as_mut_ptr()) })?;
        let mut found: Vec<u32> = found
            .iter()
            .filter_map(|&one| u32::try_from(one).ok())
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    fn program(&self, source: &str, name: &str) -> Result<OpenProgram<'_>, NotCompiled> {
        let text = |text: &str| CString::new(text).map_err(|_| NotCompiled::ZeroByte);
        let (source, name) = (text(source)?, text(&format!("{name}.cu"))?);
        let mut program = ptr::null_mut();
        // SAFETY: both strings end with a zero; there are no headers, so their tables may be null.
        self.worked(unsafe {
            (self.nvrtcCreateProgram)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            )
        })?;
        Ok(OpenProgram {
            compiler: self,
            program,
        })
    }

    fn build(&self, program: &OpenProgram<'_>, target: Target) -> Result<(), NotCompiled> {
        let option = match target {
            Target::Cubin(device) => format!("--gpu-architecture=sm_{device}\0"),
            Target::Ptx(device) => format!("--gpu-architecture=compute_{device}\0"),
        };
        let options = [option.as_ptr().cast::<c_char>()];
        // SAFETY: the program exists; the table has one string, which ends with a zero.
        let code = unsafe { (self.nvrtcCompileProgram)(program.program, 1, options.as_ptr()) };
        if code != COMPILATION {
            return self.worked(code);
        }
        let log = self.bytes(
            program,
            self.nvrtcGetProgramLogSize,
            self.nvrtcGetProgramLog,
        )?;
        let log = String::from_utf8_lossy(&log);
        Err(NotCompiled::Source {
            log: log.trim_end_matches('\0').trim().to_owned(),
        })
    }

    /// Returns an output of a program, after asking for its size.
    fn bytes(
        &self,
        program: &OpenProgram<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> Code,
        get: unsafe extern "C" fn(Program, *mut c_char) -> Code,
    ) -> Result<Vec<u8>, NotCompiled> {
        let mut len = 0;
        // SAFETY: the program exists, and one number is written.
        self.worked(unsafe { size(program.program, &mut len) })?;
        let mut bytes = vec![0; len];
        // SAFETY: the buffer has the size that was asked for.
        self.worked(unsafe { get(program.program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    fn worked(&self, code: Code) -> Result<(), NotCompiled> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any code, and returns a constant string or null.
        let why = unsafe {
            let text = (self.nvrtcGetErrorString)(code);
            if text.is_null() {
                format!("code {code}")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        Err(NotCompiled::Failed {
            code,
            why,
            file: self.file.clone(),
        })
    }
}

/// A program in the compiler, destroyed on drop.
struct OpenProgram<'a> {
    compiler: &'a Nvrtc,
    program: Program,
}

impl Drop for OpenProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created by this compiler, and is not used afterwards.
        unsafe { (self.compiler.nvrtcDestroyProgram)(&mut self.program) };
    }
}

/// The target of a compilation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// Machine code for this architecture.
    Cubin(u32),
    /// PTX for this architecture.
    Ptx(u32),
}

/// Returns the files in the order in which they are tried, under a driver of this major version.
fn files(driver: i32) -> Vec<&'static str> {
    let mut files = FILES.to_vec();
    // A stable sort: within both parts the newest stays first.
    files.sort_by_key(|&(_, major)| major > driver);
    files.into_iter().map(|(name, _)| name).collect()
}

/// Returns the device's own architecture if the compiler knows it, otherwise PTX of the newest older architecture; if
/// there is none, the error lists the supported ones.
fn target(supported: &[u32], device: u32) -> Result<Target, Vec<u32>> {
    if supported.contains(&device) {
        return Ok(Target::Cubin(device));
    }
    let older = supported.iter().filter(|&&known| known < device).max();
    older
        .map(|&newest| Target::Ptx(newest))
        .ok_or_else(|| supported.to_vec())
}

impl fmt::Display for NotCompiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotCompiled::NoCompiler {
                why: NotLoaded::NoFunction { file, function },
            } => write!(
                f,
                "{file} has no function {function}: it is too old, or it is not NVRTC; NVRTC of CUDA 11.2 or later is needed"
            ),
            NotCompiled::NoCompiler { why } => write!(
                f,
                "CUDA C++ needs the compiler NVRTC: {why}; install it (the Python package \
                 nvidia-cuda-nvrtc has it), name its file, or give the kernel as PTX"
            ),
            NotCompiled::Architecture {
                device,
                supported,
                file,
            } => {
                let known: Vec<_> = supported.iter().map(|one| format!("sm_{one}")).collect();
                write!(
                    f,
                    "{file} compiles for {}, and the device is sm_{device}; use an older NVRTC, or give \
                     the kernel as PTX",
                    known.join(", ")
                )
            }
            NotCompiled::ZeroByte => write!(f, "the source contains a zero byte; remove it"),
            NotCompiled::Source { log } => write!(f, "the compiler says: {log}"),
            NotCompiled::Failed { code, why, file } => write!(f, "{file} says {why} ({code})"),
        }
    }
}

impl std::error::Error for NotCompiled {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_that_is_newer_than_the_driver_comes_last() {
        let all = [
            "libnvrtc.so.13",
            "libnvrtc.so.12",
            "libnvrtc.so",
            "libnvrtc.so.11.2",
        ];
        assert_eq!(files(13), all);
        assert_eq!(files(14), all);
        assert_eq!(files(12), [all[1], all[2], all[3], all[0]]);
    }

    #[test]
    fn a_device_that_the_compiler_knows_gets_its_own_code() {
        assert_eq!(target(&[75, 80, 90], 90), Ok(Target::Cubin(90)));
    }

    #[test]
    fn a_newer_device_gets_the_newest_ptx() {
        assert_eq!(target(&[75, 80, 90], 100), Ok(Target::Ptx(90)));
        assert_eq!(target(&[75, 80, 90], 86), Ok(Target::Ptx(80)));
    }

    #[test]
    fn an_older_device_gets_nothing() {
        assert_eq!(target(&[75, 80], 70), Err(vec![75, 80]));
        assert_eq!(target(&[], 70), Err(vec![]));
    }
}
