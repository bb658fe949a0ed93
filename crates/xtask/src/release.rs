//! What a release consists of: `cargo xtask wheel`, the Python package as one file, and `cargo xtask binary`, the command as one.
//!
//! A normal build would require this machine's version of the C library everywhere. Zig's linker links a wheel for Linux against
//! an old version instead, with which all later ones are compatible, and one for macOS without files of that system. MinGW links
//! the one for Windows: with Zig, maturin exports a name with a full stop in it, `PyInit_sidestream._sidestream`, which no object
//! has. The command is linked statically against musl, and requires nothing.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, succeeds};
use crate::python::{Environment, clear, only_file, version_of_python};

const REQUIREMENTS: &str = "requirements-wheel.txt";

/// The targets of wheels, and what each is built with beside Rust and Zig: a tool and its package. That of Linux on this processor is
/// built where none is named.
const TARGETS: [(&str, &[(&str, &str)]); 4] = [
    (
        "x86_64-unknown-linux-gnu",
        &[("cmake", "cmake"), ("nasm", "nasm")],
    ),
    ("aarch64-unknown-linux-gnu", &[("cmake", "cmake")]),
    ("aarch64-apple-darwin", &[]),
    (
        WINDOWS,
        &[("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64")],
    ),
];
const WINDOWS: &str = "x86_64-pc-windows-gnu";

/// The required version of the GNU C library: from 2012, and part of every distribution that is still maintained. The
/// corresponding standard is `manylinux2014`.
const GLIBC: (u32, u32) = (2, 17);
const STANDARD: &str = "manylinux2014";

/// The target of the static command, and that target in Zig's words.
const STATIC: &str = "x86_64-unknown-linux-musl";
const STATIC_OF_ZIG: &str = "x86_64-linux-musl";
/// The beginning of the loader's name, which a program names unless it is static.
const LOADER: &[u8] = b"/lib/ld-";

/// Builds the wheel for a target, verifies what it requires, and prints its path.
pub fn wheel(target: Option<&str>) -> Result<bool> {
    let own = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let target = target.unwrap_or(&own);
    let names = TARGETS.map(|(name, _)| name).join(", ");
    let known = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, tools) =
        known.with_context(|| format!("wheels are not built for {target}; name one of {names}"))?;
    for (tool, package) in *tools {
        let found = Command::new(tool).arg("--version").output();
        ensure!(
            found.is_ok_and(|ran| ran.status.success()),
            "{tool} is missing, which this wheel is built with; install it (on Debian and Ubuntu: apt-get install {package})"
        );
    }
    let environment = with_zig()?;
    let is_linux = target.contains("linux");
    let wheel = build(&environment, target, is_linux)?;
    let extension = extension_of(&environment, &wheel, target == WINDOWS)?;
    let mut requires = target.to_owned();
    if is_linux {
        let (major, minor) = newest(&extension)
            .context("the extension requires no version of glibc; is it for Linux?")?;
        ensure!(
            (major, minor) <= GLIBC,
            "the wheel needs glibc {major}.{minor}, and {STANDARD} allows {}.{}",
            GLIBC.0,
            GLIBC.1
        );
        requires = format!("{target}, glibc {major}.{minor} and later");
    }
    let size = fs::metadata(&wheel).map_or(0, |file| file.len()) as f64 / 1e6;
    println!(
        "{}: {size:.1} MB, for Python 3.10 and later, {requires}",
        wheel.display()
    );
    Ok(true)
}

