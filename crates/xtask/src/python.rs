//! `cargo xtask python`: builds the Python package, checks its types and runs its tests; with `--torch`, only the tests
//! that need PyTorch, which it installs.
//!
//! They run in a virtual environment under the target folder, with the package installed from its wheel, as
//! users install it. The environment stays for the next run, until a requirement or Python itself changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use xxhash_rust::xxh3::xxh3_64;

use crate::cargo::{self, succeeds};

/// The package, and the requirement files of its tests.
const PACKAGE: &str = "crates/sidestream-py";
const REQUIREMENTS: &str = "requirements-test.txt";
/// A test builds the site.
pub const WITH_SITE: [&str; 2] = [REQUIREMENTS, "requirements-site.txt"];
const WITH_TORCH: [&str; 2] = [REQUIREMENTS, "requirements-torch.txt"];
const REQUIREMENTS_FRAMEWORKS: &str = "requirements-frameworks.txt";
const REQUIREMENTS_OLDEST: &str = "requirements-oldest.txt";

/// The installer: PyTorch has 2.4 GB in fourteen thousand files, and pip takes twice as long.
const INSTALLER: &str = "uv==0.9.11";
/// How often an installation is tried.
const TRIES: u32 = 3;

/// The feature of the tests' build that users do not get: calls that drive the recorder of a check.
pub const DRIVE: &str = "sidestream-py/drive";
/// The list of those calls, which the package's type stub leaves out.
pub const DRIVEN: &str = "tests/driven.allowlist";

/// The example scripts, relative to the package's folder.
const EXAMPLES: &str = "../../examples/python";

/// The oldest Python that the package supports, and the newest that the oldest PyTorch supports.
const OLDEST: (u32, u32) = (3, 10);
const NEWEST_FOR_OLDEST: (u32, u32) = (3, 12);
/// The tests that are run with the oldest PyTorch.
const TRIED_WITH_OLDEST: &str = "prefetch or pipeline or benchmark";
/// Selects all tests.
const ALL: &str = "";
/// The number of processes that run tests with PyTorch; each takes a gigabyte.
const BESIDE: usize = 2;

/// Builds and tests the package. With `torch`, installs PyTorch and runs only the tests that need it.
pub fn run(torch: bool) -> Result<bool> {
    let version = version_of_python()?;
    // Tests with and without PyTorch have separate environments: those without must not find it.
    let environment = Environment::of(if torch { "python-torch" } else { "python" })?;
    if torch {
        println!("python: PyTorch and Ray take up to 2.5 GB, unless they are installed");
    }
    environment.make(&version, if torch { &WITH_TORCH } else { &WITH_SITE })?;
    environment.install_package()?;
    let driver = stand_in()?;
    let marked = if torch {
        "(torch or ray) and not frameworks"
    } else {
        "not torch and not ray and not frameworks"
    };
    if torch {
        // They take minutes, most of them on one core.
        return environment.test(marked, ALL, BESIDE, &driver);
    }
    // Each needs one core. A failure of one does not hide the other.
    let (typed, tested) = thread::scope(|scope| {
        let types = scope.spawn(|| environment.check_types());
        let tested = environment.test(marked, ALL, 1, &driver);
        (types.join(), tested)
    });
    let typed = typed.map_err(|_| anyhow!("the thread that checks the types panicked"))?;
    Ok(typed? && tested?)
}

/// Runs the tests that need PyTorch, and those with frameworks that are built on it, with the newest version of each.
/// They have a separate environment, since their PyTorch is another version.
pub fn frameworks() -> Result<bool> {
    let version = version_of_python()?;
    let environment = Environment::of("python-frameworks")?;
    println!("python: PyTorch and the frameworks may take 3 GB, unless they are installed");
    environment.make(&version, &[REQUIREMENTS_FRAMEWORKS])?;
    environment.install_package()?;
    environment.test("torch or frameworks", ALL, 1, &stand_in()?)
}

/// Runs some of the tests that need PyTorch with the oldest one, in a separate environment.
pub fn oldest() -> Result<bool> {
    let version = version_of_python()?;
    ensure!(
        runs_oldest(&version),
        "the oldest PyTorch runs on Python 3.12 or older, and `python3` is {version}"
    );
    let environment = Environment::of("python-oldest")?;
    println!("python: the oldest PyTorch takes up to 2.5 GB, unless it is installed already");
    environment.make(&version, &[REQUIREMENTS_OLDEST])?;
    environment.install_package()?;
    let marked = "torch and not frameworks";
    environment.test(marked, TRIED_WITH_OLDEST, 1, &stand_in()?)
}

