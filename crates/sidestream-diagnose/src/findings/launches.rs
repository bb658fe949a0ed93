//! Findings about launches: where they are made, and how to make fewer of them there.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::view::View;
use super::{Code, Ground, time};
use crate::idle::{Cause, Region};
use crate::measure::is_of_framework;
use crate::model::{ApiKind, Memory, Name};
use crate::sections::{Forms, Section, optimizer};
use crate::sort::order_by;

/// With fewer operations a graph gains nothing.
const LEAST_FOR_A_GRAPH: u64 = 10;
/// The limit for a trace without steps, in which nothing shows that the operations recur.
const LEAST_WITHOUT_STEPS: u64 = 50;
/// A range with at least this part of the idle time of launches is named.
const NAMED: f64 = 0.2;

/// The origin of launches, as far as advice depends on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The capture of a graph, or compilation.
    SetUp,
    /// The launch of a graph.
    Graph,
    /// Compiled code.
    Compiled,
    /// Anything else.
    Eager,
}

/// A range that launches work, with the idle time before its launches and their number.
struct Launching {
    region: Region,
    idle_ns: u64,
    count: u64,
}

impl View<'_> {
    pub fn launch_bound(&self) -> Ground {
        let idle = self.idle_ns(Cause::LaunchBound);
        let per_mille = self.grounds.launches.launch_bound_per_mille;
        let mut launches = 0;
        for (at, work) in self.grounds.trace.work.iter().enumerate() {
            let has_call = self.grounds.links.call_of(at).is_some();
            launches += u64::from(has_call && self.is_mine(work) && self.in_steps(work));
        }
        let launching = self.launching();
        let (place, is_few) = (self.place(), self.are_few(launches));
        let whole = self.mostly_in();
        let text = format!(
            "the device waits for the host's launches for {} of {} of {}: {} % of the {} operations in it start \
             with nothing queued behind them{whole}{}; {}",
            time(idle),
            self.whole(),
            time(self.step_ns),
            per_mille / 10,
            self.each(launches),
            self.mostly_launched_in(&launching, &whole),
            match place {
                Place::SetUp => "graphs are captured here, which a program does once: a trace of what follows shows how \
                                 fast they are"
                    .to_owned(),
                Place::Graph => "the launches are of graphs already: fewer and larger ones, or less work of the host between \
                                 them, would be faster"
                    .to_owned(),
                Place::Compiled => "this code is compiled already: fewer breaks in its graph make larger parts of it, with fewer \
                                    launches"
                    .to_owned(),
                Place::Eager => self.eager_advice(is_few, &launching),
            },
        );
        let mut evidence = self.stretches(Cause::LaunchBound);
        if evidence.is_empty() {
            let trace = self.grounds.trace;
            evidence = self.longest_calls(|at| trace.calls[at].api.kind == ApiKind::Launch);
        }
        // A change to one-time work gains nothing in a step.
        let most_ns = match place {
            Place::SetUp => 0,
            _ => idle,
        };
        let mut ground = self.ground(
            Code::LaunchBound,
            idle,
            most_ns,
            self.floor_ns,
            text,
            evidence,
        );
        ground.is_of_its_change = place == Place::Eager && !is_few;
        ground
    }

    /// Returns whether these are too few launches for a graph.
    fn are_few(&self, launches: u64) -> bool {
        match self.grounds.steps.mean_ns() {
            Some(_) => self.each(launches) < LEAST_FOR_A_GRAPH,
            None => launches < LEAST_WITHOUT_STEPS,
        }
    }

    /// Returns the range with most of the idle time, if that is half of it or more and launches are its main cause.
    fn mostly_in(&self) -> String {
        let all = Cause::ALL.map(|cause| self.idle_ns(cause));
        let all = all.into_iter().fold(0, u64::saturating_add);
        if self.idle_ns(Cause::LaunchBound) < all / 2 {
            return String::new();
        }
        let (trace, ranges) = (self.grounds.trace, self.grounds.ranges);
        let named = ranges.nodes.iter().filter(|node| !node.is_step);
        let Some(most) = named.max_by_key(|node| node.own.idle_ns) else {
            return String::new();
        };
        let all = ranges.nodes.iter().map(|node| node.own.idle_ns);
        let all = all.fold(ranges.outside.idle_ns, u64::saturating_add);
        let share = most.own.idle_ns as f64 / all.max(1) as f64;
        match share {
            0.5.. => format!(
                "; {:.0} % of all idle time lies in {}",
                100.0 * share,
                trace.names.text(most.name)
            ),
            _ => String::new(),
        }
    }

    /// Returns the parts of a step that launch work, the one with the longest idle time first.
    fn launching(&self) -> Vec<Launching> {
        let (trace, scene) = (self.grounds.trace, self.grounds.scene);
        let mut idle_ns: BTreeMap<Name, u64> = BTreeMap::new();
        for ((cause, because), (_, ns)) in &self.idle.reasons {
            if let (Cause::LaunchBound, Some(name)) = (*cause, because.inside[2]) {
                *idle_ns.entry(name).or_default() += ns;
            }
        }
        let mut counts = vec![0; scene.regions().len()];
        for (at, call) in trace.calls.iter().enumerate() {
            let in_steps = self.all.within_ns(call.start_ns, call.start_ns + 1) > 0;
            if let Some(region) = scene.region_of(at).filter(|_| in_steps) {
                counts[region] += 1;
            }
        }
        let of = |(at, region): (usize, &Region)| Launching {
            region: *region,
            idle_ns: idle_ns.get(&region.name).copied().unwrap_or(0),
            count: counts[at],
        };
        let mut all: Vec<Launching> = scene.regions().iter().enumerate().map(of).collect();
        order_by(&mut all, |one| (Reverse(one.idle_ns), one.region.name));
        all
    }

    /// Returns the parts with the longest idle time.
    fn most<'a>(&self, launching: &'a [Launching]) -> impl Iterator<Item = &'a Launching> {
        let all_ns = self.idle.in_steps.get(&Cause::LaunchBound).copied();
        let least_ns = NAMED * all_ns.unwrap_or(0) as f64;
        let most = launching.iter().take(2);
        most.filter(move |one| one.idle_ns > 0 && one.idle_ns as f64 >= least_ns)
    }

    /// Returns the ranges with the longest idle time, if advice depends on them or they are the program's own, and the text so
    /// far does not name them.
    fn mostly_launched_in(&self, launching: &[Launching], said: &str) -> String {
        let name = |one: &Launching| match one.region.part {
            Some(Section::Backward) => "the backward pass".to_owned(),
            _ => self.text(one.region.name),
        };
        let is_named = |one: &&Launching| {
            one.region.part.is_some() || !is_of_framework(&self.text(one.region.name))
        };
        let most: Vec<&Launching> = self.most(launching).filter(is_named).collect();
        if most.is_empty() || said.contains(&name(most[0])) {
            return String::new();
        }
        let most = most.into_iter().map(|one| {
            let (idle, count) = (time(self.a_step(one.idle_ns)), self.each(one.count).max(1));
            let s = if count == 1 { "" } else { "es" };
            format!("{} ({idle}, {count} launch{s})", name(one))
        });
        let most: Vec<String> = most.collect();
        format!("; most for those in {}", most.join(" and "))
    }

    /// Returns the origin of most of the launches that the device waits for.
    fn place(&self) -> Place {
        if self.grounds.scene.captures() {
            return Place::SetUp;
        }
        let mut places: BTreeMap<Place, u64> = BTreeMap::new();
        for ((cause, because), (_, ns)) in &self.idle.reasons {
            if *cause != Cause::LaunchBound {
                continue;
            }
            let name = because.inside[2];
            let place = match name.and_then(|name| Section::of(&self.text(name))) {
                Some(Section::SetUp) => Place::SetUp,
                Some(Section::Compiled) => Place::Compiled,
                _ if self.text(because.name).contains("GraphLaunch") => Place::Graph,
                _ => Place::Eager,
            };
            *places.entry(place).or_default() += ns;
        }
        let most = places.into_iter().max_by_key(|(_, ns)| *ns);
        most.map_or(Place::Eager, |(place, _)| place)
    }

    /// Returns advice on making fewer launches in eager code.
    fn eager_advice(&self, is_few: bool, launching: &[Launching]) -> String {
        let most = self.most(launching);
        let mut advice: Vec<String> = most
            .filter_map(|one| remedy(one, &self.text(one.region.name)))
            .collect();
        advice.push(match (is_few, self.waits_of_a_step()) {
            (true, _) => "these are too few for a graph: only more work in each launch helps".to_owned(),
            (false, 0) => "a CUDA graph or `torch.compile` submits many at once".to_owned(),
            (false, 1) => format!(
                "the host waits, or copies pageable memory, once in {}, which stays outside of a CUDA graph: a graph of the rest, \
                 or `torch.compile`, submits many at once",
                self.whole(),
            ),
            (false, waits) => format!(
                "the host waits, or copies pageable memory, {waits} times in {}, which no CUDA graph can contain: graphs of the parts \
                 between them, or `torch.compile`, submit many at once",
                self.whole(),
            ),
        });
        advice.join("; ")
    }

    /// Returns how often the host waits for the device in a step, or in the trace; a pageable copy and its wait count once.
    fn waits_of_a_step(&self) -> u64 {
        let (trace, links) = (self.grounds.trace, self.grounds.links);
        let in_steps = |at: i64| self.all.within_ns(at, at.saturating_add(1)) > 0;
        let syncs = trace.calls.iter();
        let mut calls = trace.calls.iter().rev();
        let last = calls.find(|call| call.api.kind.submits());
        let last_ns = last.map_or(i64::MIN, |call| call.start_ns);
        // The last wait of all has no launches after it.
        let syncs = syncs.filter(|call| {
            call.api.kind.is_sync() && call.start_ns < last_ns && in_steps(call.start_ns)
        });
        let copies = trace.work.iter().enumerate().filter(|(at, work)| {
            let is_pageable = work.host_memory() == Some(Memory::Pageable);
            is_pageable && links.call_of(*at).is_some() && self.in_steps(work)
        });
        self.each(syncs.count().max(copies.count()) as u64)
    }
}

