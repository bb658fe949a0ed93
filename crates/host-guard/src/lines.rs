//! Where a program is by its own account: the lines of an interpreter's functions, read while an access is noted. Who knows them is told
//! once ([`come_from`]); until then an access has no lines.

use std::sync::OnceLock;

/// Longer names lose their beginning.
const FILE: usize = 232;
const NAME: usize = 120;

/// The end of a text, as much of it as there is room for.
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

    /// Keeps the end of these bytes.
    pub fn keep_end(&mut self, of: &[u8]) {
        let kept = &of[of.len().saturating_sub(ROOM)..];
        self.bytes[..kept.len()].copy_from_slice(kept);
        self.count = kept.len() as u8;
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..usize::from(self.count)]).into_owned()
    }
}

/// A line of a function.
#[derive(Clone, Copy)]
pub struct Line {
    /// The line's number in its file.
    pub number: i32,
    /// The file.
    pub file: End<FILE>,
    /// The function.
    pub name: End<NAME>,
}

/// The lines that a thread is at, the innermost first.
#[derive(Clone, Copy)]
pub struct Frames {
    /// What tells the innermost one from others: its function and where in it.
    pub(crate) place: (usize, usize),
    count: usize,
    lines: [Line; Frames::MOST],
}

impl Frames {
    /// How many are kept, the innermost first.
    pub const MOST: usize = 10;

    /// No lines.
    pub(crate) const NONE: Frames = Frames {
        place: (0, 0),
        count: 0,
        lines: [Line {
            number: 0,
            file: End::NONE,
            name: End::NONE,
        }; Frames::MOST],
    };

    /// Room for the next line further out, which is at this place; none if all is taken.
    pub fn next(&mut self, place: (usize, usize)) -> Option<&mut Line> {
        let line = self.lines.get_mut(self.count)?;
        if self.count == 0 {
            self.place = place;
        }
        self.count += 1;
        Some(line)
    }

    /// File, function and line of each.
    pub fn lines(&self) -> impl Iterator<Item = (String, String, i32)> + '_ {
        let kept = self.lines[..self.count].iter();
        kept.map(|line| (line.file.text(), line.name.text(), line.number))
    }
}

/// Who knows where the program is. Both are asked at any time, by a handler of a signal too: they may neither allocate nor take a lock.
#[derive(Clone, Copy)]
pub struct Source {
    /// What tells the line that the calling thread is at from others; zeros where there is none.
    pub place: fn() -> (usize, usize),
    /// Writes the lines that the calling thread is at.
    pub read: fn(&mut Frames),
}

static SOURCE: OnceLock<Source> = OnceLock::new();

/// Where lines come from, from now on. The first stays.
pub fn come_from(source: Source) {
    SOURCE.get_or_init(|| source);
}

pub(crate) fn place() -> (usize, usize) {
    SOURCE.get().map_or((0, 0), |source| (source.place)())
}

pub(crate) fn read(into: &mut Frames) {
    (into.count, into.place) = (0, (0, 0));
    if let Some(source) = SOURCE.get() {
        (source.read)(into);
    }
}
