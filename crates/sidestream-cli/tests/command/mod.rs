//! Runs the command `sidestream` and captures its output.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// The result of running the command.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// The folder in which the command runs, and where tests put files for it.
pub const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// Runs the command that was built together with the tests. It must not panic, and no signal may end it.
#[track_caller]
pub fn sidestream<S: AsRef<OsStr>>(args: &[S]) -> Ran {
    sidestream_with::<S, &str>(args, &[])
}

/// Like [`sidestream`], with environment variables.
#[track_caller]
pub fn sidestream_with<S: AsRef<OsStr>, V: AsRef<OsStr>>(args: &[S], set: &[(&str, V)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidestream"));
    command.envs(set.iter().map(|(name, value)| (name, value.as_ref())));
    command.args(args).current_dir(FOLDER).stdin(Stdio::null());
    let output = command.output().expect("the command was built");
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    let Some(code) = output.status.code().filter(|&code| code != 101) else {
        panic!("ended with {}:\n{out}{err}", output.status);
    };
    Ran { code, out, err }
}
