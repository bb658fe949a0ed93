//! Scenarios that lose their device, each in a process of its own: on real hardware a lost device is lost for its
//! whole process.

use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::target::Target;
use crate::{interprocess, losses};

/// The argument that selects such a scenario; a target and a name follow.
const ASK: &str = "--in-a-process-of-its-own";

/// A child that takes longer hangs: the scenario must show that it ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the scenario that the arguments select. Returns none if they select none.
pub fn run_if_asked() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, ask, target, name] = &arguments[..] else {
        return None;
    };
    if ask != ASK {
        return None;
    }
    let target = Target::named(target).expect("the parent names an existing target");
    match name.as_str() {
        interprocess::NAME => interprocess::record_when_told(target),
        name => losses::run(name, target),
    }
    println!("{DONE}");
    Some(ExitCode::SUCCESS)
}

/// The last output of a child, after its handles are dropped.
const DONE: &str = "all handles are dropped";

/// Runs a scenario in a process of its own.
///
/// # Panics
/// If it fails, does not end, or ends before its handles are dropped.
#[track_caller]
pub fn run(name: &str, target: Target) {
    let mut asked = asked(name, target);
    let child = asked.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap();
    let id = child.id();
    let (sender, ended) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output = match ended.recv_timeout(PATIENCE) {
        Ok(output) => output.unwrap(),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
            panic!("the process has not ended after {PATIENCE:?}");
        }
    };
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{out}{err}", output.status);
    assert!(out.contains(DONE), "it ended early\n{out}{err}");
}

/// Starts a scenario in a process of its own, with pipes to its input and output.
pub fn start(name: &str, target: Target) -> Child {
    asked(name, target).stdin(Stdio::piped()).spawn().unwrap()
}

fn asked(name: &str, target: Target) -> Command {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args([ASK, target.name(), name])
        .stdout(Stdio::piped());
    program
}
