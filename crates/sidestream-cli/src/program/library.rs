//! The library that is loaded into programs, as a file.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use crate::failure::Failure;

/// The library, compressed; empty where there is none for this system.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inject.gz"));

/// Writes the library into a folder, and returns the file.
pub fn written(folder: &Path) -> Result<PathBuf, Failure> {
    let mut library = Vec::new();
    let unpacked = flate2::read::GzDecoder::new(PACKED).read_to_end(&mut library);
    if unpacked.is_err() || library.is_empty() {
        return Err(Failure::input(
            "this build of the command cannot watch programs: that takes Linux, and a compiler for its C library when the \
             command is built",
        ));
    }
    let file = folder.join("libsidestream_inject.so");
    fs::write(&file, library).map_err(|error| Failure::file("write", &file, &error))?;
    Ok(file)
}

/// Returns the files in which CUPTI may be, for a program that has not loaded it: the environment variable's, those of the
/// wheels beside a Python interpreter, and those of the toolkit.
pub fn cupti(program: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = env::var_os("SIDESTREAM_CUPTI")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    for nvidia in nvidia(program) {
        found.extend(libraries(&nvidia.join("cu13/lib")));
        found.extend(libraries(&nvidia.join("cuda_cupti/lib")));
    }
    for toolkit in folders(Path::new("/usr/local"), "cuda") {
        found.extend(libraries(&toolkit.join("extras/CUPTI/lib64")));
        found.extend(libraries(&toolkit.join("lib64")));
    }
    found
}

/// Returns the folders in which NVIDIA's wheels may be, beside a Python interpreter.
pub fn nvidia(python: &Path) -> Vec<PathBuf> {
    let environment = python.canonicalize().ok();
    let near = [Some(python.to_owned()), environment];
    let prefixes = near
        .iter()
        .flatten()
        .filter_map(|python| python.ancestors().nth(2));
    let libs = prefixes.flat_map(|prefix| folders(&prefix.join("lib"), "python3"));
    let packages = libs.flat_map(|lib| ["site-packages", "dist-packages"].map(|of| lib.join(of)));
    packages.map(|packages| packages.join("nvidia")).collect()
}

/// Returns the file of a command, as the system finds it.
pub fn in_path(name: impl AsRef<Path>) -> Option<PathBuf> {
    let name = name.as_ref();
    if name.components().count() > 1 {
        return Some(name.to_owned());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Returns the folders in a folder whose names begin like this, the newest version first.
pub fn folders(of: &Path, start: &str) -> Vec<PathBuf> {
    listed(of, |name| name.starts_with(start))
}

fn libraries(of: &Path) -> Vec<PathBuf> {
    listed(of, |name| name.starts_with("libcupti.so"))
}

fn listed(folder: &Path, is_it: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries: io::Result<Vec<_>> = fs::read_dir(folder).and_then(Iterator::collect);
    let mut found: Vec<PathBuf> = entries
        .unwrap_or_default()
        .iter()
        .filter(|entry| entry.file_name().to_str().is_some_and(&is_it))
        .map(fs::DirEntry::path)
        .collect();
    // The newest version first.
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}
