//! Which bytes a launch touches, from launches of the same kernel before it: for `--exact=first`.
//!
//! Ranges are kept relative to the addresses among a launch's parameters. Once two launches with the same other parameters have
//! touched the same, so will the next, and it need not be watched; nor if launches with several other parameters have all
//! touched the same. From time to time all of a module's kernels are watched again.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use crate::wire::{EARLIER, INCOMPLETE, LAUNCH, MAX_WORDS, MORE, Tag};

/// A kernel with its dimensions and the places of addresses among its parameters.
type Kernel = u64;

/// A launch, before the program makes it.
#[derive(Default)]
pub struct Expected {
    /// Differs if the other words of the parameters do.
    pub others: u64,
    /// The addresses among the parameters: where each stands, and the address.
    pub addresses: Vec<[u64; 2]>,
}

/// What a launch touched.
#[derive(Clone, PartialEq, Eq, Default)]
struct Accessed {
    /// The flags of the first word of [`Tag::Touched`].
    flags: u64,
    /// The class of access and the address that it is relative to ([`ABSOLUTE`]: none), the distance from that, and the bytes.
    ranges: Vec<[u64; 3]>,
    /// The words of [`Tag::Boxes`].
    boxes: Vec<u64>,
}

/// What launches of a kernel touched.
#[derive(Default)]
struct History {
    module: u64,
    /// By the other words of the parameters.
    samples: HashMap<u64, Sample>,
    /// Whether they touch different bytes if other words differ.
    depends: bool,
    /// Whether addresses count as other words: tensor maps have them inside.
    is_placed: bool,
}

struct Sample {
    touched: Accessed,
    launches: u32,
    /// The round of its module in which the last was watched.
    round: u32,
    /// Whether two touched different bytes.
    varies: bool,
}

/// A module, all of whose kernels are watched or none.
struct Module {
    round: u32,
    /// What was launched since the program last waited; of `None`, nothing can be known.
    recent: HashSet<Option<(Kernel, u64)>>,
    /// Since when its kernels are watched, or not any more.
    since: Instant,
    /// How long they need not be watched, if so.
    rests: Option<Duration>,
}

/// A launch that is watched.
struct Watched {
    kernel: Kernel,
    expected: Expected,
    ranges: Vec<[u64; 2]>,
    boxes: Vec<u64>,
}

/// What is known of all kernels.
#[derive(Default)]
pub struct Learned {
    kernels: HashMap<Kernel, History>,
    modules: HashMap<u64, Module>,
    watched: HashMap<u64, Watched>,
}

/// How many launches with the same other parameters touch the same before that counts as known; and launches with how many others.
const SAME: u32 = 2;
const OTHERS: usize = 4;
/// The largest numbers of what is kept: ranges of a launch, others of a kernel, kernels, launches.
const RANGES: usize = 4096;
const SAMPLES: usize = 256;
const KERNELS: usize = 1 << 16;
const LAUNCHES: usize = 1 << 16;
/// The largest distance of a range from the address that it is relative to.
const FAR: u64 = 1 << 36;
const ABSOLUTE: u64 = (1 << 60) - 1;
const CLASS_SHIFT: u32 = 60;
/// For how many times the time in which they were watched kernels rest, and for how long at least.
const RESTS: u32 = 100;
const SHORTEST: Duration = Duration::from_secs(2);

