//! The probe of `--exact`: found, compiled and kept.
//!
//! NVIDIA's headers may not be passed on, and what its Sanitizer API tells differs by version. So the sources of the probe are
//! compiled on the user's machine, once for each version of library, command and compilers, and for its devices.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::{env, fs, io};

use sidestream::check::one_line;

use super::library::{folders, in_path, nvidia};
use crate::failure::{Failure, shown};
use crate::measure::raw::devices::Started;
use crate::system;

const SOURCES: [(&str, &str); 3] = [
    ("table.h", include_str!("../../exact/table.h")),
    ("patches.cu", include_str!("../../exact/patches.cu")),
    ("probe.cpp", include_str!("../../exact/probe.cpp")),
];
/// The files of a compiled probe: what the program loads, and what is added to its kernels.
pub const LIBRARY: &str = "libsidestream_exact.so";
pub const PATCHES: &str = "patches.fatbin";

/// Where NVIDIA's wheels and toolkits have the library, and where its headers.
const LAYOUTS: [(&str, &str); 4] = [
    ("", "include"),
    ("lib", "include"),
    ("lib64", "include"),
    ("compute-sanitizer", "compute-sanitizer/include"),
];

/// What a version's header has that the one before lacks. The first version is 13.0; 13.1 and 13.2 call back as it does.
const SINCE: [(u32, &str); 3] = [
    (135, "zFillSize"),
    (134, "SANITIZER_MEMORY_DEVICE_FLAG_ATOMIC_WRITE_ONLY"),
    (133, "SANITIZER_INSTRUCTION_TMA_LOAD"),
];
const FIRST: u32 = 130;

/// What compiles it, and against what.
#[derive(Hash)]
struct Tools {
    /// NVIDIA's library, and the folder of its headers.
    library: PathBuf,
    headers: PathBuf,
    version: u32,
    nvcc: PathBuf,
    compiler: PathBuf,
    /// The folder of `cuda.h`.
    cuda: PathBuf,
}

/// Returns the folder of the probe for a program; compiles it if that was not done before. If it cannot be kept, it is in the
/// session's folder.
pub fn probe(program: &Path, session: &Path) -> Result<PathBuf, Failure> {
    let tools = Tools::find(program)?;
    let architectures = architectures()?;
    let kept = cache().map(|cache| cache.join(key(&tools, &architectures)));
    let is_there = |folder: &PathBuf| {
        let files = [LIBRARY, PATCHES].map(|name| folder.join(name));
        files.iter().all(|file| file.is_file())
    };
    if let Some(kept) = kept.clone().filter(is_there) {
        return Ok(kept);
    }
    let made = session.join("exact");
    tools.compile(&architectures, &made)?;
    if let Some(kept) = &kept {
        // If it fails, another command may have kept its own meanwhile.
        let _ = keep(&made, kept);
    }
    Ok(kept.filter(is_there).unwrap_or(made))
}

