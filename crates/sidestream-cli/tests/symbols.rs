//! Names and lines of native stacks, of programs that are compiled here.

use std::path::{Path, PathBuf};
use std::process::Command;

use sidestream_cli::program::symbols::Symbols;

const SOURCE: &str = include_str!("data/stack.cpp");

/// Compiles the source with these options, runs it, and returns the program and the stacks that it prints.
fn stacks(name: &str, options: &[&str]) -> (PathBuf, Vec<Vec<(PathBuf, u64)>>) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("symbols");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (source, program) = (folder.join(format!("{name}.cpp")), folder.join(name));
    std::fs::write(&source, SOURCE).expect("a source");
    let compile = Command::new("c++")
        .args(options)
        .arg("-o")
        .args([&program, &source])
        .arg("-ldl")
        .status();
    assert!(compile.expect("c++").success());
    let output = Command::new(&program).output().expect("the program");
    let text = String::from_utf8(output.stdout).expect("text");
    let frame = |line: &str| {
        let (module, address) = line.split_once(" 0x").expect("a module and an address");
        (
            module.into(),
            u64::from_str_radix(address, 16).expect("an address"),
        )
    };
    let stacks = text
        .split_terminator("\n\n")
        .map(|stack| stack.lines().map(frame).collect());
    (program, stacks.collect())
}

/// The line of the source with this comment.
fn line(comment: &str) -> usize {
    1 + SOURCE
        .lines()
        .position(|line| line.ends_with(&format!("// {comment}")))
        .expect("a line")
}

#[test]
fn the_line_of_a_launch_is_the_programs_own() {
    let (program, stacks) = stacks("lines", &["-g", "-O1"]);
    let mut symbols = Symbols::new(program.parent().expect("a folder").into());
    let site = format!("lines.cpp:{} in copy()", line("in copy"));
    assert_eq!(symbols.site(&stacks[0], None), site);
    let stack = symbols.stack(&stacks[0]);
    assert!(stack[0].ends_with(" in cudaLaunchKernel()"), "{stack:?}");
    assert_eq!(stack[1], site);
    assert_eq!(
        stack[2],
        format!(
            "lines.cpp:{} in pipeline::Queue::upload()",
            line("in upload")
        )
    );
    assert_eq!(
        stack[3],
        format!("lines.cpp:{} in main()", line("upload in main"))
    );
    // Neither the stub of a kernel nor the function with the kernel's name.
    assert_eq!(
        symbols.site(&stacks[1], Some("scale")),
        format!("lines.cpp:{} in main()", line("scale in main"))
    );
    assert_eq!(
        Symbols::new("/elsewhere".into()).site(&stacks[1], Some("scale")),
        format!(
            "{}.cpp:{} in main()",
            program.display(),
            line("scale in main")
        )
    );
}

#[test]
fn without_debug_information_functions_have_names_and_without_names_addresses() {
    let (_, stacks_by_name) = stacks("names", &["-O1"]);
    let mut symbols = Symbols::new("/".into());
    let site = symbols.site(&stacks_by_name[0], None);
    assert!(
        site.starts_with("pipeline::Queue::upload()+0x") && site.ends_with(" in names"),
        "{site}"
    );
    let (_, stacks) = stacks("stripped", &["-O1", "-s"]);
    let site = symbols.site(&stacks[0], None);
    assert_eq!(site, format!("stripped+{:#x}", stacks[0][0].1));
    assert_eq!(
        symbols.site(&[("/no/such/file".into(), 16)], None),
        "file+0x10"
    );
    assert_eq!(symbols.site(&[("/dev/zero".into(), 16)], None), "zero+0x10");
    assert_eq!(symbols.site(&[], None), "an unknown place");
}

#[test]
fn files_that_are_damaged_have_fewer_names_and_do_no_harm() {
    let (program, stacks) = stacks("damaged", &["-g", "-O1"]);
    let whole = std::fs::read(&program).expect("the program");
    let mut random = 1_u64;
    let mut next = |below: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % below
    };
    for round in 0..300 {
        let mut damaged = whole.clone();
        damaged.truncate(if round % 3 == 0 {
            next(whole.len())
        } else {
            whole.len()
        });
        for _ in 0..1 + next(200) {
            // Most of the file's beginning and end are headers.
            let at = if next(2) == 0 {
                next(whole.len())
            } else {
                next(1024)
            };
            if let Some(byte) = damaged.get_mut(at) {
                *byte = [0, 1, 0x7F, 0x80, 0xFF, next(256) as u8][next(6)];
            }
        }
        let path = program.with_extension(round.to_string());
        std::fs::write(&path, damaged).expect("a file");
        let stack: Vec<_> = stacks[0]
            .iter()
            .map(|(_, address)| (path.clone(), *address))
            .collect();
        let mut symbols = Symbols::new("/".into());
        symbols.site(&stack, None);
        assert!(symbols.stack(&stack).len() >= stack.len());
        std::fs::remove_file(&path).expect("a file");
    }
}