/// Builds the command as one file that runs on any x86-64 Linux, and prints its path. It opens no GPU: a static program loads no driver.
pub fn binary() -> Result<bool> {
    let environment = with_zig()?;
    let package = ["--package", "sidestream-cli", "--bin", "sidestream"];
    let mut build = cargo::command(&["rustc", "--release", "--locked"]);
    let maturin = environment.folder.join("bin/maturin");
    build
        .args(package)
        .args(["--target", STATIC, "--", "-C", "strip=symbols"])
        .env("PATH", path_of(&environment)?)
        // Of C there is SQLite. Maturin hands on what Zig's compiler understands.
        .env(
            format!("CC_{}", STATIC.replace('-', "_")),
            format!("{} zig cc -- -target {STATIC_OF_ZIG}", maturin.display()),
        );
    ensure!(succeeds(build)?, "`cargo build` failed");
    let target_dir = cargo::Workspace::read()?.target_dir;
    let built = target_dir.join(STATIC).join("release/sidestream");
    let bytes = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    let is_static = !bytes.windows(LOADER.len()).any(|window| window == LOADER);
    ensure!(
        is_static,
        "{} names a loader, so it is not static",
        built.display()
    );
    let folder = target_dir.join("binary");
    let binary = folder.join(format!("sidestream-{STATIC}"));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(&built, &binary))
        .with_context(|| format!("cannot write {}", binary.display()))?;
    let size = bytes.len() as f64 / 1e6;
    println!("{}: {size:.1} MB, for any x86-64 Linux", binary.display());
    Ok(true)
}

/// The environment with maturin and Zig.
fn with_zig() -> Result<Environment> {
    let environment = Environment::of("wheel")?;
    environment.make(&version_of_python()?, &[REQUIREMENTS])?;
    Ok(environment)
}

/// The PATH with the environment's programs first: maturin searches it for the Python that has Zig.
fn path_of(environment: &Environment) -> Result<OsString> {
    let mut path = vec![environment.folder.join("bin")];
    path.extend(
        std::env::var_os("PATH")
            .iter()
            .flat_map(std::env::split_paths),
    );
    std::env::join_paths(path).context("the target folder cannot be on the PATH")
}

fn build(environment: &Environment, target: &str, is_linux: bool) -> Result<PathBuf> {
    let wheels = environment.folder.with_file_name("wheels");
    clear(&wheels)?;
    let mut build = environment.python(&["-m", "maturin", "build", "--release", "--locked"]);
    build
        .args(["--strip", "--target", target])
        .env("PATH", path_of(environment)?)
        .arg("--interpreter")
        .arg(environment.interpreter())
        .arg("--out")
        .arg(&wheels);
    if target != WINDOWS {
        build.arg("--zig");
    }
    if is_linux {
        // The fast JPEG decoder.
        build.args(["--compatibility", STANDARD, "--features", "turbojpeg"]);
    }
    ensure!(succeeds(build)?, "`maturin build` failed");
    only_file(&wheels)
}

/// The bytes of the extension in the wheel.
fn extension_of(environment: &Environment, wheel: &Path, is_windows: bool) -> Result<Vec<u8>> {
    let unpacked = environment.folder.join("unpacked");
    clear(&unpacked)?;
    let mut unpack = environment.python(&["-m", "zipfile", "-e"]);
    unpack.arg(wheel).arg(&unpacked);
    ensure!(succeeds(unpack)?, "the wheel cannot be unpacked");
    let end = if is_windows { "pyd" } else { "abi3.so" };
    let extension = unpacked.join(format!("sidestream/_sidestream.{end}"));
    fs::read(&extension).with_context(|| format!("cannot read {}", extension.display()))
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
    fn an_unknown_target_is_refused_with_those_that_are_known() {
        let refused = wheel(Some("riscv64gc-unknown-linux-gnu")).unwrap_err();
        let known = "x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu, aarch64-apple-darwin, x86_64-pc-windows-gnu";
        let expected =
            format!("wheels are not built for riscv64gc-unknown-linux-gnu; name one of {known}");
        assert_eq!(refused.to_string(), expected);
    }

    #[test]
    fn the_newest_version_that_a_library_names_is_found() {
        let library = b"\0GLIBC_2.2.5\0memcpy\0GLIBC_2.14\0GLIBC_2.9\0GLIBC_PRIVATE\0\xff";
        assert_eq!(newest(library), Some((2, 14)));
        assert_eq!(newest(b"GLIBC_2.17"), Some((2, 17)));
        assert_eq!(newest(b"not a library"), None);
        assert_eq!(newest(b"GLIBC_99999999999999999999.1"), None);
    }
}
