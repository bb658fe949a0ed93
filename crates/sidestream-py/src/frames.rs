//! Reads the Python stack of the current thread directly from memory, without calling Python.
//!
//! Python's functions for this allocate or need the GIL, which the faulting thread may have released: numpy and
//! ctypes do so while they copy bytes. But no other thread changes the frames of a thread that is inside a call, and
//! the frames keep alive what is read here: code objects with their names and line tables. So the frames are read as
//! they are in memory.
//!
//! The memory layout depends on the version of Python. The known layouts are verified at the start ([`learn`])
//! against what Python itself reports for the same frames, with reads that cannot fault. If the two differ, frames
//! are not read later, and accesses have no place.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use host_guard::lines::{self, Frames};

/// The largest number of the interpreter's own frames that are skipped.
const FAR: usize = 64;

/// The memory layout of frames.
struct Layout {
    /// Offset from a thread's state to its innermost frame, or to the structure that points to it.
    frame: usize,
    /// Offset from that structure to the frame; `None` if the thread's state itself points to the frame.
    within: Option<usize>,
    code: usize,
    back: usize,
    at: At,
    /// Offset of a frame's owner field, and its value for the interpreter's own frames.
    owner: Option<(usize, u8)>,
    // Offsets in code objects.
    file: usize,
    name: usize,
    /// Offset of a string's characters, if they are ASCII.
    characters: usize,
    line: extern "C" fn(*mut c_void, c_int) -> c_int,
}

/// How a frame stores its position in the code.
#[derive(Clone, Copy)]
enum At {
    /// An index of two-byte instructions.
    Number(usize),
    /// An address, and the offset of the first instruction in a code object.
    Address(usize, usize),
}

static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();

/// Offset of a string's state word, and its value for a compact ASCII string.
const STATE: usize = 32;
const COMPACT_ASCII: u32 = 0b11 << 5;

/// Learns how this Python lays out its frames, and has the page guard take the place in the program from here. If the
/// layout cannot be learnt, recorded accesses have no place.
pub fn learn(py: Python<'_>) {
    LAYOUT.get_or_init(|| layout(py));
    lines::come_from(lines::Source {
        place,
        read,
        stack: false,
    });
}

/// The known layout of a version: frame, within, code, back, instruction, owner.
type Version = (usize, Option<usize>, usize, usize, At, Option<(usize, u8)>);

fn version(minor: u8) -> Option<Version> {
    // The offset of the first instruction is determined below.
    Some(match minor {
        10 => (24, None, 32, 24, At::Number(96), None),
        11 => (56, Some(8), 32, 48, At::Address(56, 0), None),
        12 => (56, Some(0), 0, 8, At::Address(56, 0), Some((70, 3))),
        13 => (72, None, 0, 8, At::Address(56, 0), Some((70, 3))),
        _ => return None,
    })
}

fn layout(py: Python<'_>) -> Option<Layout> {
    let (frame, within, code, back, at, owner) = version(py.version_info().minor)?;
    let symbol = c"PyCode_Addr2Line";
    // SAFETY: the name ends with a zero byte.
    let line = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
    if line.is_null() {
        return None;
    }
    // SAFETY: the Python function with this name has this signature in all versions above.
    let line = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void, c_int) -> c_int>(line)
    };
    let known = known(py)?;
    let (first, _) = known.first()?;
    let find = |attribute: &str| {
        let value = first.getattr(attribute).ok()?;
        let size: usize = first.call_method0("__sizeof__").ok()?.extract().ok()?;
        let words = (0..size.min(512) / 8).map(|word| word * 8);
        let peek = Peek::new()?;
        let start = first.as_ptr() as usize;
        words
            .skip(2)
            .find(|word| peek.word(start + word) == Some(value.as_ptr() as usize))
    };
    let mut layout = Layout {
        frame,
        within,
        code,
        back,
        at,
        owner,
        file: find("co_filename")?,
        name: find("co_name")?,
        characters: characters(py)?,
        line,
    };
    agrees(&mut layout, &known)?;
    Some(layout)
}

/// The code object and instruction offset of each running frame, as Python reports them.
fn known(py: Python<'_>) -> Option<Vec<(Bound<'_, PyAny>, usize)>> {
    // SAFETY: the thread is attached. The frame is borrowed, so a new reference is taken.
    let mut frame = unsafe {
        Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast::<ffi::PyObject>())?
    };
    let mut all = Vec::new();
    loop {
        let at: usize = frame.getattr("f_lasti").ok()?.extract().ok()?;
        all.push((frame.getattr("f_code").ok()?, at));
        let back = frame.getattr("f_back").ok()?;
        if back.is_none() || all.len() == Frames::MOST {
            return Some(all);
        }
        frame = back;
    }
}

/// Offset of a string's characters; `None` if strings do not have the expected layout.
fn characters(py: Python<'_>) -> Option<usize> {
    let peek = Peek::new()?;
    let state = |text: &Bound<'_, PyString>| {
        let word = peek.word(text.as_ptr() as usize + STATE)? as u32;
        Some(word & COMPACT_ASCII)
    };
    let plain = PyString::new(py, "sidestream looks at itself");
    let other = PyString::new(py, "sídestréam");
    let told_apart = state(&plain)? == COMPACT_ASCII && state(&other)? != COMPACT_ASCII;
    let first = usize::from_ne_bytes(*b"sidestre");
    let start = plain.as_ptr() as usize;
    let mut places = [40, 48].into_iter();
    let at = places.find(|at| peek.word(start + at) == Some(first))?;
    told_apart.then_some(at)
}

