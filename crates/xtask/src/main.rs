//! The development tasks of this repository. Every change must pass `cargo xtask lint` and `cargo xtask test`.

mod bench;
mod big_trace;
mod cargo;
mod gpu_bundle;
mod kernels;
mod miri;
mod model;
mod nightly;
mod probe;
mod python;
mod release;
mod site;
mod steps;
mod test;
mod test_programs;
mod tidy;
mod truth;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <command>
  lint            format, tidy, clippy and the documentation
  test            build, tests, doc tests, examples and the Python package
  nightly         the long searches: more random programs, random jobs, frameworks, Miri, fuzzing
  python          the Python package: build, types, tests; part of `test`
  python --torch  its tests that need PyTorch and Ray, which it installs
  python --frameworks
                  its tests with accelerate, Lightning and others, and the newest PyTorch; installs them
  python --oldest some of its tests with the oldest PyTorch; installs it
  wheel [TARGET]  the Python package as a file for Linux (for this processor unless a target says otherwise), macOS or Windows;
                  fetches its linker
  binary          the command as a static file for any x86-64 Linux
  site            the documents as a site in the target folder; fetches Sphinx once
  tidy            the rules of this repository that the compiler does not check
  budget [--lower]
                  the lines of code of each capability beside their ceilings; --lower lowers those
  bench           every benchmark, briefly, in one table
  big-trace FROM TO SIZE
                  a trace of PyTorch's profiler, repeated up to a size, as in 644MB
  truth N SEED [--show]
                  N jobs with planted faults, from a seed on, and what `diagnose` reports for each;
                  --show prints each and writes its trace
  truth --ranks N SEED [--show]
                  N runs of up to 1,024 ranks with one of them slow, and what `diagnose` reports for each
  truth --rank-traces FOLDER RANKS STEPS
                  the traces of a long run of many ranks, for measurements
  gpu-bundle      what is run on a machine with a GPU, in one folder to carry there
  kernels         PTX of the kernels in kernels/ that were changed; fetches the compiler
  probe           the probe of `check --exact`, compiled with each of NVIDIA's libraries; fetches them
  model           the ring and the recorder under random thread schedules
  miri [test]     the soundness tests under Miri; needs a nightly toolchain";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["lint"] => test::lint(),
        ["test"] => test::run(),
        ["nightly"] => nightly::run(),
        ["probe"] => probe::run(),
        ["python"] => python::run(false),
        ["python", "--torch"] => python::run(true),
        ["python", "--frameworks"] => python::frameworks(),
        ["python", "--oldest"] => python::oldest(),
        ["site"] => site::run(),
        ["wheel"] => release::wheel(None),
        ["wheel", target] => release::wheel(Some(target)),
        ["binary"] => release::binary(),
        ["tidy"] => tidy::run(),
        ["budget"] => tidy::budget::run(false),
        ["budget", "--lower"] => tidy::budget::run(true),
        ["bench"] => bench::run(),
        ["big-trace", from, to, size] => big_trace::run(from, to, size),
        ["truth", _, _, ..] => truth::run(&args[1..]),
        ["gpu-bundle"] => gpu_bundle::run(),
        ["kernels"] => kernels::run(),
        ["model"] => model::run(),
        ["miri"] => miri::run(None),
        ["miri", test] if !test.starts_with('-') => miri::run(Some(test)),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => return refuse("a command is missing"),
        _ => return refuse(&format!("there is no `cargo xtask {}`", args.join(" "))),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("xtask: {why}; `cargo xtask help` lists the commands");
    ExitCode::from(2)
}