fn hashed(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Expected {
    /// Takes the number of the other words, and for each address where it stands and the address.
    pub fn new(words: &[u64]) -> Option<Expected> {
        let (&others, pairs) = words.split_first()?;
        let addresses = pairs.as_chunks().0.to_vec();
        Some(Expected { others, addresses })
    }

    /// Returns the number of the other words: which addresses are one belongs to them, and how they are aligned.
    fn number(&self, is_placed: bool) -> u64 {
        let at = |&[_, address]: &[u64; 2]| address;
        let same = |of| self.addresses.iter().map(at).position(|other| other == of);
        let each = self.addresses.iter().map(at);
        let each: Vec<_> = each
            .map(|of| (same(of), if is_placed { of } else { of & 15 }))
            .collect();
        hashed((self.others, each))
    }

    /// Returns ranges as relative to the nearest address below, each cut where another address lies inside.
    fn relative(&self, ranges: &[[u64; 2]]) -> Vec<[u64; 3]> {
        let each = self.addresses.iter().enumerate();
        let mut from: Vec<_> = each.map(|(index, of)| (of[1], index as u64)).collect();
        from.sort_unstable();
        from.dedup_by_key(|of| of.0);
        let mut all = Vec::new();
        for &[first, end] in ranges {
            let (class, mut at) = (first >> CLASS_SHIFT << CLASS_SHIFT, first & ABSOLUTE);
            while at < end && all.len() <= RANGES {
                let above = from.partition_point(|of| of.0 <= at);
                let below = from[..above].last().filter(|of| at - of.0 < FAR);
                let (index, distance) = below.map_or((ABSOLUTE, at), |of| (of.1, at - of.0));
                let cut = from.get(above).map_or(end, |of| of.0.min(end));
                all.push([class | index, distance, cut - at]);
                at = cut;
            }
        }
        all.sort_unstable();
        all
    }

    /// Returns ranges as words of [`Tag::Touched`].
    fn absolute(&self, ranges: &[[u64; 3]]) -> Vec<u64> {
        let each = ranges.iter().flat_map(|&[of, distance, bytes]| {
            let (class, index) = (of >> CLASS_SHIFT << CLASS_SHIFT, of & ABSOLUTE);
            let from = self.addresses.get(index as usize).map_or(0, |of| of[1]);
            let at = from.wrapping_add(distance) & ABSOLUTE;
            [class | at, at.saturating_add(bytes)]
        });
        each.collect()
    }
}

impl History {
    /// Returns what a launch with these other words touches, if that is known.
    fn of(&self, others: u64, round: u32) -> Option<&Accessed> {
        let is_one = !self.depends && !self.is_placed && self.samples.len() >= OTHERS;
        let is_of = |sample: &&Sample| !sample.varies && sample.round == round;
        let sample = if is_one {
            self.samples.values().find(is_of)
        } else {
            let same = self.samples.get(&others);
            same.filter(|sample| is_of(sample) && sample.launches >= SAME)
        };
        sample.map(|sample| &sample.touched)
    }

    /// Takes what a launch touched.
    fn add(&mut self, expected: &Expected, round: u32, touched: Accessed) {
        self.is_placed |= !touched.boxes.is_empty();
        let others = expected.number(self.is_placed);
        let is_much = touched.ranges.len() > RANGES;
        self.depends |= self.samples.values().any(|of| of.touched != touched);
        if self.samples.len() >= SAMPLES && !self.samples.contains_key(&others) {
            self.samples.clear();
        }
        let sample = self.samples.entry(others).or_insert_with(|| Sample {
            touched: if is_much {
                Accessed::default()
            } else {
                touched.clone()
            },
            launches: 0,
            round,
            varies: is_much,
        });
        sample.varies |= sample.touched != touched;
        (sample.launches, sample.round) = (sample.launches.saturating_add(1), round);
    }
}

impl Learned {
    /// Whether a launch is to be watched. If not, passes on the records of what it touches.
    pub fn watches(
        &mut self,
        module: u64,
        kernel: impl Hash,
        number: u64,
        expected: Option<Expected>,
        mut write: impl FnMut(Tag, &[u64]),
    ) -> bool {
        let of = self.modules.entry(module).or_insert_with(|| Module {
            round: 0,
            recent: HashSet::new(),
            since: Instant::now(),
            rests: None,
        });
        if of.rests.is_some_and(|rests| of.since.elapsed() > rests) {
            (of.round, of.since, of.rests) = (of.round + 1, Instant::now(), None);
        }
        let Some(expected) = expected else {
            of.recent.insert(None);
            of.rests = None;
            return true;
        };
        let places = expected.addresses.iter().map(|of| of[0]);
        let kernel = hashed((module, kernel, places.collect::<Vec<_>>()));
        if self.kernels.len() >= KERNELS && !self.kernels.contains_key(&kernel) {
            self.kernels.clear();
        }
        let known = self.kernels.entry(kernel).or_default();
        known.module = module;
        let others = expected.number(known.is_placed);
        of.recent.insert(Some((kernel, others)));
        if let Some(touched) = known.of(others, of.round) {
            for boxes in touched.boxes.chunks((MAX_WORDS - 2) / 5 * 5) {
                write(Tag::Boxes, &[&[number], boxes].concat());
            }
            let words = expected.absolute(&touched.ranges);
            let mut parts = words.chunks((MAX_WORDS - 2) / 2 * 2).peekable();
            let first = number | touched.flags | EARLIER;
            if parts.peek().is_none() {
                write(Tag::Touched, &[first]);
            }
            while let Some(part) = parts.next() {
                let more = if parts.peek().is_some() { MORE } else { 0 };
                write(Tag::Touched, &[&[first | more], part].concat());
            }
            return false;
        }
        if of.rests.take().is_some() {
            of.since = Instant::now();
        }
        if self.watched.len() >= LAUNCHES {
            self.watched.clear();
        }
        let (ranges, boxes) = (Vec::new(), Vec::new());
        let watched = Watched {
            kernel,
            expected,
            ranges,
            boxes,
        };
        self.watched.insert(number, watched);
        true
    }

    /// Takes a record of what a launch touched.
    pub fn takes(&mut self, tag: Tag, words: &[u64]) {
        let Some((&first, words)) = words.split_first() else {
            return;
        };
        let number = first & LAUNCH;
        let Some(watched) = self.watched.get_mut(&number) else {
            return;
        };
        match tag {
            Tag::Boxes => watched.boxes.extend(words),
            Tag::Touched if watched.ranges.len() > RANGES => {}
            Tag::Touched => watched.ranges.extend(words.as_chunks().0),
            _ => return,
        }
        if tag == Tag::Boxes || first & MORE != 0 {
            return;
        }
        let Some(mut watched) = self.watched.remove(&number) else {
            return;
        };
        let known = self.kernels.get_mut(&watched.kernel);
        let Some(known) = known.filter(|_| first & INCOMPLETE == 0) else {
            return;
        };
        let round = self.modules.get(&known.module).map_or(0, |of| of.round);
        watched.boxes.as_chunks_mut::<5>().0.sort_unstable();
        let touched = Accessed {
            flags: first & !LAUNCH,
            ranges: watched.expected.relative(&watched.ranges),
            boxes: watched.boxes,
        };
        known.add(&watched.expected, round, touched);
    }

    /// Returns the modules whose kernels need not be watched from now on. The program has waited for what it launched.
    pub fn rest(&mut self, room: usize) -> Vec<u64> {
        let kernels = &self.kernels;
        let mut all = Vec::new();
        for (&module, of) in &mut self.modules {
            let is_known = |kernel: &Option<(Kernel, u64)>| {
                let known =
                    kernel.and_then(|(kernel, others)| kernels.get(&kernel)?.of(others, of.round));
                known.is_some()
            };
            let is_resting = of.rests.is_some() || of.recent.is_empty();
            if !is_resting && all.len() < room && of.recent.iter().all(is_known) {
                of.rests = Some((of.since.elapsed() * RESTS).max(SHORTEST));
                of.since = Instant::now();
                all.push(module);
            }
            of.recent.clear();
        }
        all
    }

    /// Forgets all kernels: their handles may be used again.
    pub fn forget(&mut self) {
        self.kernels.clear();
        self.watched.clear();
    }
}
