//! The line of Python that the calling thread executes, read from memory, cheap enough for every call of CUDA.
//!
//! PyTorch releases the GIL around its operators, and Python's functions for this need it, or allocate. But a thread's frames change
//! by nothing but that thread, and keep alive what is read here: code objects with their names and line tables. Python 3.13 and later
//! tell the offsets of these structures (`_Py_DebugOffsets`, at the start of `_PyRuntime`), which earlier versions have fixed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::iter::successors;
use std::mem::{transmute, transmute_copy};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many frames are searched for one that is not a library's.
const DEPTH: usize = 30;
/// How many frames are followed at all.
const FAR: usize = 100;
/// What the file names of libraries contain.
const LIBRARIES: [&str; 4] = [
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3.",
    "<frozen ",
];

/// A line that a thread executes. Its names can be read until the call of CUDA returns.
pub struct Place {
    /// Different for each line, and the same whenever it is executed.
    pub id: u64,
    python: &'static Python,
    code: usize,
    at: c_int,
}

/// The innermost line outside libraries, or the innermost one if there is none near by. `None` in a thread that Python does not know, or
/// that executes no Python, and if there is no Python or one whose layout is not known.
pub fn line() -> Option<Place> {
    let python = python()?;
    let mut innermost = None;
    // SAFETY: the layout is that of this version, and the frames are this thread's own.
    unsafe {
        let mut frame = python.frame()?;
        for _ in 0..DEPTH {
            match python.executes(frame) {
                Some((code, false)) => return python.place(frame, code),
                Some((code, true)) => innermost = innermost.or(Some((frame, code))),
                None => {}
            }
            match word(frame, python.offsets.back) {
                Some(back) => frame = back,
                None => break,
            }
        }
        innermost.and_then(|(frame, code)| python.place(frame, code))
    }
}

/// All lines of the calling thread, those of libraries too, the innermost first; none where [`line()`] is `None`.
pub fn lines() -> impl Iterator<Item = Place> {
    let python = python();
    let first = python.and_then(Python::frame);
    // SAFETY: as in `line`.
    let back = move |frame: &usize| unsafe { word(*frame, python?.offsets.back) };
    // SAFETY: as above.
    let place = move |frame: usize| unsafe {
        let (code, _) = python?.executes(frame)?;
        python?.place(frame, code)
    };
    successors(first, back).take(FAR).filter_map(place)
}

impl Place {
    /// The line's number.
    pub fn line(&self) -> u32 {
        // SAFETY: the frame keeps its code, of which the function reads tables only.
        unsafe { (self.python.line)(self.code, self.at) }.max(0) as u32
    }

    /// Writes the file's name in UTF-8, as far as there is room; returns its length in bytes.
    pub fn file(&self, into: &mut [u8]) -> usize {
        // SAFETY: the frame keeps its code, which keeps its names.
        unsafe { self.python.text(self.code, self.python.offsets.file, into) }
    }

    /// Like [`Place::file`], for the function's name.
    pub fn function(&self, into: &mut [u8]) -> usize {
        // SAFETY: as in `file`.
        unsafe { self.python.text(self.code, self.python.offsets.name, into) }
    }
}

/// Functions of Python, and its layout.
struct Python {
    thread: extern "C" fn() -> usize,
    line: unsafe extern "C" fn(usize, c_int) -> c_int,
    length: unsafe extern "C" fn(usize) -> isize,
    character: unsafe extern "C" fn(usize, isize) -> u32,
    code_type: usize,
    offsets: Offsets,
    /// The offset of a string's characters, if they are ASCII; otherwise it is larger.
    characters: usize,
}

/// As many as there are in each row of [`known`], in that order.
#[repr(C)]
struct Offsets {
    // In the state of a thread: the innermost frame, or a structure that has it at `within`.
    frame: usize,
    within: usize,
    // In a frame. `at` is an address after `first`; a number of instructions if there is no `first`.
    code: usize,
    back: usize,
    at: usize,
    owner: usize,
    // In a code object.
    first: usize,
    file: usize,
    name: usize,
    first_line: usize,
    lines: usize,
}