impl Tools {
    fn find(program: &Path) -> Result<Tools, Failure> {
        let named = env::var_os("SIDESTREAM_SANITIZER").filter(|folder| !folder.is_empty());
        let named: Vec<PathBuf> = named.map(PathBuf::from).into_iter().collect();
        let mut all = named.clone();
        all.extend(pythons(program).iter().flat_map(|python| {
            let nvidia = nvidia(python).into_iter();
            nvidia.map(|nvidia| nvidia.join("cu13"))
        }));
        all.extend(folders(Path::new("/usr/local"), "cuda"));
        let mut libraries = libraries(if named.is_empty() { &all } else { &named });
        libraries.sort_by_key(|(_, _, version)| Reverse(*version));
        let Some((library, headers, version)) = libraries.into_iter().next() else {
            return Err(missing("libsanitizer-public.so with its headers"));
        };
        let nvcc = all.iter().map(|root| root.join("bin/nvcc"));
        let nvcc = nvcc.into_iter().find(|file| file.is_file());
        let nvcc = nvcc
            .or_else(|| in_path("nvcc"))
            .ok_or_else(|| missing("nvcc"))?;
        // A toolkit's nvcc may be a link from elsewhere.
        let of_nvcc = [Some(nvcc.clone()), nvcc.canonicalize().ok()];
        let roots = of_nvcc
            .iter()
            .flatten()
            .filter_map(|nvcc| nvcc.ancestors().nth(2));
        let mut cuda = roots
            .chain(all.iter().map(PathBuf::as_path))
            .map(|root| root.join("include"));
        let cuda = cuda.find(|include| include.join("cuda.h").is_file());
        let named = env::var_os("CXX").filter(|name| !name.is_empty());
        let mut compilers = named
            .into_iter()
            .chain(["g++", "c++", "clang++"].map(OsString::from));
        let compiler = compilers.find_map(in_path).ok_or_else(|| {
            Failure::input(
                "--exact needs a C++ compiler, and there is no g++, c++ or clang++: install one (on Debian `apt install g++`), \
                 or name it by CXX",
            )
        })?;
        Ok(Tools {
            cuda: cuda.ok_or_else(|| missing("cuda.h"))?,
            library,
            headers,
            version,
            nvcc,
            compiler,
        })
    }

    /// Compiles the probe into a new folder.
    fn compile(&self, architectures: &[String], into: &Path) -> Result<(), Failure> {
        let failed = |error| Failure::file("write", into, &error);
        system::create_private(into).map_err(failed)?;
        for (name, source) in SOURCES {
            fs::write(into.join(name), source).map_err(failed)?;
        }
        let command = |of: &Path| {
            let mut command = Command::new(of);
            let version = format!("-DVERSION={}", self.version);
            command.args(["-std=c++17", &version, "-I"]);
            command.arg(&self.headers);
            command
        };
        let mut nvcc = command(&self.nvcc);
        // Only its preprocessor reads the patches, so that any version of the C++ compiler will do.
        nvcc.args(["-allow-unsupported-compiler", "-ccbin"])
            .arg(&self.compiler);
        nvcc.args([
            "--fatbin",
            "--keep-device-functions",
            "-Xptxas",
            "--compile-as-tools-patch",
        ]);
        let devices = architectures.iter();
        nvcc.args(devices.map(|of| format!("-gencode=arch=compute_{of},code=sm_{of}")));
        nvcc.arg(into.join("patches.cu")).arg("-o");
        self.run(nvcc.arg(into.join(PATCHES)))?;
        let mut compiler = command(&self.compiler);
        compiler
            .args(["-O2", "-shared", "-fPIC", "-pthread", "-I"])
            .arg(&self.cuda);
        compiler.arg(into.join("probe.cpp")).arg("-o");
        compiler.args([&into.join(LIBRARY), &self.library]);
        let mut rpath = OsString::from("-Wl,-rpath,");
        rpath.push(self.library.parent().unwrap_or(Path::new("")));
        self.run(compiler.arg(rpath))
    }

    fn run(&self, command: &mut Command) -> Result<(), Failure> {
        let name = shown(Path::new(command.get_program()));
        let done = command.output();
        let done = done.map_err(|error| Failure::input(format!("cannot start {name}: {error}")))?;
        if done.status.success() {
            return Ok(());
        }
        let said = [done.stderr, done.stdout].concat();
        let said = String::from_utf8_lossy(&said);
        let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
        let mut errors: Vec<&str> = lines()
            .filter(|line| line.contains("error"))
            .take(3)
            .collect();
        let mut hint = "";
        if errors.is_empty() {
            errors = lines().take(3).collect();
        } else if self.version == SINCE[0].0 {
            hint = "; if this library is newer than 13.5, its callbacks are not known to this version of the command: an older one \
                    helps (`pip install nvidia-cuda-sanitizer-api==13.5.*`)";
        }
        Err(Failure::input(format!(
            "--exact: {name} ({}) cannot compile the probe against {}: {}{hint}",
            done.status,
            shown(&self.library),
            one_line(&errors.join("; ")),
        )))
    }
}

