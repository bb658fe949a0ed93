//! Parsing never panics, and a program that was read is equal after writing and reading it again.
//!
//! `cargo +nightly fuzz run parse ../tests/data/litmus` in the folder `fuzz`
//! starts from the litmus programs.

#![cfg_attr(fuzzing, no_main)]

use fuzz_target::fuzz_target;
use sidestream_program::{Limits, Program, parse, parse_bytes, write};

fuzz_target!(|bytes: &[u8]| {
    let Ok(document) = parse_bytes(bytes, &Limits::default()) else {
        return;
    };
    let good = document.programs.into_iter().filter_map(Result::ok);
    let good: Vec<Program> = good.map(without_lines).collect();
    let text = write(&good.iter().collect::<Vec<_>>());
    let back = match parse(&text, &Limits::default()) {
        Ok(back) => back.programs,
        Err(error) => panic!("{error}\n{text}"),
    };
    let back = back.into_iter().map(|program| match program {
        Ok(program) => without_lines(program),
        Err(bad) => panic!("{bad}\n{text}"),
    });
    assert_eq!(back.collect::<Vec<_>>(), good, "{text}");
});

fn without_lines(mut program: Program) -> Program {
    program.forget_lines();
    program
}