/// Whether there is a build of the oldest PyTorch for this Python.
pub fn runs_oldest(version: &str) -> bool {
    parsed(version).is_some_and(|found| found <= NEWEST_FOR_OLDEST)
}

/// The version of `python3`, which must be installed, recent enough, and able to create environments.
pub fn version_of_python() -> Result<String> {
    let ask = |code: &str| Command::new("python3").args(["-c", code]).output();
    let answer = ask("import sys; print('.'.join(map(str, sys.version_info[:3])))")
        .context("cannot run `python3`; install Python 3.10 or later with its module venv")?;
    let version = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    ensure!(
        is_young_enough(&version),
        "`python3` is Python {version}, and the package needs {}.{} or later; install one and put it first on the PATH",
        OLDEST.0,
        OLDEST.1
    );
    let modules = ask("import ensurepip, venv").context("cannot run `python3`")?;
    ensure!(
        modules.status.success(),
        "`python3` has no module venv; install it (on Debian and Ubuntu: apt-get install python3-venv)"
    );
    Ok(version)
}

fn is_young_enough(version: &str) -> bool {
    parsed(version).is_some_and(|found| found >= OLDEST)
}

fn parsed(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    parts.next().flatten().zip(parts.next().flatten())
}

/// Builds the stand-in for CUDA's driver, on which the tests of handles run if there is no GPU. Returns its path.
fn stand_in() -> Result<PathBuf> {
    let mut build = cargo::command(&["build", "--quiet", "--locked"]);
    // With the package selected, shared crates have the features that it needs too, and are not built again. Of what is
    // selected only a test is built, with the stand-in: the package itself would be built again, since maturin builds it
    // with settings of its own.
    build.args([
        "--package",
        "sidestream-stand-in",
        "--test",
        "configured",
        "--package",
        "sidestream-py",
        "--features",
        DRIVE,
    ]);
    ensure!(
        succeeds(build)?,
        "the stand-in for the driver was not built"
    );
    let folder = cargo::Workspace::read()?.target_dir.join("debug/deps");
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    Ok(folder.join(format!("{prefix}sidestream_stand_in{suffix}")))
}

/// A virtual environment with the package installed.
pub struct Environment {
    /// The folder of the environment.
    pub folder: PathBuf,
    /// The folder of the package and its requirement files.
    pub package: PathBuf,
}

impl Environment {
    /// An environment in a folder of this name in the target folder.
    pub fn of(name: &str) -> Result<Environment> {
        Ok(Environment {
            folder: cargo::Workspace::read()?.target_dir.join(name),
            package: cargo::root().join(PACKAGE),
        })
    }

