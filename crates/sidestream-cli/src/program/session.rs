//! A run of a program that is listened to.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;
use std::{env, fs, io, thread};

use sidestream_inject::wire;

use super::ring::SharedRing;
use super::translate::{Hears, Process};
use super::{exact, library};
use crate::failure::{Exit, Failure, shown, tell};
use crate::system;

/// How to listen.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct Options {
    /// Take no call sites: the program runs at nearly its full speed
    #[arg(long)]
    pub light: bool,
    /// Hold copies of the host's memory back, so that an access too early shows in the bytes that arrive: for at most this many
    /// milliseconds each
    #[arg(long, value_name = "MS", num_args = 0..=1, default_missing_value = "20", conflicts_with = "light",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub provoke: Option<u32>,
    /// Watch the accesses of kernels themselves, to the byte, in place of guesses from their parameters. What is not seen is in
    /// docs/guide/programs.md. The program runs many times slower. Takes NVIDIA's Sanitizer library and nvcc
    #[arg(long, value_name = "LAUNCHES", num_args = 0..=1, require_equals = true, default_missing_value = "all",
          conflicts_with = "light")]
    pub exact: Option<Exact>,
    /// With --exact, watch only kernels whose name contains this; may be given several times
    #[arg(long, value_name = "NAME", requires = "exact")]
    pub only: Vec<String>,
    /// What to record of devices in place of calls: see [`wire::PROFILE`].
    #[arg(skip)]
    pub profile: Option<String>,
    /// Whether the program's output goes to standard error, because standard output is JSON.
    #[arg(skip)]
    pub is_quiet: bool,
}

/// Which launches of kernels are watched.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exact {
    /// All of them
    All,
    /// The first ones of each kernel, until it touches the same bytes relative to its pointers, and a few later ones. The
    /// program runs faster. If there is an error, `check` runs it again with all watched; `record` runs it once
    First,
}

/// A program that runs, and the rings of its processes.
pub struct Session<T> {
    name: String,
    folder: PathBuf,
    child: Child,
    processes: Vec<(SharedRing, Process<T>)>,
    /// Files in the folder that are open, or that cannot be.
    known: HashSet<PathBuf>,
    /// Whether kernels are heard to the byte.
    is_exact: bool,
    /// Makes the receiver of a process, by the process's number and its place among the processes.
    begin: Box<dyn FnMut(u32, usize) -> Result<T, Failure>>,
}

/// How a run ended.
pub struct Finished<T> {
    name: String,
    status: ExitStatus,
    /// By process that initialized CUDA: its number, and what is known of it.
    pub processes: Vec<(u32, Process<T>)>,
    problems: Vec<String>,
}

/// The time for which the command sleeps if no ring has anything new.
const PAUSE: Duration = Duration::from_micros(500);

impl<T: Hears + Default> Session<T> {
    /// Starts a program.
    pub fn start(
        program: &[OsString],
        options: &Options,
        begin: impl FnMut(u32, usize) -> Result<T, Failure> + 'static,
    ) -> Result<Session<T>, Failure> {
        let (name, arguments) = program
            .split_first()
            .ok_or_else(|| Failure::input("name a program after `--`"))?;
        let folder = folder()?;
        let written = ended_by_signals(&folder).and_then(|()| library::written(&folder));
        let started = written.and_then(|library| {
            let mut command = Command::new(name);
            command.args(arguments);
            if let Some(profile) = &options.profile {
                command.env(wire::PROFILE, profile);
                command.env("NVTX_INJECTION64_PATH", &library);
            }
            if options.is_quiet {
                command.stdout(io::stderr());
            }
            command.env("CUDA_INJECTION64_PATH", library);
            command.env(wire::FOLDER, &folder);
            command.env(wire::LIGHT, if options.light { "1" } else { "" });
            let provoke = options
                .provoke
                .map_or_else(String::new, |ms| ms.to_string());
            command.env(wire::PROVOKE, provoke);
            command.env(wire::READER, std::process::id().to_string());
            let file = library::in_path(name).unwrap_or_else(|| name.into());
            let cupti = env::join_paths(library::cupti(&file));
            command.env(wire::CUPTI, cupti.unwrap_or_default());
            command.env(wire::EXACT, "");
            if let Some(launches) = options.exact {
                let is_first = launches == Exact::First;
                command.env(wire::EXACT_FIRST, if is_first { "1" } else { "" });
                let probe = exact::probe(&file, &folder)?;
                command.env(wire::EXACT, probe.join(exact::LIBRARY));
                command.env(wire::EXACT_PATCHES, probe.join(exact::PATCHES));
                command.env(wire::EXACT_ONLY, options.only.join("\n"));
            }
            let failed =
                |error| Failure::input(format!("cannot start {}: {error}", shown(Path::new(name))));
            command.spawn().map_err(failed)
        });
        match started {
            Ok(child) => Ok(Session {
                name: name.to_string_lossy().into_owned(),
                folder,
                child,
                processes: Vec::new(),
                known: HashSet::new(),
                is_exact: options.exact.is_some(),
                begin: Box::new(begin),
            }),
            Err(failure) => {
                let _ = fs::remove_dir_all(&folder);
                Err(failure)
            }
        }
    }

    /// Listens until the program has ended.
    pub fn listen(self) -> Result<Finished<T>, Failure> {
        self.listen_until(|_| ())
    }