/// In place of an offset: the version has no such thing.
const NONE: usize = usize::MAX;

/// What is known of the Python in this process.
fn python() -> Option<&'static Python> {
    static PYTHON: OnceLock<Option<Python>> = OnceLock::new();
    let python = PYTHON.get_or_init(|| {
        let version = match symbol(c"Py_Version") {
            // SAFETY: the variable is an `unsigned long`.
            Some(version) => unsafe { *(version as *const usize) as u32 },
            // Python 3.11 introduced it.
            None => symbol(c"Py_GetVersion").map(|_| 0x030A_0000)?,
        };
        known(version >> 16)
    });
    python.as_ref()
}

fn known(version: u32) -> Option<Python> {
    let offsets = match version {
        0x030A => [24, NONE, 32, 24, 96, NONE, NONE, 104, 112, 40, 120],
        0x030B => [56, 8, 32, 48, 56, NONE, 184, 112, 128, 72, 136],
        0x030C => [56, 0, 0, 8, 56, 70, 192, 112, 128, 68, 136],
        0x030D => told(version, [23, NONE, 30, 29, 31, 33, 43, 35, 37, 39, 38])?,
        0x030E => told(version, [26, NONE, 33, 32, 34, 36, 48, 40, 42, 44, 43])?,
        _ => return None,
    };
    // SAFETY: the functions of these names have these types in all of these versions.
    unsafe {
        Some(Python {
            thread: transmute_copy(&symbol(c"PyGILState_GetThisThreadState")?),
            line: transmute_copy(&symbol(c"PyCode_Addr2Line")?),
            length: transmute_copy(&symbol(c"PyUnicode_GetLength")?),
            character: transmute_copy(&symbol(c"PyUnicode_ReadChar")?),
            code_type: symbol(c"PyCode_Type")?,
            offsets: transmute::<[usize; 11], Offsets>(offsets),
            characters: if version < 0x030C { 48 } else { 40 },
        })
    }
}

/// The offsets that Python tells in these places of `_PyRuntime`; `None` for one without the GIL.
fn told<const N: usize>(version: u32, places: [usize; N]) -> Option<[usize; N]> {
    let runtime = symbol(c"_PyRuntime")? as *const usize;
    // SAFETY: the structure is far longer in the versions that have it, and these have it.
    let read = |place: usize| unsafe { runtime.add(place).read() };
    let is_it = read(0).to_ne_bytes() == *b"xdebugpy" && read(1) as u32 >> 16 == version;
    let offsets = places.map(|place| if place == NONE { NONE } else { read(place) });
    let are_offsets = offsets.iter().all(|&it| it == NONE || it < 4096);
    (is_it && are_offsets && read(2) == 0).then_some(offsets)
}

impl Python {
    /// The innermost frame of this thread.
    fn frame(&self) -> Option<usize> {
        // SAFETY: a thread that Python knows has a state, which has this layout.
        let first = unsafe { word((self.thread)(), self.offsets.frame)? };
        match self.offsets.within {
            NONE => Some(first),
            // SAFETY: as above.
            within => unsafe { word(first, within) },
        }
    }

    /// What a frame executes, and whether it is a library's; `None` for a frame of the interpreter's own.
    ///
    /// # Safety
    ///
    /// The frame is one of this thread.
    unsafe fn executes(&self, frame: usize) -> Option<(usize, bool)> {
        // The address of a code object, bits of its file name's address and length, since another may come to lie there; and 1 for a
        // library's, or 2.
        static KINDS: [AtomicU64; 1 << 12] = [const { AtomicU64::new(0) }; 1 << 12];
        // SAFETY: the caller's promise. An object's second word is its type, and a string's third is its length.
        unsafe {
            let owner = self.offsets.owner;
            if owner != NONE && ((frame + owner) as *const u8).read() >= 3 {
                return None;
            }
            // The lowest bits say how the reference is counted.
            let code = word(frame, self.offsets.code)? & !7;
            if word(code, 8)? != self.code_type {
                return None;
            }
            let file = word(code, self.offsets.file)?;
            let mark = (file ^ word(file, 16)? << 9) as u64;
            let key = code as u64 ^ mark << 44;
            let entry = &KINDS[(code >> 5 ^ code >> 15) % KINDS.len()];
            let found = entry.load(Relaxed);
            if found & !7 == key {
                return Some((code, found & 7 == 1));
            }
            let mut name = [0; 1024];
            let length = self.text(code, self.offsets.file, &mut name);
            let name = str::from_utf8(&name[..length]).unwrap_or("");
            let is_library = LIBRARIES.iter().any(|part| name.contains(part));
            entry.store(key | if is_library { 1 } else { 2 }, Relaxed);
            Some((code, is_library))
        }
    }

