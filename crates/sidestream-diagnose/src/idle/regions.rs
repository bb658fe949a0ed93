//! Where a program launches work: the part of the step, or the range, around each call that submits work.

use std::collections::HashMap;

use super::lane::Lane;
use crate::model::{Name, Names};
use crate::sections::{Forms, Section, optimizer};

/// A range in which work is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its name; where it is several operators of a part, the name of the first.
    pub name: Name,
    /// The part of the step to which it belongs.
    pub part: Option<Section>,
    /// Whether it uses operators on many tensors at once: `_foreach_` and `_fused_`.
    pub is_foreach: bool,
    pub is_fused: bool,
}

impl Region {
    /// Returns whether a version of this region with fewer launches exists: a fused or `foreach` form of the optimizer `name`,
    /// or a library's form of a recurrent cell.
    pub fn may_be_fused(&self, name: &str) -> bool {
        match self.part {
            Some(Section::Optimizer) => match optimizer(name) {
                Some(Forms::Fused) => !self.is_fused,
                Some(Forms::Foreach) => !self.is_foreach,
                None => false,
            },
            Some(Section::Cell) => true,
            _ => false,
        }
    }
}

/// The ranges of all launches.
#[derive(Default)]
pub struct Regions {
    pub all: Vec<Region>,
    places: HashMap<(Option<Section>, Name), u16>,
    /// The index of each call's range; most calls have none.
    of_call: Vec<u16>,
    /// Number of kernel and graph launches, how many of them are graph launches or in compiled code, and how many are made
    /// while a graph is captured.
    launches: u64,
    at_once: u64,
    captured: u64,
}

const NONE: u16 = u16::MAX;

impl Regions {
    /// Records where a call is made: the outermost part on which advice depends, otherwise the innermost range of the program's
    /// own, otherwise the backward pass.
    pub fn note(&mut self, call: usize, start: i64, lane: &Lane, parts: &Sections) {
        let open = || lane.open_at(start);
        let is_place = |part: Section| !matches!(part, Section::Backward | Section::Reading);
        let part = |range: &(Name, bool)| parts.of(range.0);
        let outermost = open().rev().find(|range| part(range).is_some_and(is_place));
        let innermost = || open().find(|range| !range.1 && part(range).is_none());
        let backward = || open().find(|range| part(range).is_some());
        let Some(range) = outermost.or_else(innermost).or_else(backward) else {
            return;
        };
        let part = part(&range);
        // All operators of the backward pass count as one place.
        let key = match part {
            Some(Section::Backward) => (part, Names::OTHER),
            _ => (part, range.0),
        };
        let at = match self.places.get(&key) {
            Some(at) => *at,
            None if self.all.len() >= usize::from(NONE) => return,
            None => {
                self.places.insert(key, self.all.len() as u16);
                self.all.push(Region {
                    name: range.0,
                    part,
                    is_foreach: false,
                    is_fused: false,
                });
                self.all.len() as u16 - 1
            }
        };
        let region = &mut self.all[usize::from(at)];
        region.is_foreach |= open().any(|range| parts.foreach[range.0.0 as usize]);
        region.is_fused |= open().any(|range| parts.fused[range.0.0 as usize]);
        if self.of_call.len() <= call {
            self.of_call.resize(call + 1, NONE);
        }
        self.of_call[call] = at;
    }

    /// Counts a launch of a kernel or of a graph.
    pub fn count(&mut self, call: usize, is_graph: bool, is_captured: bool) {
        let part = self.of(call).and_then(|at| self.all[at].part);
        self.launches += 1;
        self.at_once += u64::from(is_graph || part == Some(Section::Compiled));
        self.captured += u64::from(is_captured);
    }

    /// Returns whether many of the launches are made while a graph is captured.
    pub fn are_captured(&self) -> bool {
        self.captured > 0 && 5 * self.captured >= self.launches
    }

    /// Returns whether most launches are already batched.
    pub fn are_at_once(&self) -> bool {
        self.launches > 0 && 2 * self.at_once >= self.launches
    }

    /// Returns the range of a call.
    pub fn of(&self, call: usize) -> Option<usize> {
        let at = self.of_call.get(call).copied().filter(|at| *at != NONE);
        at.map(usize::from)
    }
}

/// The part of each name.
pub struct Sections {
    parts: Vec<Option<Section>>,
    foreach: Vec<bool>,
    fused: Vec<bool>,
}

impl Sections {
    /// Returns the parts of all names of a trace.
    pub fn of_names(names: &Names) -> Sections {
        let all = (0..names.len() as u32).map(|at| names.text(Name(at)));
        Sections {
            parts: all.map(Section::of).collect(),
            foreach: names.that(|name| name.starts_with("aten::_foreach_")),
            fused: names.that(|name| name.starts_with("aten::_fused_")),
        }
    }

    pub fn of(&self, name: Name) -> Option<Section> {
        self.parts.get(name.0 as usize).copied().flatten()
    }
}
