//! The strings of a trace, each stored once.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use crate::sort::Part;

/// The index of a string in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub u32);

impl Part for Name {
    fn bits(self) -> u64 {
        self.0.into()
    }
}

/// The strings of a trace.
///
/// Their memory is bounded: a file with a new name for every event ends in [`Names::OTHER`] and not in a full memory.
#[derive(Debug)]
pub struct Names {
    text: String,
    /// The end of each name; it starts at the end of the previous name.
    ends: Vec<u32>,
    /// Names by their hash. Names with equal hashes are linked in `next`.
    by_hash: HashMap<u64, Name>,
    next: Vec<u32>,
    hasher: RandomState,
    left_bytes: usize,
    overflowed: bool,
}

/// The end of a chain of names with equal hashes.
const NONE: u32 = u32::MAX;

impl Names {
    /// The name of all strings that did not fit.
    pub const OTHER: Name = Name(0);
    /// The longest name that is kept whole, in bytes. Names of templates run to a few thousand.
    pub const LONGEST_BYTES: usize = 8 << 10;

    /// Returns a table with only [`Names::OTHER`], and room for this many bytes of text.
    pub fn new(most_bytes: usize) -> Names {
        let mut names = Names {
            text: String::new(),
            ends: Vec::new(),
            by_hash: HashMap::new(),
            next: Vec::new(),
            hasher: RandomState::new(),
            left_bytes: most_bytes.min(u32::MAX as usize / 2),
            overflowed: false,
        };
        let hash = names.hasher.hash_one("(other)");
        names.keep("(other)", hash);
        names
    }

    /// Interns a string and returns its name.
    pub fn intern(&mut self, text: &str) -> Name {
        let text = &text[..text.floor_char_boundary(Self::LONGEST_BYTES)];
        let hash = self.hasher.hash_one(text);
        let mut at = self.by_hash.get(&hash).copied();
        while let Some(name) = at {
            if self.text(name) == text {
                return name;
            }
            at = self
                .next
                .get(name.0 as usize)
                .copied()
                .filter(|next| *next != NONE)
                .map(Name);
        }
        // Besides its text, a name takes memory in the tables.
        let cost = text.len() + 40;
        if cost > self.left_bytes {
            self.overflowed = true;
            return Names::OTHER;
        }
        self.left_bytes -= cost;
        self.keep(text, hash)
    }

    fn keep(&mut self, text: &str, hash: u64) -> Name {
        let name = Name(self.ends.len() as u32);
        self.text.push_str(text);
        self.ends.push(self.text.len() as u32);
        let before = self.by_hash.insert(hash, name);
        self.next.push(before.map_or(NONE, |name| name.0));
        name
    }

    /// Returns the string of a name; empty for a name of another trace.
    pub fn text(&self, name: Name) -> &str {
        let at = name.0 as usize;
        let start = match at.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(0),
            None => 0,
        };
        let end = self.ends.get(at).copied().unwrap_or(start);
        self.text.get(start as usize..end as usize).unwrap_or("")
    }

    /// Returns, for each name, whether its string passes a test.
    pub fn that(&self, test: impl Fn(&str) -> bool) -> Vec<bool> {
        let all = (0..self.ends.len() as u32).map(Name);
        all.map(|name| test(self.text(name))).collect()
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is no name, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns whether a name did not fit and became [`Names::OTHER`].
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_name() {
        let mut names = Names::new(1 << 20);
        let (a, b) = (names.intern("kernel_a"), names.intern("kernel_b"));
        assert_ne!(a, b);
        assert_eq!(names.intern("kernel_a"), a);
        assert_eq!((names.text(a), names.text(b)), ("kernel_a", "kernel_b"));
        assert_eq!(names.text(Name(99)), "");
    }

    #[test]
    fn names_that_do_not_fit_become_one() {
        let mut names = Names::new(100);
        let kept = names.intern("first");
        let more: Vec<Name> = (0..10)
            .map(|i| names.intern(&format!("name {i}")))
            .collect();
        assert_eq!(names.text(kept), "first");
        assert_eq!(more.last(), Some(&Names::OTHER));
        assert!(names.overflowed());
        assert_eq!(names.intern("first"), kept);
    }

    #[test]
    fn a_name_is_cut_between_letters() {
        let mut names = Names::new(1 << 20);
        let long = "ä".repeat(Names::LONGEST_BYTES);
        let name = names.intern(&long);
        assert_eq!(names.text(name).len(), Names::LONGEST_BYTES);
        let odd = format!("x{long}");
        let name = names.intern(&odd);
        assert_eq!(names.text(name).len(), Names::LONGEST_BYTES - 1);
    }
}
