//! `cargo xtask kernels`: the library's kernels, from CUDA C++ to the PTX that is checked in.
//!
//! The compiler is NVRTC, a library without a toolkit around it, fetched from the Python package
//! index. It is an early one of CUDA 12 on purpose: a driver refuses PTX that is newer than itself.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;
use xxhash_rust::xxh3::xxh3_64;

use crate::cargo;

/// Where the sources are.
pub const SOURCES: &str = "kernels/";
/// Where the PTX goes: the library embeds it.
pub const BUILT: &str = "crates/sidestream/src/ptx/";

const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12";
const VERSION: &str = "12.0.140";
/// Where the package keeps the library.
const FILE: &str = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
/// The oldest architecture that any driver for CUDA 13 compiles for its devices.
const ARCHITECTURE: &str = "--gpu-architecture=compute_70";
/// With a later standard the compiler adds some forty constants of its own to every file.
const STANDARD: &str = "--std=c++03";

/// Builds every kernel and says which came out new.
pub fn run() -> Result<bool> {
    let compiler = Compiler::load(&fetched()?)?;
    let sources = cargo::root().join(SOURCES);
    let list = || format!("cannot list {}", sources.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&sources).with_context(list)? {
        let name = entry.with_context(list)?.file_name();
        let name = name.to_string_lossy();
        names.extend(name.strip_suffix(".cu").map(str::to_owned));
    }
    names.sort();
    ensure!(!names.is_empty(), "there is no kernel in {SOURCES}");
    for name in names {
        let file = format!("{SOURCES}{name}.cu");
        let path = cargo::root().join(&file);
        let source = fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
        let ptx = compiler.ptx(&file, &source)?;
        let built = format!("{BUILT}{name}.ptx");
        let text = header(&file, &source, &ptx) + &ptx;
        let path = cargo::root().join(&built);
        let is_new = fs::read_to_string(&path).ok().as_ref() != Some(&text);
        if is_new {
            fs::write(&path, text).with_context(|| format!("cannot write {built}"))?;
        }
        println!("{built}: {}", if is_new { "written" } else { "as it was" });
    }
    Ok(true)
}

/// What stands above the PTX: what it was made of and by which compiler, so that tidy sees when
/// either was changed since.
pub fn header(file: &str, source: &str, ptx: &str) -> String {
    format!(
        "// Built from {file} by `cargo xtask kernels`: change that file and run it again.\n\
         // Source: xxh3 {:016x}\n\
         // Compiler: NVRTC {VERSION} {ARCHITECTURE} {STANDARD}\n\
         // PTX: xxh3 {:016x}\n",
        xxh3_64(source.as_bytes()),
        xxh3_64(ptx.as_bytes()),
    )
}

/// How many lines [`header`] has.
pub const HEADER_LINES: usize = 4;

/// The compiler's library, fetched if it is not there from an earlier run.
fn fetched() -> Result<PathBuf> {
    let folder = cargo::Workspace::read()?
        .target_dir
        .join(format!("nvrtc-{VERSION}"));
    let library = folder.join(FILE);
    if library.is_file() {
        return Ok(library);
    }
    let package = format!("{PACKAGE}=={VERSION}");
    println!("fetching {package} into {}", folder.display());
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--root-user-action=ignore"])
        .args(["--only-binary", ":all:"])
        .arg("--target")
        .arg(&folder)
        .arg(&package)
        .status()
        .context("cannot run `python3 -m pip`, which fetches the compiler")?;
    ensure!(status.success(), "`pip install {package}` failed");
    ensure!(
        library.is_file(),
        "{package} has no {FILE}: it is built for x86-64 and Arm Linux"
    );
    Ok(library)
}

// ------------------------------------------------------------------ the compiler

type Program = *mut c_void;

/// NVRTC's functions that are needed here.
struct Compiler {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: Size,
    log: Text,
    ptx_size: Size,
    ptx: Text,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    // What the functions point into.
    _library: Library,
}

type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Text = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

impl Compiler {
    fn load(file: &Path) -> Result<Compiler> {
        // SAFETY: the file is NVIDIA's, of the version named above, and exports these functions with
        // the types that its `nvrtc.h` gives them.
        unsafe {
            let library = Library::new(file)?;
            Ok(Compiler {
                create: *library.get(b"nvrtcCreateProgram")?,
                compile: *library.get(b"nvrtcCompileProgram")?,
                log_size: *library.get(b"nvrtcGetProgramLogSize")?,
                log: *library.get(b"nvrtcGetProgramLog")?,
                ptx_size: *library.get(b"nvrtcGetPTXSize")?,
                ptx: *library.get(b"nvrtcGetPTX")?,
                destroy: *library.get(b"nvrtcDestroyProgram")?,
                _library: library,
            })
        }
    }

    fn ptx(&self, file: &str, source: &str) -> Result<String> {
        let (name, source) = (CString::new(file)?, CString::new(source)?);
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: both texts end with a zero; there are no headers, so their tables may be null.
        let code = unsafe {
            (self.create)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        ensure!(code == 0, "{file}: NVRTC made no program, code {code}");
        let ptx = self.built(program, file);
        // SAFETY: the program is there, and not used after this.
        unsafe { (self.destroy)(&mut program) };
        ptx
    }

    fn built(&self, program: Program, file: &str) -> Result<String> {
        let (architecture, standard) = (CString::new(ARCHITECTURE)?, CString::new(STANDARD)?);
        let options = [architecture.as_ptr(), standard.as_ptr()];
        // SAFETY: the program is there; the table has two texts, which end with a zero.
        let code = unsafe { (self.compile)(program, 2, options.as_ptr()) };
        let log = self.text(program, self.log_size, self.log)?;
        if code != 0 {
            bail!("{file} does not compile:\n{log}");
        }
        if !log.trim().is_empty() {
            bail!("{file} compiles with complaints:\n{log}");
        }
        self.text(program, self.ptx_size, self.ptx)
    }

    /// A text of the program whose size is asked for first.
    fn text(&self, program: Program, size: Size, text: Text) -> Result<String> {
        let mut bytes = 0;
        // SAFETY: the program is there.
        let code = unsafe { size(program, &mut bytes) };
        ensure!(code == 0, "NVRTC has no text, code {code}");
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the program asked for.
        let code = unsafe { text(program, buffer.as_mut_ptr().cast()) };
        ensure!(code == 0, "NVRTC gave no text, code {code}");
        let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
        Ok(text.to_str()?.to_owned())
    }
}