/// Returns advice on making fewer launches in one part of a step.
fn remedy(one: &Launching, name: &str) -> Option<String> {
    let region = one.region;
    match region.part? {
        Section::Optimizer if name.contains("zero_grad") => {
            Some("`zero_grad(set_to_none=True)` launches nothing".to_owned())
        }
        Section::Optimizer if region.is_fused => None,
        Section::Optimizer => Some(match (optimizer(name), region.is_foreach) {
            (Some(Forms::Fused), true) => format!("with `fused=True` {name} takes a few launches"),
            (Some(Forms::Fused), false) => format!(
                "with `fused=True`, or `foreach=True`, {name} takes a few launches instead of some for each parameter"
            ),
            (Some(Forms::Foreach), false) => {
                format!(
                    "with `foreach=True` {name} takes a few launches instead of some for each parameter"
                )
            }
            (Some(Forms::Foreach), true) => return None,
            (None, _) => format!("a fused form of {name}, if there is one, takes a few launches"),
        }),
        Section::Cell => {
            let whole = match name {
                "aten::gru_cell" => "nn.GRU",
                "aten::lstm_cell" => "nn.LSTM",
                _ => "nn.RNN",
            };
            Some(format!(
                "one call of `{whole}` for the whole sequence takes the place of the loop over {name}"
            ))
        }
        _ => None,
    }
}
