//! Summarizes the results of many jobs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::judge::Judged;

/// The number of seeds that are kept for each kind of mistake.
const SEEDS: usize = 5;

/// Counts over jobs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Jobs with the verdict NOTHING_TO_GAIN although 5 % could be gained, of all.
    pub false_nothing: Share,
    /// Jobs with one fault, and with more, whose first cause is right, of those with something to gain.
    pub right: [Share; 2],
    /// Right causes whose range contains the true gain.
    pub holding: Share,
    /// Jobs for which 5 % was promised, of those with nothing planted.
    pub false_promises: Share,
    /// The widths of the ranges of right causes, as parts of the step.
    widths: Vec<f64>,
    /// Host work causes that are named, of those that are found.
    named: Share,
    /// The right cause and the reported one, with the number of jobs.
    said: BTreeMap<(&'static str, &'static str), usize>,
    mistakes: BTreeMap<String, (usize, Vec<u64>)>,
}

/// A part of some jobs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    part: usize,
    all: usize,
}

impl Share {
    fn count(&mut self, is_part: bool) {
        self.part += usize::from(is_part);
        self.all += 1;
    }

    /// Returns it from 0 to 1.
    pub fn rate(self) -> f64 {
        self.part as f64 / self.all.max(1) as f64
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Share { part, all } = self;
        write!(f, "{:.1} % ({part} of {all})", 100.0 * self.rate())
    }
}

impl Tally {
    /// Counts a job.
    pub fn add(&mut self, judged: &Judged) {
        let several = usize::from(judged.planted > 1);
        let row = match judged.right {
            Some(cause) => cause,
            None if judged.planted == 0 => "(nothing)",
            None => "(worth below 5 %)",
        };
        let said = judged.said.code.unwrap_or("nothing");
        *self.said.entry((row, said)).or_default() += 1;
        let mut mistake = |what: String| {
            let (count, seeds) = self.mistakes.entry(what).or_default();
            *count += 1;
            seeds.push(judged.seed);
            // The first seeds do not depend on the order of counting.
            seeds.sort_unstable();
            seeds.truncate(SEEDS);
        };
        if let (Some(is_right), Some(cause)) = (judged.is_right, judged.right) {
            self.right[several].count(is_right);
            if !is_right {
                mistake(format!("{cause}: {said}"));
            }
        }
        if let (Some((holds, width)), Some(cause)) = (judged.range, judged.right) {
            self.holding.count(holds);
            self.widths.push(width);
            if !holds {
                mistake(format!("{cause}: right, but the range is not"));
            }
        }
        if let Some(is_named) = judged.is_named {
            self.named.count(is_named);
        }
        self.false_nothing.count(judged.is_falsely_nothing);
        if judged.planted == 0 {
            self.false_promises.count(judged.is_falsely_promised);
        }
        if judged.is_falsely_promised {
            mistake(format!("nothing planted: {said} promised"));
        }
    }

    /// Returns the jobs whose first cause is right, of those with something to gain.
    pub fn first(&self) -> Share {
        let [single, several] = self.right;
        Share {
            part: single.part + several.part,
            all: single.all + several.all,
        }
    }

    /// Returns the median width of the ranges of right causes, as a part of the step.
    pub fn width(&self) -> f64 {
        let mut widths = self.widths.clone();
        widths.sort_unstable_by(f64::total_cmp);
        widths.get(widths.len() / 2).copied().unwrap_or(0.0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [single, several] = self.right;
        writeln!(f, "{} jobs", self.false_nothing.all)?;
        writeln!(f, "right cause first      {}", self.first())?;
        writeln!(f, "  with one fault       {single}")?;
        writeln!(f, "  with several         {several}")?;
        writeln!(f, "range holds the truth  {}", self.holding)?;
        let width = 100.0 * self.width();
        writeln!(f, "median width of it     {width:.1} % of a step")?;
        writeln!(f, "falsely NOTHING        {}", self.false_nothing)?;
        let promises = self.false_promises;
        writeln!(
            f,
            "falsely promised       {promises} of those with nothing planted"
        )?;
        writeln!(f, "host work named        {}", self.named)?;
        writeln!(f, "\nplanted x said")?;
        let mut rows: Vec<&str> = self.said.keys().map(|(row, _)| *row).collect();
        rows.dedup();
        for row in rows {
            let counts = self.said.iter().filter(|((of, _), _)| *of == row);
            let mut counts: Vec<(usize, &str)> = counts.map(|((_, code), n)| (*n, *code)).collect();
            counts.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
            let all: usize = counts.iter().map(|(count, _)| count).sum();
            let mut line = String::new();
            for (count, code) in counts {
                let _ = write!(line, "  {code} {count}");
            }
            writeln!(f, "  {row:<20}{all:>7} {line}")?;
        }
        writeln!(f, "\nmistakes, with their first seeds")?;
        let mut mistakes: Vec<_> = self.mistakes.iter().collect();
        mistakes.sort_by(|a, b| b.1.0.cmp(&a.1.0).then(a.0.cmp(b.0)));
        for (what, (count, seeds)) in mistakes {
            let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
            writeln!(f, "{count:>7}  {what:<50}  {}", seeds.join(" "))?;
        }
        Ok(())
    }
}