    /// # Safety
    ///
    /// `frame` is a frame of this thread, and executes `code`.
    unsafe fn place(&'static self, frame: usize, code: usize) -> Option<Place> {
        let offsets = &self.offsets;
        // SAFETY: the caller's promise.
        unsafe {
            let at = match offsets.first {
                NONE => ((frame + offsets.at) as *const c_int)
                    .read()
                    .wrapping_mul(2),
                first => word(frame, offsets.at)?.wrapping_sub(code + first) as c_int,
            };
            // All by content, since code may be thrown away, and other code come to lie there. A string's fourth word is its hash.
            let name = word(word(code, offsets.name)?, 24).unwrap_or(0);
            let first_line = ((code + offsets.first_line) as *const c_int).read();
            let id = mix(mix(name, at as usize), first_line as usize);
            let id = hash(word(code, offsets.lines)?, 32, id);
            let id = hash(word(code, offsets.file)?, self.characters, id) as u64 | 1;
            let python = self;
            Some(Place {
                id,
                python,
                code,
                at,
            })
        }
    }

    /// # Safety
    ///
    /// `code` is a code object that has a string at `offset`, and is not freed meanwhile.
    unsafe fn text(&self, code: usize, offset: usize, into: &mut [u8]) -> usize {
        let mut written = 0;
        // SAFETY: the caller's promise. Below the string's length the functions only read it.
        unsafe {
            let Some(string) = word(code, offset) else {
                return 0;
            };
            for index in 0..(self.length)(string) {
                let character = char::from_u32((self.character)(string, index)).unwrap_or('?');
                let length = character.len_utf8();
                if into.len() - written < length {
                    break;
                }
                character.encode_utf8(&mut into[written..]);
                written += length;
            }
        }
        written
    }
}

fn mix(hash: usize, word: usize) -> usize {
    const ODD: usize = 0x9E37_79B9_7F4A_7C15;
    let product = (hash.wrapping_mul(ODD) ^ word) as u128 * ODD as u128;
    (product ^ product >> 64) as usize
}

/// A hash of the bytes that an object has at an offset, of which there are one more than its third word says; of the first 256, and for
/// a string that is not ASCII of those alone that an ASCII one would have.
///
/// # Safety
///
/// `object` is such an object, and is not freed meanwhile.
unsafe fn hash(object: usize, offset: usize, seed: usize) -> usize {
    // SAFETY: the caller's promise. Before the last eight bytes there are others of the object.
    unsafe {
        let length = word(object, 16).unwrap_or(0).min(256);
        let read =
            |at: usize| std::ptr::with_exposed_provenance::<usize>(object + at).read_unaligned();
        // No product needs another, so that they overlap.
        let words = (0..length / 8).map(|at| mix(at, read(offset + at * 8)));
        words.fold(mix(seed, read(offset + length - 7)), usize::wrapping_add)
    }
}

/// The word at an offset from an address; `None` if one of them is zero.
///
/// # Safety
///
/// There is a readable word, if the address is not zero.
unsafe fn word(address: usize, offset: usize) -> Option<usize> {
    if address == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { std::ptr::with_exposed_provenance::<usize>(address + offset).read() })
        .filter(|&word| word != 0)
}

fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: the call looks up a name among what is loaded; null stands for all.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
