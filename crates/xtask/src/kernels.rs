//! `cargo xtask kernels`: compiles the library's kernels from CUDA C++ to the compressed PTX that is checked in.
//!
//! The compiler is NVRTC, a library that needs no toolkit, fetched from the Python package index. It is an early
//! version of CUDA 12 on purpose: a driver refuses PTX that is newer than itself.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use libloading::Library;
use xxhash_rust::xxh3::xxh3_64;

use crate::cargo;

/// For each crate: the folder of its sources, the folder of their PTX, which the crate embeds, and its extra compiler
/// options.
pub const FOLDERS: &[(&str, &str, &[&str])] = &[
    ("kernels/", "crates/sidestream/src/ptx/", &[]),
    (
        "crates/sidestream-images/kernels/",
        "crates/sidestream-images/src/augment/ptx/",
        // Coordinates and colors must be rounded as on the CPU. Where fusing is allowed, the code requests it
        // explicitly.
        &["--fmad=false"],
    ),
];

const PACKAGE: &str = "nvidia-cuda-nvrtc-cu12";
const VERSION: &str = "12.0.140";
/// The path of the library in the Python package.
const FILE: &str = "nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
/// The PTX target. PTX for this target can be compiled for every GPU that CUDA 13 supports.
const ARCHITECTURE: &str = "--gpu-architecture=compute_70";
/// With a later standard the compiler adds about forty constants to every file.
const STANDARD: &str = "--std=c++03";

/// Builds every kernel and prints which PTX changed.
pub fn run() -> Result<bool> {
    let compiler = Compiler::load(&fetched()?)?;
    for (sources, built, _) in FOLDERS {
        for name in names(sources)? {
            build(
                &compiler,
                &format!("{sources}{name}.cu"),
                &format!("{built}{name}.ptx.gz"),
            )?;
        }
    }
    Ok(true)
}

fn names(sources: &str) -> Result<Vec<String>> {
    let folder = cargo::root().join(sources);
    let list = || format!("cannot list {}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(list)? {
        let name = entry.with_context(list)?.file_name();
        let name = name.to_string_lossy();
        names.extend(name.strip_suffix(".cu").map(str::to_owned));
    }
    names.sort();
    ensure!(!names.is_empty(), "there is no kernel in {sources}");
    Ok(names)
}

fn build(compiler: &Compiler, file: &str, built: &str) -> Result<()> {
    let path = cargo::root().join(file);
    let source = fs::read_to_string(&path).with_context(|| format!("cannot read {file}"))?;
    let source = joined(file, &source, |file| {
        fs::read_to_string(cargo::root().join(file)).ok()
    });
    let ptx = compiler.ptx(file, &source)?;
    let text = header(file, &source, &ptx) + &ptx;
    let path = cargo::root().join(built);
    let before = fs::read(&path)
        .ok()
        .and_then(|packed| unpacked(&packed).ok());
    let is_new = before.as_ref() != Some(&text);
    if is_new {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(text.as_bytes())?;
        fs::write(&path, packed.finish()?).with_context(|| format!("cannot write {built}"))?;
    }
    println!("{built}: {}", if is_new { "written" } else { "unchanged" });
    Ok(())
}

/// The text of a compressed file.
pub fn unpacked(packed: &[u8]) -> io::Result<String> {
    io::read_to_string(GzDecoder::new(packed))
}

/// A source with the parts that it includes from its folder, as one text: this is what is compiled, and what the
/// header's digest covers. A missing part is left as an include, which the compiler refuses.
pub fn joined(file: &str, source: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let folder = file.rfind('/').map_or("", |at| &file[..=at]);
    let part = |line: &str| {
        let name = line.strip_prefix("#include \"")?.trim_end();
        read(&format!("{folder}{}", name.strip_suffix('"')?))
    };
    let lines = source.split_inclusive('\n');
    lines
        .map(|line| part(line).unwrap_or_else(|| line.to_owned()))
        .collect()
}

/// The header of the PTX: what it was built from and by which compiler, so that tidy notices when either has changed
/// since.
pub fn header(file: &str, source: &str, ptx: &str) -> String {
    format!(
        "// Built from {file} by `cargo xtask kernels`: change that file and run it again.\n\
         // Source: xxh3 {:016x}\n\
         // Compiler: NVRTC {VERSION} {}\n\
         // PTX: xxh3 {:016x}\n",
        xxh3_64(source.as_bytes()),
        options(file).join(" "),
        xxh3_64(ptx.as_bytes()),
    )
}

/// The compiler's options for a file.
fn options(file: &str) -> Vec<&'static str> {
    let mut folders = FOLDERS.iter();
    let own = folders.find(|(sources, ..)| file.starts_with(sources));
    let own = own.map_or(&[][..], |(_, _, options)| options);
    [&[ARCHITECTURE, STANDARD], own].concat()
}

/// The number of lines of [`header`].
pub const HEADER_LINES: usize = 4;

/// The compiler's library, downloaded unless an earlier run has done so.
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
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--root-user-action=ignore"])
        .args(["--only-binary", ":all:", "--target"])
        .arg(&folder)
        .arg(&package);
    ensure!(cargo::succeeds(pip)?, "`pip install {package}` failed");
    ensure!(
        library.is_file(),
        "{package} has no {FILE}: it is built for x86-64 and Arm Linux"
    );
    Ok(library)
}

// ------------------------------------------------------------------ the compiler

type Program = *mut c_void;

/// The NVRTC functions that are used here.
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
    // The library that the function pointers point into.
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
                _library: library,
            })
        }
    }

    fn ptx(&self, file: &str, source: &str) -> Result<String> {
        let (name, source) = (CString::new(file)?, CString::new(source)?);
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: both strings end with a zero byte; there are no headers, so their tables may be null.
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
        // The program is not destroyed: this process ends soon.
        let options = options(file).into_iter().map(CString::new);
        let options = options.collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is valid; the table has `texts.len()` strings, which end with a zero byte.
        let code = unsafe { (self.compile)(program, texts.len() as c_int, texts.as_ptr()) };
        let log = self.text(program, self.log_size, self.log)?;
        ensure!(code == 0, "{file} does not compile:\n{log}");
        ensure!(
            log.trim().is_empty(),
            "{file} compiles with warnings:\n{log}"
        );
        self.text(program, self.ptx_size, self.ptx)
    }

    /// Reads a text of the program, after its size.
    fn text(&self, program: Program, size: Size, text: Text) -> Result<String> {
        let mut bytes = 0;
        // SAFETY: the program is valid.
        let code = unsafe { size(program, &mut bytes) };
        ensure!(code == 0, "NVRTC returned no text size, code {code}");
        let mut buffer = vec![0u8; bytes];
        // SAFETY: the buffer has the size that NVRTC returned.
        let code = unsafe { text(program, buffer.as_mut_ptr().cast()) };
        ensure!(code == 0, "NVRTC returned no text, code {code}");
        let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
        Ok(text.to_str()?.to_owned())
    }
}
