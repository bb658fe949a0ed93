//! Compiles the library that `check -- PROGRAM` and its like load into programs, and compresses it: the command carries it with
//! itself, so that one file is all there is to install.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use sidestream_inject::{GUARD_SOURCES, SOURCES};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    let target = env::var("TARGET").expect("Cargo sets it");
    let packed = out.join("inject.gz");
    let library = if target.contains("-linux-") {
        compiled(&out, &target)
    } else {
        Ok(Vec::new())
    };
    let library = library.unwrap_or_else(|why| {
        println!("cargo::warning=`check -- PROGRAM` will not work: {why}");
        Vec::new()
    });
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    to.write_all(&library).expect("memory takes it");
    fs::write(packed, to.finish().expect("memory takes it")).expect("the folder is Cargo's");
}

fn compiled(out: &Path, target: &str) -> Result<Vec<u8>, String> {
    let guard = out.join("libhost_guard.rlib");
    rustc("host_guard", GUARD_SOURCES, target, &guard, &["rlib"])?;
    let library = out.join("libsidestream_inject.so");
    let uses = format!("host_guard={}", guard.display());
    let options = ["cdylib", "--extern", &uses, "-C", "strip=symbols"];
    rustc("sidestream_inject", SOURCES, target, &library, &options)?;
    fs::read(&library).map_err(|error| format!("{}: {error}", library.display()))
}

/// Compiles a crate from the folder of its sources; the options begin with its type.
fn rustc(
    name: &str,
    folder: &str,
    target: &str,
    into: &Path,
    options: &[&str],
) -> Result<(), String> {
    println!("cargo::rerun-if-changed={folder}");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("Cargo sets it"));
    rustc.args(["--crate-name", name, "--edition", "2024"]);
    rustc.args(["--cfg", "injected", "-C", "opt-level=2"]);
    rustc
        .args(["-C", "panic=unwind", "--crate-type"])
        .args(options);
    // The programs that are watched use the C library of their system, even if the command is linked statically with another.
    rustc.arg("--target").arg(target.replace("-musl", "-gnu"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    rustc
        .arg("-o")
        .arg(into)
        .arg(Path::new(folder).join("lib.rs"));
    let done = rustc.output().map_err(|error| format!("rustc: {error}"))?;
    if done.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&done.stderr).replace('\n', " "))
    }
}