/// Follows this thread's frames by the layout, and compares them with Python's. Determines the offset of the first
/// instruction.
fn agrees(layout: &mut Layout, known: &[(Bound<'_, PyAny>, usize)]) -> Option<()> {
    let peek = Peek::new()?;
    let mut frame = peek.word(state() + layout.frame)?;
    if let Some(within) = layout.within {
        frame = peek.word(frame + within)?;
    }
    let mut begins = None;
    for (code, at) in known {
        while let Some((offset, owner)) = layout.owner
            && peek.word(frame + offset - 6)?.to_ne_bytes()[6] == owner
        {
            frame = peek.word(frame + layout.back)?;
        }
        let address = code.as_ptr() as usize;
        if peek.word(frame + layout.code)? != address {
            return None;
        }
        match layout.at {
            At::Number(offset) => {
                let number = peek.word(frame + offset)? as u32;
                if number as usize * 2 != *at {
                    return None;
                }
            }
            At::Address(offset, _) => {
                let begin = peek.word(frame + offset)?.checked_sub(at + address)?;
                if *begins.get_or_insert(begin) != begin || begin > 4096 {
                    return None;
                }
                layout.at = At::Address(offset, begin);
            }
        }
        frame = peek.word(frame + layout.back)?;
    }
    Some(())
}

/// Reads memory that may be unmapped: the system call fails instead of faulting.
struct Peek([c_int; 2]);

impl Peek {
    fn new() -> Option<Peek> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
        made.then_some(Peek(ends))
    }

    fn word(&self, address: usize) -> Option<usize> {
        let mut word = 0_usize;
        // SAFETY: the system reads the address itself, and returns an error if it is unmapped. It then writes to a local word.
        unsafe {
            let put = libc::write(self.0[1], address as *const c_void, 8);
            if put != 8 {
                return None;
            }
            let got = libc::read(self.0[0], (&raw mut word).cast(), 8);
            (got == 8).then_some(word)
        }
    }
}

impl Drop for Peek {
    fn drop(&mut self) {
        for end in self.0 {
            // SAFETY: the descriptor was opened above, and has no other owner.
            unsafe { libc::close(end) };
        }
    }
}

/// The state of this thread, whether it has the GIL or not; zero if Python does not know the thread.
fn state() -> usize {
    // SAFETY: the function reads a thread-local variable.
    unsafe { ffi::PyGILState_GetThisThreadState() as usize }
}

/// # Safety
/// There is a readable word at `address`.
unsafe fn word(address: usize) -> usize {
    // SAFETY: the caller guarantees it.
    unsafe { (address as *const usize).read_unaligned() }
}

/// The next frame that runs Python code, from this one on: the frame, its code object, and the byte offset in the
/// code.
///
/// # Safety
/// `frame` is zero or a frame of the calling thread, whose frames have this layout.
unsafe fn line_from(layout: &Layout, mut frame: usize) -> Option<(usize, usize, usize)> {
    for _ in 0..FAR {
        if frame == 0 {
            return None;
        }
        // SAFETY: the caller guarantees it.
        unsafe {
            let is_its_own = layout
                .owner
                .is_some_and(|(offset, owner)| *((frame + offset) as *const u8) == owner);
            if !is_its_own {
                let code = word(frame + layout.code);
                let at = match layout.at {
                    At::Number(offset) => *((frame + offset) as *const i32) as usize * 2,
                    At::Address(offset, begin) => word(frame + offset).wrapping_sub(code + begin),
                };
                return Some((frame, code, at));
            }
            frame = word(frame + layout.back);
        }
    }
    None
}

/// The innermost frame of this thread.
///
/// # Safety
/// Frames have this layout.
unsafe fn innermost(layout: &Layout) -> usize {
    let state = state();
    if state == 0 {
        return 0;
    }
    // SAFETY: the caller guarantees the layout; the state of a thread that Python knows leads to its frames, of which there may be none.
    unsafe {
        let first = word(state + layout.frame);
        match layout.within {
            Some(within) if first != 0 => word(first + within),
            _ => first,
        }
    }
}

/// Identifies the line that this thread executes: its code object, and the offset in it. Zeros if no Python code
/// runs.
fn place() -> (usize, usize) {
    let Some(Some(layout)) = LAYOUT.get() else {
        return (0, 0);
    };
    // SAFETY: `learn` compared the layout with what Python says, and the frames are this thread's own.
    let line = unsafe { line_from(layout, innermost(layout)) };
    line.map_or((0, 0), |(_, code, at)| (code, at))
}

/// Reads the Python stack of this thread.
fn read(into: &mut Frames) {
    let Some(Some(layout)) = LAYOUT.get() else {
        return;
    };
    // SAFETY: as in `place`. The code object of a running frame is alive, and so are its strings.
    unsafe {
        let mut next = innermost(layout);
        while let Some((frame, code, at)) = line_from(layout, next)
            && let Some(line) = into.next((code, at))
        {
            line.number = (layout.line)(code as *mut c_void, at as c_int);
            line.file.keep_end(text(layout, word(code + layout.file)));
            line.name.keep_end(text(layout, word(code + layout.name)));
            next = word(frame + layout.back);
        }
    }
}

/// The bytes of a string.
///
/// # Safety
/// `string` is a Python string with this layout, and it outlives the use of its bytes.
unsafe fn text<'a>(layout: &Layout, string: usize) -> &'a [u8] {
    // SAFETY: the caller guarantees it.
    unsafe {
        let plain = word(string + STATE) as u32 & COMPACT_ASCII == COMPACT_ASCII;
        if !plain {
            return b"(a name that is not ASCII)";
        }
        // The length follows the two header words of every object.
        let bytes = word(string + 16);
        std::slice::from_raw_parts((string + layout.characters) as *const u8, bytes)
    }
}