    /// Creates the environment and installs what these lists of the package name, unless an earlier run did.
    pub fn make(&self, version: &str, lists: &[&str]) -> Result<()> {
        let list = |name: &&str| {
            let list = self.package.join(name);
            fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))
        };
        let texts = lists.iter().map(list).collect::<Result<Vec<_>>>()?;
        // It records what was installed.
        let path = self.folder.join("installed.stamp");
        let stamp = stamp(version, &self.folder, &texts.concat());
        if fs::read_to_string(&path).is_ok_and(|there| there == stamp) {
            return Ok(());
        }
        let folder = self.folder.display();
        println!("python: making {folder} with Python {version}");
        self.clear()?;
        let all = lists.iter().flat_map(|list| ["--requirement", list]);
        self.install(&all.collect::<Vec<_>>())?;
        fs::write(&path, stamp).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Creates the environment anew, with nothing but the installer.
    pub fn clear(&self) -> Result<()> {
        let mut made = Command::new("python3");
        made.args(["-m", "venv", "--clear"]).arg(&self.folder);
        ensure!(succeeds(made)?, "`python3 -m venv` failed");
        let mut pip = self.python(&["-m", "pip", "install", "--quiet", INSTALLER]);
        pip.args(["--disable-pip-version-check", "--root-user-action=ignore"]);
        ensure!(
            succeeds(pip)?,
            "`pip install {INSTALLER}` failed; pip says why above"
        );
        Ok(())
    }

    /// Builds the wheel and installs it.
    pub fn install_package(&self) -> Result<()> {
        let wheels = self.folder.join("wheels");
        clear(&wheels)?;
        let mut build = self.python(&["-m", "maturin", "build", "--quiet", "--locked"]);
        build
            // The profile of the tests: their build output is reused.
            .args(["--profile", "dev", "--compatibility", "linux"])
            .args(["--features", DRIVE])
            .arg("--interpreter")
            .arg(self.interpreter())
            .arg("--out")
            .arg(&wheels);
        ensure!(succeeds(build)?, "`maturin build` failed");
        let wheel = only_file(&wheels)?;
        let wheel = wheel
            .to_str()
            .context("the target folder has a name that is not UTF-8 text")?;
        self.install(&["--no-deps", "--reinstall", wheel])
    }

    /// Checks the types of the package and its tests, and whether the stub agrees with the extension.
    fn check_types(&self) -> Result<bool> {
        let cache = self.folder.join("mypy");
        let mypy = |what: &[&str]| {
            let mut command = self.python(&["-m", "mypy"]);
            command.arg("--cache-dir").arg(&cache).args(what);
            succeeds(command)
        };
        let package = mypy(&["--package", "sidestream"])?;
        // Calls that Windows does not have stand in one module; macOS has all that Linux has.
        let windows = mypy(&["--package", "sidestream", "--platform", "win32"])?;
        let tests = mypy(&["tests"])?;
        let examples = mypy(&[EXAMPLES])?;
        let mut stub = self.python(&["-m", "mypy.stubtest", "--mypy-config-file"]);
        stub.args(["pyproject.toml", "--allowlist", DRIVEN]);
        stub.arg("sidestream._sidestream");
        Ok(succeeds(stub)? && package && windows && tests && examples)
    }

    /// Runs the tests with these marks, distributed over this many processes.
    fn test(&self, marked: &str, named: &str, processes: usize, driver: &Path) -> Result<bool> {
        let mut pytest = self.python(&["-m", "pytest", "--quiet", "--durations=10"]);
        if processes > 1 {
            pytest.args(["--dist", "worksteal", "--numprocesses"]);
            pytest.arg(processes.to_string());
        }
        pytest
            .env("SIDESTREAM_STAND_IN", driver)
            .args(["-m", marked, "-k", named]);
        succeeds(pytest)
    }

    /// `uv pip install`. A download of gigabytes may break off, so a failure is retried.
    pub fn install(&self, args: &[&str]) -> Result<()> {
        // If the system's temporary folder is in memory, it has no room for gigabytes.
        let temporary = self.folder.join("tmp");
        fs::create_dir_all(&temporary)
            .with_context(|| format!("cannot make {}", temporary.display()))?;
        for _ in 0..TRIES {
            let mut install = self.python(&["-m", "uv", "pip", "install", "--quiet"]);
            install
                .env("TMPDIR", &temporary)
                // Tests start many processes, none of which writes its compiled bytecode.
                .args(["--compile-bytecode", "--native-tls", "--python"])
                .arg(self.interpreter())
                .args(args);
            if succeeds(install)? {
                return Ok(());
            }
        }
        bail!(
            "`uv pip install {}` failed {TRIES} times; uv says why above",
            args.join(" ")
        )
    }

    /// The environment's Python, run in the folder of the package.
    pub fn python(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.interpreter());
        command
            .args(args)
            .current_dir(&self.package)
            // Otherwise the machine's packages would be used instead of the environment's.
            .env_remove("PYTHONPATH")
            .env_remove("PYTHONHOME")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    pub fn interpreter(&self) -> PathBuf {
        self.folder.join("bin/python")
    }
}

/// Removes a folder, if it exists.
pub fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot clear {}", folder.display()))
    } else {
        Ok(())
    }
}

/// The wheel in this folder.
pub fn only_file(wheels: &Path) -> Result<PathBuf> {
    let list = || format!("cannot list {}", wheels.display());
    let wheel = fs::read_dir(wheels).with_context(list)?.next();
    let Some(wheel) = wheel.transpose().with_context(list)? else {
        bail!("`maturin build` left no wheel in {}", wheels.display());
    };
    Ok(wheel.path())
}

/// The stamp includes the environment's path: a copy of it elsewhere is not valid.
fn stamp(version: &str, folder: &Path, requirements: &str) -> String {
    let place = folder.display();
    format!(
        "{:016x}\n",
        xxh3_64(format!("{version}\n{place}\n{requirements}").as_bytes())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for young in ["3.10.0", "3.11.7", "3.100.1", "4.0.0"] {
            assert!(is_young_enough(young), "{young}");
        }
        for old in ["3.9.19", "2.7.18", "3", "", "three.ten"] {
            assert!(!is_young_enough(old), "{old}");
        }
    }

    #[test]
    fn a_change_of_anything_makes_another_stamp() {
        let stamps = [
            stamp("3.11.7", Path::new("a"), "numpy==1"),
            stamp("3.11.8", Path::new("a"), "numpy==1"),
            stamp("3.11.7", Path::new("b"), "numpy==1"),
            stamp("3.11.7", Path::new("a"), "numpy==2"),
        ];
        for (at, one) in stamps.iter().enumerate() {
            assert!(!stamps[..at].contains(one), "{at}");
        }
    }
}
