//! Holds records back, in order, until the bytes have arrived that the launches before them touched.
//!
//! A launch's bytes are known when it has ended on the device, long after its call. The checker takes calls in the order in
//! which they were made, with all that they touch.

use std::collections::{HashMap, HashSet, VecDeque};

use sidestream_inject::wire::{EARLIER, Head, INCOMPLETE, LAUNCH, LOADS, MORE, STORES, Tag};

/// What a launch touched, as far as it has arrived.
#[derive(Default)]
pub struct Arrived {
    /// Pairs of words: see [`Tag::Touched`].
    pub ranges: Vec<u64>,
    /// Groups of five words: see [`Tag::Boxes`].
    pub boxes: Vec<u64>,
    /// Whether some of it was lost.
    pub is_incomplete: bool,
    /// Whether the kernel stores tensors, which is not heard.
    pub stores_tensors: bool,
    /// Whether the hashes of all maps by which it loads tensors are heard.
    pub tells_loads: bool,
    /// Whether it is what earlier launches of the kernel touched.
    pub is_earlier: bool,
    /// Whether all of it has arrived.
    pub has_ended: bool,
}

/// A launch of a kernel, alone or as a node.
pub struct Launched {
    /// The node's handle, or zero.
    pub node: u64,
    /// What it touched; `None` if that was not heard.
    pub touched: Option<Arrived>,
}

/// Records that are held back, and what they wait for.
#[derive(Default)]
pub struct Awaited {
    /// The words of records, from the first on whose launches have not all arrived.
    held: VecDeque<u64>,
    /// How many launches of that one have arrived.
    counted: usize,
    /// By number of the launch.
    arrived: HashMap<u64, Arrived>,
    /// The number of words in `arrived`.
    words: usize,
    /// Launches that were let through before they had arrived.
    late: HashSet<u64>,
}

/// The largest number of words that are kept, 256 MiB. Beyond, the oldest launch counts as not heard.
const MOST: usize = 32 << 20;
/// What a launch takes besides its ranges, in words.
const EACH: usize = 24;
/// The largest number of launches that are remembered as late.
const LATE: usize = 1 << 20;

impl Awaited {
    /// Takes a record that says what a launch touched, or that comes after a launch of which that is not known yet. Returns
    /// whether it did.
    pub fn take(&mut self, head: Head, record: &[u64]) -> bool {
        match head.tag {
            Tag::Touched | Tag::Boxes => self.arrives(head.tag, record),
            // What launches touched needs them, whichever call comes next.
            Tag::Map => return false,
            Tag::Launches => self.hold(head, record),
            _ if self.held.is_empty() => return false,
            _ => self.hold(head, record),
        }
        true
    }

    fn hold(&mut self, head: Head, record: &[u64]) {
        let words = record.len() as u16 + 1;
        self.held.push_back(Head { words, ..head }.word());
        self.held.extend(record);
    }

    fn arrives(&mut self, tag: Tag, record: &[u64]) {
        let Some((&first, rest)) = record.split_first() else {
            return;
        };
        let (number, is_last) = (first & LAUNCH, tag == Tag::Touched && first & MORE == 0);
        if self.late.contains(&number) {
            if is_last {
                self.late.remove(&number);
            }
            return;
        }
        if self.held.is_empty() && self.words >= MOST {
            // No call has named these, or will.
            (self.arrived, self.words) = (HashMap::new(), 0);
        }
        let known = self.arrived.entry(number).or_insert_with(|| {
            self.words += EACH;
            Arrived::default()
        });
        self.words += rest.len();
        if tag == Tag::Boxes {
            known.boxes.extend(rest);
        } else {
            known.ranges.extend(rest);
            known.is_incomplete |= first & INCOMPLETE != 0;
            known.stores_tensors |= first & STORES != 0;
            known.tells_loads |= first & LOADS != 0;
            known.is_earlier |= first & EARLIER != 0;
            known.has_ended |= is_last;
        }
    }

    /// Returns the next record that need not wait any more, or at the end the next one.
    pub fn next(&mut self, is_end: bool) -> Option<(Head, Vec<u64>)> {
        let head = Head::of(*self.held.front()?)?;
        let words = usize::from(head.words);
        let is_full = self.held.len() + self.words > MOST;
        if head.tag == Tag::Launches && !is_end && !is_full && !self.has_arrived(words) {
            return None;
        }
        self.counted = 0;
        self.held.pop_front();
        Some((head, self.held.drain(..words - 1).collect()))
    }

    /// Whether all launches of the first record have arrived. Of those that have, none is looked up again.
    fn has_arrived(&mut self, words: usize) -> bool {
        while let Some(at) = Some(3 + 2 * self.counted).filter(|at| *at < words) {
            let number = self.held[at];
            let is_there = |touched: &Arrived| touched.has_ended;
            if number != 0 && !self.arrived.get(&number).is_some_and(is_there) {
                return false;
            }
            self.counted += 1;
        }
        true
    }

    /// Returns what launches touched, by their pairs of node and number.
    pub fn launched(&mut self, pairs: &[u64]) -> Vec<Launched> {
        let (pairs, _) = pairs.as_chunks();
        let each = pairs.iter().map(|&[node, number]| {
            let touched = self.arrived.remove(&number);
            if let Some(touched) = &touched {
                self.words -= EACH + touched.ranges.len() + touched.boxes.len();
            }
            let has_ended = touched.as_ref().is_some_and(|touched| touched.has_ended);
            if number != 0 && !has_ended && self.late.len() < LATE {
                self.late.insert(number);
            }
            Launched { node, touched }
        });
        each.collect()
    }
}
