//! `cargo xtask wheel`: builds the Python package as one file that runs on any recent x86-64 or Arm Linux.
//!
//! A normal build would require this machine's version of the C library everywhere. Zig's linker links against an old
//! version instead, with which all later ones are compatible.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::python::{Environment, clear, only_file, succeeds, version_of_python};

const REQUIREMENTS: &str = "requirements-wheel.txt";

/// The required version of the GNU C library: from 2012, and part of every distribution that is still maintained. The
/// corresponding standard is `manylinux2014`.
const GLIBC: (u32, u32) = (2, 17);
const STANDARD: &str = "manylinux2014";

/// The tools that build the fast JPEG decoder, which the wheel has and a plain build does not.
const TOOLS: [&str; 2] = ["cmake", "nasm"];

/// Builds the wheel, verifies the required C library, and prints the wheel's path.
pub fn run() -> Result<bool> {
    let version = version_of_python()?;
    for tool in TOOLS {
        let found = Command::new(tool).arg("--version").output();
        ensure!(
            found.is_ok_and(|ran| ran.status.success()),
            "{tool} is missing, which libjpeg-turbo is built with; install it (on Debian and Ubuntu: apt-get install {tool})"
        );
    }
    let environment = Environment::of("wheel")?;
    environment.make(&version, REQUIREMENTS)?;
    let wheel = build(&environment, &environment.folder.with_file_name("wheels"))?;
    let newest = newest_glibc(&environment, &wheel)?;
    ensure!(
        newest <= GLIBC,
        "the wheel needs glibc {}.{}, and {STANDARD} allows {}.{}",
        newest.0,
        newest.1,
        GLIBC.0,
        GLIBC.1
    );
    let size = fs::metadata(&wheel).map_or(0, |file| file.len());
    println!(
        "{}: {:.1} MB, for Python 3.10 and later, glibc {}.{} and later",
        wheel.display(),
        size as f64 / 1e6,
        newest.0,
        newest.1
    );
    Ok(true)
}

fn build(environment: &Environment, wheels: &Path) -> Result<PathBuf> {
    clear(wheels)?;
    // Maturin searches the PATH for the Python that has Zig.
    let mut path = vec![environment.folder.join("bin")];
    path.extend(
        std::env::var_os("PATH")
            .iter()
            .flat_map(std::env::split_paths),
    );
    let path = std::env::join_paths(path).context("the target folder cannot be on the PATH")?;
    let mut build = environment.python(&["-m", "maturin", "build", "--release", "--locked"]);
    build
        .args(["--strip", "--zig", "--compatibility", STANDARD])
        .args(["--features", "turbojpeg"])
        .env("PATH", path)
        .arg("--interpreter")
        .arg(environment.interpreter())
        .arg("--out")
        .arg(wheels);
    ensure!(succeeds(build)?, "`maturin build` failed");
    only_file(wheels)
}

/// The newest version of the GNU C library that the extension in the wheel requires.
fn newest_glibc(environment: &Environment, wheel: &Path) -> Result<(u32, u32)> {
    let unpacked = environment.folder.join("unpacked");
    clear(&unpacked)?;
    let mut unpack = environment.python(&["-m", "zipfile", "-e"]);
    unpack.arg(wheel).arg(&unpacked);
    ensure!(succeeds(unpack)?, "the wheel cannot be unpacked");
    let extension = unpacked.join("sidestream/_sidestream.abi3.so");
    let bytes =
        fs::read(&extension).with_context(|| format!("cannot read {}", extension.display()))?;
    newest(&bytes).context("the extension requires no version of glibc; is it for Linux?")
}

/// The newest version that a library names: a linker writes each as a text such as `GLIBC_2.17`.
fn newest(bytes: &[u8]) -> Option<(u32, u32)> {
    const MARK: &[u8] = b"GLIBC_";
    let marks = bytes.windows(MARK.len()).enumerate();
    let starts = marks.filter(|(_, window)| *window == MARK);
    starts
        .filter_map(|(at, _)| version(&bytes[at + MARK.len()..]))
        .max()
}

/// The first two numbers of the version at the start of a text.
fn version(text: &[u8]) -> Option<(u32, u32)> {
    let of_version = |byte: &&u8| byte.is_ascii_digit() || **byte == b'.';
    let text: Vec<u8> = text
        .iter()
        .take_while(of_version)
        .take(16)
        .copied()
        .collect();
    let text = String::from_utf8(text).ok()?;
    let mut parts = text.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_that_a_library_names_is_found() {
        let library = b"\0GLIBC_2.2.5\0memcpy\0GLIBC_2.14\0GLIBC_2.9\0GLIBC_PRIVATE\0\xff";
        assert_eq!(newest(library), Some((2, 14)));
        assert_eq!(newest(b"GLIBC_2.17"), Some((2, 17)));
        assert_eq!(newest(b"not a library"), None);
        assert_eq!(newest(b"GLIBC_99999999999999999999.1"), None);
    }
}