    /// Listens until the program has ended. Calls `done` once: when all that was asked for has arrived, or at the end.
    pub fn listen_until(
        mut self,
        done: impl FnOnce(&mut [(SharedRing, Process<T>)]),
    ) -> Result<Finished<T>, Failure> {
        let mut done = Some(done);
        let mut problems = Vec::new();
        let status = loop {
            // What is written before the program ends is read after it has ended.
            let ended = self
                .child
                .try_wait()
                .map_err(|error| Failure::input(format!("cannot wait for the program: {error}")))?;
            self.open(&mut problems);
            let mut is_new = true;
            while is_new {
                is_new = false;
                for (ring, process) in &mut self.processes {
                    match ring.take(|head, record| process.take(head, record)) {
                        Ok(some) => is_new |= some,
                        Err(error) => {
                            ring.close();
                            let problem = format!(
                                "the calls of process {} cannot be read: {error}",
                                ring.pid
                            );
                            if process.problem.is_none() {
                                process.problem = Some(problem);
                            }
                        }
                    }
                }
                if ended.is_none() && is_new {
                    self.open(&mut problems);
                }
            }
            let is_done = !self.processes.is_empty()
                && self
                    .processes
                    .iter()
                    .all(|(_, process)| process.told.is_done());
            if ended.is_some() {
                self.processes
                    .iter_mut()
                    .for_each(|(_, process)| process.end());
            }
            if let Some(done) = done.take_if(|_| is_done || ended.is_some()) {
                done(&mut self.processes);
            }
            match ended {
                Some(status) => break status,
                None => thread::sleep(PAUSE),
            }
        };
        let _ = fs::remove_dir_all(&self.folder);
        let processes = self.processes.into_iter();
        let processes = processes
            .map(|(ring, process)| (ring.pid, process))
            .collect();
        Ok(Finished {
            name: self.name,
            status,
            processes,
            problems,
        })
    }

    /// Opens rings that are new.
    fn open(&mut self, problems: &mut Vec<String>) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_ring = path
                .file_stem()
                .is_some_and(|stem| stem.to_string_lossy().parse::<u32>().is_ok());
            if !is_ring || self.known.contains(&path) {
                continue;
            }
            match SharedRing::open(&path) {
                Ok(None) => {}
                Ok(Some(ring)) => {
                    match (self.begin)(ring.pid, self.processes.len()) {
                        Ok(told) => {
                            let mut process = Process::default();
                            process.told = told;
                            if self.is_exact {
                                process.hear_exactly();
                            }
                            self.processes.push((ring, process));
                        }
                        Err(failure) => {
                            ring.close();
                            problems.push(failure.to_string());
                        }
                    }
                    self.known.insert(path);
                }
                Err(error) => {
                    problems.push(format!("cannot read {}: {error}", shown(&path)));
                    self.known.insert(path);
                }
            }
        }
    }
}

impl<T> Finished<T> {
    /// The processes that were heard: what to call each, and what is known of it.
    pub fn heard(&mut self) -> impl Iterator<Item = (String, &mut Process<T>)> {
        let (several, name) = (self.processes.len() > 1, &self.name);
        let all = self.processes.iter_mut();
        let heard = all.filter(|(_, process)| process.problem.is_none());
        heard.map(move |(pid, process)| {
            let process_number = if several {
                format!(", process {pid}")
            } else {
                String::new()
            };
            (format!("{name}{process_number}"), process)
        })
    }

    /// Tells on standard error what was not heard, and how the program was ended. Returns whether all was heard.
    pub fn tell(&self) -> bool {
        let name = &self.name;
        for problem in &self.problems {
            tell(format_args!("sidestream: {problem}"));
        }
        if self.processes.is_empty() {
            tell(format_args!(
                "sidestream: {name} did not initialize CUDA, so there is nothing to report"
            ));
        }
        for (pid, process) in &self.processes {
            if let Some(problem) = &process.problem {
                tell(format_args!(
                    "sidestream: {name} (process {pid}) was not heard: {problem}"
                ));
            }
        }
        if let Some(signal) = self.status.signal() {
            tell(format_args!(
                "sidestream: signal {signal} ended {name}; the report covers its calls up to there"
            ));
        }
        let is_heard = |(_, process): &(u32, Process<T>)| process.problem.is_none();
        self.problems.is_empty()
            && !self.processes.is_empty()
            && self.processes.iter().all(is_heard)
    }

    /// The program's exit code, or this one if that is zero.
    pub fn code(&self, otherwise: Exit) -> Exit {
        match self.status.code() {
            Some(0) => otherwise,
            Some(code) => code as Exit,
            None => 128 + self.status.signal().unwrap_or(0) as Exit,
        }
    }
}

/// Ctrl-C reaches the program too, and its report is wanted; another signal ends the command, which leaves no files.
fn ended_by_signals(folder: &Path) -> Result<(), Failure> {
    const INTERRUPTED: Exit = 130;
    let folder = folder.to_owned();
    let handled = system::on_signal(move |code| {
        if code != INTERRUPTED {
            let _ = fs::remove_dir_all(&folder);
            std::process::exit(code.into());
        }
    });
    handled.map_err(|error| Failure::input(format!("cannot wait for signals: {error}")))
}

/// Creates a folder for the rings, in memory where there is room.
fn folder() -> Result<PathBuf, Failure> {
    let memory = PathBuf::from("/dev/shm");
    let of = if memory.is_dir() {
        memory
    } else {
        env::temp_dir()
    };
    let mut last = None;
    for number in 0..1000 {
        let folder = of.join(format!("sidestream-{}-{number}", std::process::id()));
        match system::create_private(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) => last = Some(Failure::file("create", &folder, &error)),
        }
    }
    Err(last.unwrap_or_else(|| Failure::input("there is no folder for temporary files")))
}
