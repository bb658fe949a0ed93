//! The lines that a program is executing: those of an interpreter's functions, read while an access is recorded. The
//! interpreter's side registers once ([`come_from`]); until then accesses have no lines.

use std::sync::OnceLock;

/// The bytes of a file name that are kept; longer names lose their beginning.
const FILE: usize = 232;
const NAME: usize = 120;

/// The end of a text, as much as fits.
#[derive(Clone, Copy)]
pub struct End<const ROOM: usize> {
    bytes: [u8; ROOM],
    count: u8,
}

impl<const ROOM: usize> End<ROOM> {
    const NONE: Self = End {
        bytes: [0; ROOM],
        count: 0,
    };

    /// Stores the end of these bytes.
    pub fn keep_end(&mut self, of: &[u8]) {
        let kept = &of[of.len().saturating_sub(ROOM)..];
        self.bytes[..kept.len()].copy_from_slice(kept);
        self.count = kept.len() as u8;
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.count)]).into_owned()
    }
}

/// A line in a function.
#[derive(Clone, Copy)]
pub struct Line {
    /// The line number in the file.
    pub number: i32,
    /// The file's name.
    pub file: End<FILE>,
    /// The function's name.
    pub name: End<NAME>,
}

/// The lines that a thread is executing, the innermost first.
#[derive(Clone, Copy)]
pub struct Frames {
    /// The identity of the innermost line: its function and the offset in it.
    pub(crate) place: (usize, usize),
    count: usize,
    lines: [Line; Frames::MOST],
}

impl Frames {
    /// The number of lines that are kept, the innermost first.
    pub const MOST: usize = 10;

    /// The value without lines.
    pub(crate) const NONE: Frames = Frames {
        place: (0, 0),
        count: 0,
        lines: [Line {
            number: 0,
            file: End::NONE,
            name: End::NONE,
        }; Frames::MOST],
    };

    /// The identity of the innermost line, as its source gives it; zeros if there is none.
    pub fn place(&self) -> (usize, usize) {
        self.place
    }

    /// The slot for the next outer line, which has this identity; `None` if all are used.
    pub fn next(&mut self, place: (usize, usize)) -> Option<&mut Line> {
        let line = self.lines.get_mut(self.count)?;
        if self.count == 0 {
            self.place = place;
        }
        self.count += 1;
        Some(line)
    }

    /// The file, function and line number of each line.
    pub fn lines(&self) -> impl Iterator<Item = (String, String, i32)> + '_ {
        let kept = self.lines[..self.count].iter();
        kept.map(|line| (line.file.text(), line.name.text(), line.number))
    }
}

/// Reports the program's current lines. Both functions are called at any time, also by a signal handler: they must
/// not allocate or take a lock.
#[derive(Clone, Copy)]
pub struct Source {
    /// Returns the identity of the line that the calling thread is executing; zeros if there is none.
    pub place: fn() -> (usize, usize),
    /// Writes the lines that the calling thread is executing.
    pub read: fn(&mut Frames),
    /// Whether the native stack of an access is copied as well.
    pub stack: bool,
}

static SOURCE: OnceLock<Source> = OnceLock::new();

/// Registers the source of lines. The first one stays.
pub fn come_from(source: Source) {
    SOURCE.get_or_init(|| source);
}

pub(crate) fn place() -> (usize, usize) {
    SOURCE.get().map_or((0, 0), |source| (source.place)())
}

pub(crate) fn has_stacks() -> bool {
    SOURCE.get().is_some_and(|source| source.stack)
}

pub(crate) fn read(into: &mut Frames) {
    (into.count, into.place) = (0, (0, 0));
    if let Some(source) = SOURCE.get() {
        (source.read)(into);
    }
}
