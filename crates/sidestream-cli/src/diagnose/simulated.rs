//! `sidestream diagnose --simulate -- python SCRIPT.py`: a trace of a program of PyTorch on a GPU that is simulated with times.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Exit, Failure, shown};
use crate::output::refuse_unwritable;
use crate::program::Recorded;
use crate::system;
use crate::text::Folder;

/// A GPU that is simulated for a program of PyTorch.
#[derive(clap::Args, Default)]
pub struct Simulated {
    /// Run PROGRAM, a Python program with PyTorch, on a simulated GPU, with the times that it would take there: h200 by default, or
    /// FILE.toml of `sidestream devices --measure -o`
    ///
    /// PROGRAM is a script with its arguments, `-m MODULE`, or `python` with one of these. Its operators run on the processor. No
    /// GPU is needed.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, require_equals = true, default_missing_value = "h200",
          conflicts_with_all = ["against", "duration", "from_range"])]
    pub simulate: Option<String>,
    /// Take the times of the host from this FILE.torch.json of `sidestream devices --measure -o`; by default those of the GPU's own
    #[arg(long, value_name = "FILE", requires = "simulate")]
    host: Option<PathBuf>,
    /// Compute nothing: tensors on the device have shapes, and values that the program asks for are 0
    #[arg(long, requires = "simulate")]
    shapes: bool,
    /// The Python interpreter of --simulate; it needs the packages `sidestream` and PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,
}

impl Simulated {
    /// Runs a program on a simulated GPU, and passes its trace to `report`: what to call it, and its file.
    pub fn main(
        &self,
        device: &str,
        asked: &Recorded,
        is_json: bool,
        report: impl FnOnce(Vec<(String, PathBuf)>) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        refuse_unwritable("--output", asked.output.as_deref())?;
        let (mut command, program) = self.python(&asked.program)?;
        let folder = Folder::new()?;
        let temporary = || folder.0.join("trace.json");
        let file = asked.output.clone().unwrap_or_else(temporary);
        let host = self.host.as_deref().unwrap_or(Path::new(""));
        command
            .args(["-m", "sidestream._simulate_program"])
            .arg(format!("sim:{}", device.trim_start_matches("sim:")))
            .args([file.as_path(), host])
            .arg(if self.shapes { "shapes" } else { "" })
            .args(program);
        if is_json {
            command.stdout(io::stderr());
        }
        let python = shown(Path::new(command.get_program()));
        let unstarted = |error| Failure::input(format!("cannot start {python}: {error}"));
        // Ctrl-C ends the program, and its trace is diagnosed.
        system::on_signal(|code| {
            if code != INTERRUPTED {
                std::process::exit(code.into());
            }
        })
        .map_err(unstarted)?;
        let status = command.status().map_err(unstarted)?;
        let code = status.code().map_or(1, |code| code as Exit);
        if !file.exists() {
            // Python has said why.
            return Ok(if code == 0 { 2 } else { code });
        }
        let name = match &asked.output {
            Some(output) => output.display().to_string(),
            None => shown(Path::new(&program[usize::from(program[0] == "-m")])),
        };
        let reported = report(vec![(name, file)])?;
        Ok(if code == 0 { reported } else { code })
    }

    /// Returns the interpreter with its options, and the program that it is to run.
    fn python<'a>(&self, words: &'a [OsString]) -> Result<(Command, &'a [OsString]), Failure> {
        let begins = |at: &usize| match words[*at].to_string_lossy() {
            word if word == "-m" => at + 1 < words.len(),
            word => word.ends_with(".py"),
        };
        let at = (0..words.len()).find(begins).ok_or_else(|| {
            Failure::input(
                "--simulate runs a program of PyTorch: name it after `--`, as in \
                 `sidestream diagnose --simulate -- python train.py`",
            )
        })?;
        let (before, program) = words.split_at(at);
        let python = before.first().map_or(self.python.as_os_str(), |word| word);
        let mut command = Command::new(python);
        command.args(before.iter().skip(1));
        Ok((command, program))
    }
}

/// The exit code that names Ctrl-C.
const INTERRUPTED: Exit = 130;
