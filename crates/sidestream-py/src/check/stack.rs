//! Finds where in a program an operator was called: its frames, without those of PyTorch.
//!
//! Frames are recorded as code object and offset. Lines are looked up only for a report.

use std::collections::HashMap;

use indexmap::{IndexMap, IndexSet};
use pyo3::prelude::*;
use pyo3::{ffi, intern};

/// The number of user frames that are kept.
const DEPTH: usize = 8;
/// The maximum depth to which a stack is followed.
const FAR: usize = 200;

/// Whether this thread runs the given code, or no Python code, as PyTorch's own threads do.
pub fn is_in(py: Python<'_>, code: &Py<PyAny>) -> bool {
    let Some(frame) = top(py) else {
        return true;
    };
    code_of(&frame).is(code)
}

/// The frame of the caller; `None` if no Python code runs, as in a thread of the engine.
fn top(py: Python<'_>) -> Option<Bound<'_, PyAny>> {
    // SAFETY: the thread is attached. The frame is borrowed, so a new reference is taken.
    unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast::<ffi::PyObject>()) }
}

fn code_of<'py>(frame: &Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    // SAFETY: `frame` comes from `top` or from `f_back` of a frame, so it is a frame, and its code is a new reference.
    unsafe {
        let code = ffi::PyFrame_GetCode(frame.as_ptr().cast());
        Bound::from_owned_ptr(frame.py(), code.cast::<ffi::PyObject>())
    }
}

/// A position in a code object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Frame {
    code: u32,
    at: i32,
}

struct Code {
    object: Py<PyAny>,
    shown: bool,
    /// Whether this code's waits are its own, not the program's: a module that moves its parameters, a profiler, a
    /// library.
    waits_by_itself: bool,
}

/// Where an operation was called.
#[derive(Clone, Copy)]
pub struct Called {
    /// The number of the stack.
    pub stack: u32,
    /// Whether a library that the program calls waits, not the program itself.
    pub waits_by_itself: bool,
}

/// All stacks that were seen, without duplicates.
pub struct Stacks {
    hidden: Vec<String>,
    libraries: Vec<String>,
    /// The folder of this package.
    package: String,
    /// By address.
    codes: IndexMap<usize, Code>,
    known_lines: HashMap<(String, String, i32), usize>,
    /// The stacks by number, from 1 on: number 0 is for calls without a stack.
    all: IndexSet<([Frame; DEPTH], u8)>,
}

impl Stacks {
    /// Code in files whose path starts with an entry of the first list is hidden; code in files of the second list is
    /// not part of the program. The third is the folder of this package.
    pub fn new((hidden, libraries, package): (Vec<String>, Vec<String>, String)) -> Stacks {
        Stacks {
            hidden,
            libraries,
            package,
            codes: IndexMap::new(),
            known_lines: HashMap::new(),
            all: IndexSet::new(),
        }
    }

    /// The stack of the caller; `None` if no Python code runs, as in a thread of the engine.
    pub fn now(&mut self, py: Python<'_>) -> Option<Called> {
        let mut frame = top(py)?;
        let mut frames = [Frame::default(); DEPTH];
        let mut count = 0;
        let mut waits_by_itself = false;
        for _ in 0..FAR {
            let number = self.code(&code_of(&frame));
            let code = &self.codes[number];
            waits_by_itself |= count == 0 && code.waits_by_itself;
            if code.shown {
                let at = frame.getattr(intern!(py, "f_lasti")).ok()?.extract().ok()?;
                frames[count] = Frame {
                    code: number as u32,
                    at,
                };
                count += 1;
                if count == DEPTH {
                    break;
                }
            }
            let back = frame.getattr(intern!(py, "f_back")).ok()?;
            if back.is_none() {
                break;
            }
            frame = back;
        }
        Some(Called {
            stack: self.number((frames, count as u8)),
            waits_by_itself,
        })
    }

    /// The stack for lines that were read as text.
    pub fn of_lines(
        &mut self,
        py: Python<'_>,
        lines: impl Iterator<Item = (String, String, i32)>,
    ) -> u32 {
        let mut frames = [Frame::default(); DEPTH];
        let mut count = 0;
        for line in lines {
            if count == DEPTH {
                break;
            }
            let number = match self.known_lines.get(&line) {
                Some(&known) => known,
                None => {
                    let Ok(code) = empty_code(py, &line) else {
                        continue;
                    };
                    let number = self.code(&code);
                    self.known_lines.insert(line, number);
                    number
                }
            };
            if self.codes[number].shown {
                // There is no offset: the code object begins at the line.
                let at = -1;
                frames[count] = Frame {
                    code: number as u32,
                    at,
                };
                count += 1;
            }
        }
        self.number((frames, count as u8))
    }

    /// Whether this is code of this package that works for the program. Code of the check is not, nor is that of
    /// streams and events, whose waits are the program's calls.
    fn is_own(&self, file: &str) -> bool {
        const OTHERS: [&str; 5] = ["_check", "check.py", "_stream.py", "_simulated", "_pytest"];
        let within = file.strip_prefix(&self.package);
        within.is_some_and(|name| !OTHERS.iter().any(|other| name.starts_with(other)))
    }

    fn number(&mut self, stack: ([Frame; DEPTH], u8)) -> u32 {
        self.all.insert_full(stack).0 as u32 + 1
    }

    fn code(&mut self, code: &Bound<'_, PyAny>) -> usize {
        let key = code.as_ptr() as usize;
        if let Some(known) = self.codes.get_index_of(&key) {
            return known;
        }
        let file: String = code
            .getattr("co_filename")
            .and_then(|file| file.extract())
            .unwrap_or_default();
        let within = |folders: &[String]| folders.iter().any(|start| file.starts_with(start));
        let shown = !within(&self.hidden);
        let installed = ["/site-packages/", "/dist-packages/"];
        let is_library =
            within(&self.libraries) || installed.iter().any(|folder| file.contains(folder));
        let name: String = code
            .getattr("co_name")
            .and_then(|name| name.extract())
            .unwrap_or_default();
        let in_torch = |part: &str| !shown && file.contains(part);
        let waits_by_itself = (shown && is_library)
            || self.is_own(&file)
            || in_torch("/torch/profiler/")
            || in_torch("/torch/autograd/profiler")
            || (name == "_apply" && in_torch("/torch/nn/modules/module.py"));
        // The object is kept alive, so that its address is not reused.
        let object = code.clone().unbind();
        let known = Code {
            object,
            shown,
            waits_by_itself,
        };
        self.codes.insert_full(key, known).0
    }

    /// The frames of a stack, the innermost first: the code object, and the offset in it.
    pub fn frames(&self, py: Python<'_>, stack: u32) -> Vec<(Py<PyAny>, i32)> {
        let at = (stack as usize).checked_sub(1);
        let Some((frames, count)) = at.and_then(|at| self.all.get_index(at)) else {
            return Vec::new();
        };
        let some = frames[..usize::from(*count)].iter();
        some.map(|frame| {
            let code = &self.codes[frame.code as usize];
            (code.object.clone_ref(py), frame.at)
        })
        .collect()
    }
}

/// A code object without instructions, at the given line.
fn empty_code<'py>(
    py: Python<'py>,
    (file, function, line): &(String, String, i32),
) -> PyResult<Bound<'py, PyAny>> {
    let compile = py.import("builtins")?.getattr("compile")?;
    let code = compile.call1(("", file, "exec"))?;
    let kwargs = pyo3::types::PyDict::new(py);
    kwargs.set_item("co_name", function)?;
    kwargs.set_item("co_firstlineno", line)?;
    code.call_method("replace", (), Some(&kwargs))
}
