//! Where Python is, read by a thread of its own frames and without Python's help.
//!
//! Python's functions for this allocate, or want the lock of the interpreter, and the thread that faults may have given that away: numpy and
//! ctypes do while they move bytes. But nobody else changes the frames of a thread that is inside a call, and the frames keep
//! alive what is read here: code objects with their names and tables of lines. So they are read as they lie in memory.
//!
//! How they lie depends on the version of Python. What is known of the versions is tried at the start, against what Python itself says of
//! the same frames ([`learn`]), and with reads that cannot fault. Where the two differ, nothing is read later, and accesses have no place.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use host_guard::lines::{self, Frames};

/// So many frames of the interpreter's own are passed over at most.
const FAR: usize = 64;

/// How frames lie in memory.
struct Layout {
    /// From the state of a thread to its innermost frame, or to what has it.
    frame: usize,
    /// From there to the frame, where it is not the state itself that has it.
    within: Option<usize>,
    code: usize,
    back: usize,
    at: At,
    /// Where a frame says who owns it, and what it says if it is the interpreter's own.
    owner: Option<(usize, u8)>,
    // In code objects.
    file: usize,
    name: usize,
    /// Where the characters of a string are, if they are ASCII.
    characters: usize,
    line: extern "C" fn(*mut c_void, c_int) -> c_int,
}

/// How a frame says where in its code it is.
#[derive(Clone, Copy)]
enum At {
    /// A number of instructions of two bytes each.
    Number(usize),
    /// An address, and where the instructions begin in a code object.
    Address(usize, usize),
}

static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();

/// Where a string says what it is made of, and what it says if its characters follow and are ASCII.
const STATE: usize = 32;
const COMPACT_ASCII: u32 = 0b11 << 5;

/// Learns how this Python lays out its frames, and has the guard ask here where the program is. If it cannot be learnt, accesses that
/// are noted have no place.
pub fn learn(py: Python<'_>) {
    LAYOUT.get_or_init(|| layout(py));
    lines::come_from(lines::Source { place, read });
}

/// What is known of the versions: frame, within, code, back, instruction, owner.
type Version = (usize, Option<usize>, usize, usize, At, Option<(usize, u8)>);

fn version(minor: u8) -> Option<Version> {
    // The address where instructions begin is found out below.
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
    // SAFETY: a name that ends with a zero.
    let line = unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) };
    if line.is_null() {
        return None;
    }
    // SAFETY: Python's function of this name has this signature in all versions above.
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

/// The code and the instruction of the frames that run this, as Python says.
fn known(py: Python<'_>) -> Option<Vec<(Bound<'_, PyAny>, usize)>> {
    // SAFETY: the thread is attached. The frame is borrowed, so it gets a reference of its own.
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

/// Where the characters of a string are; none if strings are not what is expected.
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

/// Follows the frames of this thread as the layout says, and compares. Finds out where the instructions begin.
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

/// Reads memory that may not be there: the system looks, and fails where it is not.
struct Peek([c_int; 2]);

impl Peek {
    fn new() -> Option<Peek> {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
        made.then_some(Peek(ends))
    }

    fn word(&self, address: usize) -> Option<usize> {
        let mut word = 0_usize;
        // SAFETY: the system itself reads the address, and answers with an error where nothing is. Then it writes to a word of ours.
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
            // SAFETY: it was opened above, and nobody else has it.
            unsafe { libc::close(end) };
        }
    }
}

/// The state of this thread, whether it holds the lock of the interpreter or not; zero if Python does not know it.
fn state() -> usize {
    // SAFETY: it reads a variable of the thread.
    unsafe { ffi::PyGILState_GetThisThreadState() as usize }
}

/// # Safety
/// There is a readable word.
unsafe fn word(address: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { (address as *const usize).read_unaligned() }
}

/// The next frame that is a line of Python, from this one on: the frame, its code, and the byte in it.
///
/// # Safety
/// `frame` is zero or a frame of the calling thread, which lie as `layout` says.
unsafe fn line_from(layout: &Layout, mut frame: usize) -> Option<(usize, usize, usize)> {
    for _ in 0..FAR {
        if frame == 0 {
            return None;
        }
        // SAFETY: the caller's promise.
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
/// Frames lie as `layout` says.
unsafe fn innermost(layout: &Layout) -> usize {
    let state = state();
    if state == 0 {
        return 0;
    }
    // SAFETY: the caller's promise; a thread that Python knows has what leads to its frames, which may be none.
    unsafe {
        let first = word(state + layout.frame);
        match layout.within {
            Some(within) if first != 0 => word(first + within),
            _ => first,
        }
    }
}

/// The line that this thread is at, to know it again: its code, and where in it. Zeros where there is no Python.
fn place() -> (usize, usize) {
    let Some(Some(layout)) = LAYOUT.get() else {
        return (0, 0);
    };
    // SAFETY: `learn` compared the layout with what Python says, and the frames are this thread's own.
    let line = unsafe { line_from(layout, innermost(layout)) };
    line.map_or((0, 0), |(_, code, at)| (code, at))
}

/// Reads the lines that this thread is at.
fn read(into: &mut Frames) {
    let Some(Some(layout)) = LAYOUT.get() else {
        return;
    };
    // SAFETY: as in `place`. The code of a frame that runs is alive, and so are the strings that it has.
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
/// It is a string of Python's, which lie as `layout` says, and it outlives their use.
unsafe fn text<'a>(layout: &Layout, string: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe {
        let plain = word(string + STATE) as u32 & COMPACT_ASCII == COMPACT_ASCII;
        if !plain {
            return b"(a name that is not ASCII)";
        }
        // The length stands behind the two words of every object.
        let bytes = word(string + 16);
        std::slice::from_raw_parts((string + layout.characters) as *const u8, bytes)
    }
}
