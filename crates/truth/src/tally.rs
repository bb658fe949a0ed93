//! Summarizes the results of many jobs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::fault::Cause;
use crate::judge::Judged;

/// The number of seeds that are kept for each kind of mistake.
const SEEDS: usize = 5;

/// Counts over jobs.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    jobs: usize,
    /// The right cause and the reported one, with the number of jobs with one fault, and with more.
    said: BTreeMap<(Row, &'static str), [usize; 2]>,
    /// Number of right results and of all results, for jobs with one fault and with more.
    right: [(usize, usize); 2],
    /// Number of ranges that contain the truth, and their widths.
    holding: usize,
    widths: Vec<f64>,
    /// Number of host work causes that are named, and of those that are found.
    named: (usize, usize),
    sound: usize,
    false_nothing: usize,
    false_promises: usize,
    mistakes: BTreeMap<String, (usize, Vec<u64>)>,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Of(Cause),
    /// Something was planted, and it costs less than 5 %.
    Little,
    /// Nothing was planted.
    Nothing,
}

/// The figures of a tally, each from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Share of the jobs with something to gain whose first cause is right.
    pub first: f64,
    /// Share of the jobs with one fault whose first cause is right.
    pub first_of_single: f64,
    /// Share of the right causes whose range contains the true gain.
    pub holding: f64,
    /// The median width of these ranges, as a part of the step.
    pub width: f64,
    /// Share of all jobs with the verdict NOTHING_TO_GAIN although 5 % could be gained.
    pub false_nothing: f64,
    /// Share of the jobs with nothing planted for which 5 % was promised.
    pub false_promises: f64,
}

impl Tally {
    /// Counts a job.
    pub fn add(&mut self, judged: &Judged) {
        self.jobs += 1;
        let several = usize::from(judged.planted > 1);
        let row = match judged.right {
            Some(cause) => Row::Of(cause),
            None if judged.planted == 0 => Row::Nothing,
            None => Row::Little,
        };
        let said = judged.said.code.unwrap_or("nothing");
        self.said.entry((row, said)).or_default()[several] += 1;
        let mut mistake = |what: String| {
            let (count, seeds) = self.mistakes.entry(what).or_default();
            *count += 1;
            seeds.push(judged.seed);
            // The first seeds do not depend on the order of counting.
            seeds.sort_unstable();
            seeds.truncate(SEEDS);
        };
        if let (Some(is_right), Some(cause)) = (judged.is_right, judged.right) {
            let (right, all) = &mut self.right[several];
            *right += usize::from(is_right);
            *all += 1;
            if !is_right {
                mistake(format!("{}: {said}", cause.as_str()));
            }
        }
        if let (Some((holds, width)), Some(cause)) = (judged.range, judged.right) {
            self.holding += usize::from(holds);
            self.widths.push(width);
            if !holds {
                mistake(format!("{}: right, but the range is not", cause.as_str()));
            }
        }
        if let Some(is_named) = judged.is_named {
            self.named.0 += usize::from(is_named);
            self.named.1 += 1;
        }
        if judged.planted == 0 {
            self.sound += 1;
        }
        if judged.is_falsely_nothing {
            self.false_nothing += 1;
        }
        if judged.is_falsely_promised {
            self.false_promises += 1;
            mistake(format!("nothing planted: {said} promised"));
        }
    }

    /// Returns the figures.
    pub fn figures(&self) -> Figures {
        let share = |part: usize, all: usize| part as f64 / all.max(1) as f64;
        let [single, several] = self.right;
        let mut widths = self.widths.clone();
        widths.sort_unstable_by(f64::total_cmp);
        Figures {
            first: share(single.0 + several.0, single.1 + several.1),
            first_of_single: share(single.0, single.1),
            holding: share(self.holding, self.widths.len()),
            width: widths.get(widths.len() / 2).copied().unwrap_or(0.0),
            false_nothing: share(self.false_nothing, self.jobs),
            false_promises: share(self.false_promises, self.sound),
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.figures();
        let percent = |x: f64| format!("{:.1} %", 100.0 * x);
        let [single, several] = self.right;
        let share = |(right, all): (usize, usize)| {
            let part = right as f64 / all.max(1) as f64;
            format!("{} ({right} of {all})", percent(part))
        };
        writeln!(f, "{} jobs", self.jobs)?;
        let both = (single.0 + several.0, single.1 + several.1);
        writeln!(f, "right cause first      {}", share(both))?;
        writeln!(f, "  with one fault       {}", share(single))?;
        writeln!(f, "  with several         {}", share(several))?;
        let ranges = share((self.holding, self.widths.len()));
        writeln!(f, "range holds the truth  {ranges}")?;
        writeln!(
            f,
            "median width of it     {} of a step",
            percent(figures.width)
        )?;
        let nothing = share((self.false_nothing, self.jobs));
        writeln!(f, "falsely NOTHING        {nothing}")?;
        let promises = share((self.false_promises, self.sound));
        writeln!(
            f,
            "falsely promised       {promises} of those with nothing planted"
        )?;
        writeln!(f, "host work named        {}", share(self.named))?;
        writeln!(f, "\nplanted x said")?;
        let mut rows: Vec<Row> = self.said.keys().map(|(row, _)| *row).collect();
        rows.dedup();
        for row in rows {
            let name = match row {
                Row::Of(cause) => cause.as_str(),
                Row::Little => "(worth below 5 %)",
                Row::Nothing => "(nothing)",
            };
            let counts = self.said.iter().filter(|((of, _), _)| *of == row);
            let counts = counts.map(|((_, code), counts)| (counts[0] + counts[1], *code));
            let mut counts: Vec<(usize, &str)> = counts.collect();
            counts.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
            let all: usize = counts.iter().map(|(count, _)| count).sum();
            let mut line = String::new();
            for (count, code) in counts {
                let _ = write!(line, "  {code} {count}");
            }
            writeln!(f, "  {name:<20}{all:>7} {line}")?;
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