fn missing(what: &str) -> Failure {
    Failure::input(format!(
        "--exact needs NVIDIA's Sanitizer library and nvcc, and finds no {what}: `pip install nvidia-cuda-sanitizer-api \
         nvidia-cuda-nvcc` installs all it needs, and so does the CUDA toolkit; SIDESTREAM_SANITIZER may name the folder \
         of libsanitizer-public.so"
    ))
}

/// The interpreters beside which there may be wheels: the program, the command if Python runs it, and those that `pip` installs
/// for.
fn pythons(program: &Path) -> Vec<PathBuf> {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".local/bin/python3"));
    let near = [env::current_exe().ok(), in_path("python3"), home];
    let mut all = vec![program.to_owned()];
    all.extend(near.into_iter().flatten());
    all.push("/usr/local/bin/python3".into());
    all
}

/// Returns the libraries in some folders, each with the folder and the version of its headers.
fn libraries(roots: &[PathBuf]) -> Vec<(PathBuf, PathBuf, u32)> {
    // The probe keeps the path.
    let roots = roots.iter().flat_map(std::path::absolute);
    let places = roots.flat_map(|root| {
        LAYOUTS.map(|(library, headers)| {
            let library = root.join(library).join("libsanitizer-public.so");
            (library, root.join(headers))
        })
    });
    let there = places.filter(|(library, _)| library.is_file());
    let known = there.filter_map(|(library, headers)| {
        let header = fs::read(headers.join("sanitizer_patching.h")).ok()?;
        let header = String::from_utf8_lossy(&header);
        let newest = SINCE.into_iter().find(|(_, has)| header.contains(has));
        Some((
            library,
            headers,
            newest.map_or(FIRST, |(version, _)| version),
        ))
    });
    known.collect()
}

/// Returns the architectures of the devices: 90 is compute capability 9.0.
fn architectures() -> Result<Vec<String>, Failure> {
    let named = env::var("SIDESTREAM_EXACT_ARCH").unwrap_or_default();
    if !named.is_empty() {
        return Ok(named.split(',').map(|of| of.trim().to_owned()).collect());
    }
    let unknown = |why| {
        Failure::device(format!(
            "--exact compiles for the GPU, which is not known: {why}; SIDESTREAM_EXACT_ARCH may name its compute capability (90 \
             for 9.0)"
        ))
    };
    let started = Started::open(None).map_err(|why| unknown(why.to_string()))?;
    let mut all = Vec::new();
    for found in started.all()? {
        let [major, minor] = found.capability(&started.driver)?;
        all.push(format!("{major}{minor}"));
    }
    all.sort_unstable();
    all.dedup();
    if all.is_empty() {
        return Err(unknown("the driver finds none".to_owned()));
    }
    Ok(all)
}

/// Returns the folder of what was compiled before.
fn cache() -> Option<PathBuf> {
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let named = named.filter(|folder| folder.is_absolute());
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    Some(named.or_else(home)?.join("sidestream/exact"))
}

/// Returns the name for what these tools compile.
fn key(tools: &Tools, architectures: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), SOURCES, tools, architectures).hash(&mut hasher);
    for file in [&tools.library, &tools.nvcc, &tools.compiler] {
        let modified = fs::metadata(file).and_then(|file| file.modified());
        modified.ok().hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

/// Copies what was compiled, so that it appears at once as a whole.
fn keep(made: &Path, at: &Path) -> io::Result<()> {
    let parent = at.parent().unwrap_or(at);
    fs::create_dir_all(parent)?;
    let private = at.with_extension(id().to_string());
    system::create_private(&private)?;
    let copied = [LIBRARY, PATCHES].into_iter();
    let copied = copied.map(|name| fs::copy(made.join(name), private.join(name)).map(drop));
    let kept = copied
        .collect::<io::Result<()>>()
        .and_then(|()| fs::rename(&private, at));
    if kept.is_err() {
        let _ = fs::remove_dir_all(&private);
    }
    kept
}
