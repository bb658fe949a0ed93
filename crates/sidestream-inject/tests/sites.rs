//! Compiles programs against the library's sources, as the command compiles the library, and runs them.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with `libsites.so`: these modules, and functions that C can call.
fn library(name: &str, modules: &[&str], exports: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(folder.join("stack")).expect("a folder");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for module in modules {
        std::fs::copy(sources.join(module), folder.join(module)).expect("a source");
    }
    std::fs::write(folder.join("sites.rs"), exports).expect("a root");
    run(
        &folder,
        "rustc --edition 2024 -O -C panic=abort --crate-type cdylib sites.rs",
    );
    folder
}

fn run(folder: &Path, command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().expect("a word"))
        .args(words)
        .current_dir(folder)
        .env("LD_LIBRARY_PATH", folder)
        .output()
        .unwrap_or_else(|error| panic!("{command}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command}: {}\n{errors}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn stacks_by_rules_are_those_of_the_unwinder() {
    let exports = "mod stack;
        #[unsafe(no_mangle)] unsafe extern \"C\" fn fast(into: *mut usize, len: usize) -> usize {
            stack::here(unsafe { std::slice::from_raw_parts_mut(into, len) })
        }
        #[unsafe(no_mangle)] unsafe extern \"C\" fn slow(into: *mut usize, len: usize) -> usize {
            stack::here_slowly(unsafe { std::slice::from_raw_parts_mut(into, len) })
        }
        #[unsafe(no_mangle)] extern \"C\" fn is_in(pc: usize, path: *const std::ffi::c_char) -> bool {
            let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_str().unwrap();
            let path = std::path::Path::new(path).canonicalize().unwrap();
            stack::module_of(pc).is_some_and(|(bias, module)| module == path && bias < pc)
        }";
    let folder = library("stack", &["stack.rs", "stack/rule.rs"], exports);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stack.cpp");
    std::fs::copy(source, folder.join("stack.cpp")).expect("a source");
    for bytes in [400, 4000] {
        run(
            &folder,
            &format!("c++ -O2 -shared -fPIC -DLIBRARY={bytes} -o lib{bytes}.so stack.cpp"),
        );
    }
    for flags in ["-O2", "-O3 -fno-omit-frame-pointer"] {
        run(
            &folder,
            &format!("c++ -std=c++17 {flags} -pthread -o program stack.cpp -L. -lsites -ldl"),
        );
        run(&folder, "./program ./lib400.so ./lib4000.so");
    }
}

#[test]
fn lines_of_python_are_those_that_python_says() {
    let exports = "mod python;
        #[unsafe(no_mangle)] unsafe extern \"C\" fn place(into: *mut u8, id: *mut u64) -> isize {
            let Some(place) = python::line() else { return -1 };
            unsafe { *id = place.id };
            let (mut file, mut function) = ([0; 300], [0; 100]);
            let (file_length, function_length) = (place.file(&mut file), place.function(&mut function));
            let text = [&file[..file_length], b\":\", place.line().to_string().as_bytes(), b\" \", &function[..function_length]].concat();
            unsafe { into.copy_from(text.as_ptr(), text.len()) };
            text.len() as isize
        }
        #[unsafe(no_mangle)] extern \"C\" fn elsewhere() -> bool { std::thread::spawn(|| python::line().is_some()).join().unwrap() }
        #[unsafe(no_mangle)] extern \"C\" fn lines(into: *mut u32, room: usize) -> usize {
            let lines = python::lines().zip(0..room);
            lines.map(|(place, at)| unsafe { into.add(at).write(place.line()) }).count()
        }";
    let folder = library("python", &["python.rs"], exports);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python.py");
    std::fs::copy(source, folder.join("python.py")).expect("a source");
    run(&folder, "python3 python.py");
}
