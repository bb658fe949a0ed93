//! The median step as lanes: measured, and after each change, on one time scale.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::{self, Write};

use super::escape::esc;
use super::parts::{changes, factor, swatch, than_without_profiler};
use crate::findings::time;
use crate::model::{Name, Names};
use crate::replay::{Change, Prediction, Replay};
use crate::report::Report;
use crate::sort::order_by;
use crate::timeline::{Drawn, Lane, Shade, Timeline};

/// The maximum number of spans on a page, regardless of the trace. Each takes about a hundred bytes.
const MOST_SPANS: usize = 10_000;
/// The maximum number of bars; if there are more steps, several share a bar.
const MOST_BARS: usize = 400;
/// The maximum number of changes with a separate picture.
const MOST_PICTURES: usize = 16;
/// The limits of all steps that can be picked together, in spans and in bytes; and the smallest part of a step that is drawn
/// separately.
const MOST_ZOOM_SPANS: usize = 10_000;
const ZOOM_BYTES: usize = 250_000;
const MOST_ZOOM_PARTS: u64 = 400;
/// The maximum size of the names that a reader can point at, in bytes, and the maximum number of characters in one.
const NAMES_BYTES: usize = 200_000;
const NAME_LETTERS: usize = 200;
/// The maximum number of names that are written into spans of a page, and the minimum width of such a span, as a part of the
/// whole.
const MOST_LABELS: usize = 600;
const LABEL_PART: f64 = 0.045;

/// Writes the times of all steps in order, at the top of the page. With more steps than bars, a bar shows the longest of
/// several neighbours.
pub fn strip(out: &mut String, report: &Report) -> fmt::Result {
    let periods = report.steps.periods_ns();
    let Some(mean_ns) = report.steps.mean_ns().filter(|_| periods.len() > 1) else {
        return Ok(());
    };
    let together = periods.len().div_ceil(MOST_BARS);
    let most_ns = periods.iter().copied().max().unwrap_or(0).max(1) as f64;
    let width = 100.0 / periods.len().div_ceil(together) as f64;
    write!(
        out,
        "<section id=\"all-steps\"><h2>All steps</h2><p class=\"sub\">A bar for {} from the last GPU operation of the \
         step before to its own; the longest took {}, and the line is the mean.</p><svg class=\"strip\" role=\"img\" aria-label=\"the times of all steps\" \
         height=\"48\">",
        match together {
            1 => "each step but the first,".to_owned(),
            n => format!("the longest of {n} steps each,"),
        },
        time(most_ns as u64)
    )?;
    for (at, bar) in periods.chunks(together).enumerate() {
        let longest_ns = bar.iter().copied().max().unwrap_or(0);
        let height = 48.0 * longest_ns as f64 / most_ns;
        let first = at * together + 1;
        let steps = match bar.len() {
            1 => format!("step {first}"),
            n => format!("the longest of the steps {first} to {}", first + n - 1),
        };
        let has_longest = |zoom: &&Timeline| {
            let step = zoom.step.unwrap_or(0);
            (first..first + bar.len()).contains(&step) && periods[step - 1] == longest_ns
        };
        let zoom = report.zooms.iter().find(has_longest);
        let pick = zoom.and_then(|zoom| zoom.step);
        let pick = pick.map_or(String::new(), |step| format!("data-step=\"{step}\" "));
        write!(
            out,
            "<rect {pick}class=\"s3\" x=\"{:.3}%\" y=\"{:.2}\" width=\"{:.3}%\" height=\"{height:.2}\"><title>{steps}: \
             {}</title></rect>",
            width * at as f64,
            48.0 - height,
            0.9 * width,
            time(longest_ns)
        )?;
    }
    let mean = 48.0 - 48.0 * mean_ns as f64 / most_ns;
    write!(
        out,
        "<rect class=\"track\" y=\"{mean:.2}\" width=\"100%\" height=\"1\"><title>mean: {}</title></rect></svg>",
        time(mean_ns)
    )?;
    if !report.zooms.is_empty() {
        // The script draws the picked step into this figure.
        write!(
            out,
            "<p class=\"sub script\">{}. Pick a place in the picture to zoom in.</p><figure id=\"zoom\" hidden><figcaption><b></b> <span></span> \
             <button type=\"button\" class=\"whole\">whole step</button></figcaption><div></div></figure>",
            if report.zooms.len() == periods.len() {
                "Pick a bar to see its step"
            } else {
                "Pick a dark bar to see its step"
            }
        )?;
    }
    write!(out, "</section>")
}

/// Writes the section of the timelines.
pub fn section(out: &mut String, report: &Report) -> fmt::Result {
    let Some(measured) = &report.timeline else {
        return Ok(());
    };
    let pictures = pictures(report, measured);
    let heading = match measured.step {
        Some(_) => "The median step",
        None => "The whole trace",
    };
    write!(out, "<section id=\"steps\"><h2>{heading}</h2>")?;
    let sub = match (measured.step, pictures.is_empty()) {
        (None, _) => "No steps were found, so all of the trace is shown.",
        (_, true) => "From the last GPU operation of the step before to its own.",
        (_, false) => {
            "Above the step of the trace; below, on the same scale, the step as the replay predicts it. \
             Pick a change."
        }
    };
    write!(out, "<p class=\"sub\">{sub}</p><div class=\"steps\">")?;
    let timelines = pictures.iter().map(|(_, prediction)| &prediction.timeline);
    let timelines: Vec<&Timeline> = std::iter::once(measured).chain(timelines).collect();
    let mut drawing = Drawing::new(out, &report.names, &timelines);
    drawing.legend(&timelines)?;
    drawing.measured(measured)?;
    drawing.picks(&pictures, report)?;
    drawing.zooms(&report.zooms)?;
    drawing.names()?;
    write!(out, "</div></section>")
}

/// Returns the predictions that have a picture, with their index in the report. Changes without effect are left out, since they
/// look like the measured step.
fn pictures<'r>(report: &'r Report, measured: &Timeline) -> Vec<(usize, &'r Prediction)> {
    let Ok(replay) = &report.replay else {
        return Vec::new();
    };
    if measured.step.is_none() {
        return Vec::new();
    }
    let all = replay.predictions.iter().enumerate();
    let changed = |p: &Prediction| (factor(replay, p) - 1.0).abs() >= 0.01;
    all.filter(|(_, p)| changed(p) || replay.predictions.len() == 1)
        .filter(|(_, p)| !p.timeline.lanes.is_empty())
        .take(MOST_PICTURES)
        .collect()
}

/// Returns the best prediction; of those that are equal within a hundredth, the one with the fewest changes. One that depends
/// on more than the trace shows is chosen only if it alone was asked for.
pub fn best(replay: &Replay) -> Option<usize> {
    let is_alone = replay.predictions.len() == 1;
    let known = |p: &Prediction| is_alone || !p.changes.iter().any(Change::is_conditional);
    let known = replay
        .predictions
        .iter()
        .enumerate()
        .filter(|(_, p)| known(p));
    let least_ns = known.clone().map(|(_, p)| p.likely_ns).min()?;
    let near = |p: &Prediction| p.likely_ns.abs_diff(least_ns) <= replay.measured_ns / 100;
    let near = known.filter(|(_, p)| near(p));
    near.min_by_key(|(_, p)| p.changes.len()).map(|(at, _)| at)
}

/// Draws the timelines of a page.
struct Drawing<'p> {
    out: &'p mut String,
    names: &'p Names,
    /// The time from the left end to the right.
    scale_ns: u64,
    /// Spans shorter than this are drawn together.
    finest_ns: u64,
    /// The maximum number of spans of a lane that are drawn.
    most_of_lane: usize,
    labels_left: usize,
    /// The names to which spans refer, and the index of each in the list.
    listed: String,
    places: HashMap<Name, usize>,
}

impl<'p> Drawing<'p> {
    fn new(out: &'p mut String, names: &'p Names, timelines: &[&Timeline]) -> Drawing<'p> {
        let scale_ns = timelines.iter().map(|t| t.length_ns).max().unwrap_or(0);
        let scale_ns = scale_ns.max(1);
        let lanes: Vec<&Lane> = timelines.iter().flat_map(|t| &t.lanes).collect();
        // The finest grain at which the spans of all lanes fit.
        let mut finest_ns = scale_ns / 2_000;
        let count = |finest_ns| -> usize {
            let counts = lanes.iter().map(|lane| lane.coarser(finest_ns).len());
            counts.sum()
        };
        while count(finest_ns) > MOST_SPANS && finest_ns < scale_ns / 50 {
            finest_ns = finest_ns.saturating_mul(2).max(1);
        }
        let most_of_lane = if count(finest_ns) > MOST_SPANS {
            // Thousands of overlapping spans cannot all be seen anyway.
            MOST_SPANS / lanes.len().max(1)
        } else {
            MOST_SPANS
        };
        let mut listed = String::new();
        for shade in Shade::ALL {
            let _ = write!(listed, "<li>{}</li>", shade.as_str());
        }
        Drawing {
            out,
            names,
            scale_ns,
            finest_ns,
            most_of_lane,
            labels_left: MOST_LABELS,
            listed,
            places: HashMap::new(),
        }
    }

    fn legend(&mut self, timelines: &[&Timeline]) -> fmt::Result {
        let spans = || {
            timelines
                .iter()
                .flat_map(|t| &t.lanes)
                .flat_map(|l| &l.spans)
        };
        write!(self.out, "<ul class=\"legend\">")?;
        for (at, shade) in Shade::ALL.iter().enumerate() {
            if spans().any(|span| span.shade == *shade) {
                let word = shade.as_str();
                write!(self.out, "<li>{}{word}</li>", swatch('s', at))?;
            }
        }
        write!(self.out, "</ul>")
    }

    fn measured(&mut self, timeline: &Timeline) -> fmt::Result {
        write!(
            self.out,
            "<figure id=\"measured\"><figcaption><b>In the trace</b> {} <span>",
            time(timeline.length_ns)
        )?;
        if let Some(step) = timeline.step {
            write!(self.out, "step {step}")?;
        }
        write!(self.out, "</span></figcaption>")?;
        self.lanes(timeline, 0)?;
        write!(self.out, "</figure>")
    }

    /// Writes the choices, and a picture for each. It works without the script: the style sheet shows the picture of the
    /// selected button.
    fn picks(&mut self, pictures: &[(usize, &Prediction)], report: &Report) -> fmt::Result {
        let Ok(replay) = &report.replay else {
            return Ok(());
        };
        if pictures.is_empty() {
            return Ok(());
        }
        let best = best(replay).filter(|best| pictures.iter().any(|(at, _)| at == best));
        let on = best.unwrap_or(pictures[0].0);
        write!(self.out, "<style>")?;
        for (at, _) in pictures {
            write!(
                self.out,
                "#w{at}:checked~.after>#after{at}{{display:block}}\
                 #w{at}:checked~.picks>label[for=w{at}]{{background:var(--ink);color:var(--bg);\
                 border-color:var(--ink)}}\
                 #w{at}:focus-visible~.picks>label[for=w{at}]{{outline:2px solid var(--accent);\
                 outline-offset:2px}}"
            )?;
        }
        write!(self.out, "</style>")?;
        for (at, prediction) in pictures {
            let checked = if *at == on { " checked" } else { "" };
            write!(
                self.out,
                "<input class=\"r\" type=\"radio\" name=\"what-if\" id=\"w{at}\" \
                 aria-label=\"{}\"{checked}>",
                changes(prediction)
            )?;
        }
        write!(self.out, "<div class=\"picks\">")?;
        for (at, prediction) in pictures {
            write!(
                self.out,
                "<label for=\"w{at}\">{}<b>{}</b></label>",
                changes(prediction),
                time(prediction.likely_ns)
            )?;
        }
        write!(self.out, "</div><div class=\"after\">")?;
        for (at, prediction) in pictures {
            let (likely, low, high) = (
                time(prediction.likely_ns),
                time(prediction.low_ns),
                time(prediction.high_ns),
            );
            write!(
                self.out,
                "<figure id=\"after{at}\"><figcaption><b>With {}</b> {likely} \
                 <span>({low} to {high})</span> ",
                changes(prediction)
            )?;
            let drawn_ns = prediction.timeline.length_ns;
            if drawn_ns.abs_diff(prediction.likely_ns) > prediction.likely_ns / 20 {
                // The step that is drawn is the median one.
                let drawn = time(drawn_ns);
                write!(
                    self.out,
                    "<span>in the mean of the steps; this one {drawn}</span> "
                )?;
            }
            let saved_ns = replay.unprofiled_ns.saturating_sub(prediction.likely_ns);
            if saved_ns > 0 {
                let ratio = 1.0 / factor(replay, prediction).max(1e-9);
                let saved = time(saved_ns);
                write!(
                    self.out,
                    "<span class=\"less\">{saved} less, {ratio:.2}× as fast{}</span>",
                    than_without_profiler(replay)
                )?;
            }
            write!(self.out, "</figcaption>")?;
            self.lanes(&prediction.timeline, replay.measured_ns)?;
            write!(self.out, "</figure>")?;
        }
        write!(self.out, "</div>")
    }

    /// Writes the lanes of a timeline; the time by which it ends before `until_ns` is marked as saved.
    fn lanes(&mut self, timeline: &Timeline, until_ns: u64) -> fmt::Result {
        let tick_ns = tick_ns(self.scale_ns);
        let tick = 100.0 * tick_ns as f64 / self.scale_ns as f64;
        for lane in &timeline.lanes {
            let kind = if lane.is_host { "host" } else { "gpu" };
            let name = esc(&lane.name, 60);
            write!(
                self.out,
                "<div class=\"lane {kind}\"><div class=\"name\" title=\"{name}\">{name}</div>\
                 <div class=\"plot\" style=\"--tick:{tick:.3}%\">\
                 <svg class=\"bar\" role=\"img\" aria-label=\"{name}\">"
            )?;
            if until_ns > timeline.length_ns {
                let (x, width) = self.part(timeline.length_ns, until_ns - timeline.length_ns);
                write!(
                    self.out,
                    "<rect class=\"saved\" x=\"{x:.3}%\" width=\"{width:.3}%\" height=\"100%\"/>"
                )?;
            }
            let mut spans = lane.coarser(self.finest_ns);
            if spans.len() > self.most_of_lane {
                order_by(&mut spans, |span| {
                    (Reverse(span.duration_ns), span.start_ns)
                });
                spans.truncate(self.most_of_lane);
                order_by(&mut spans, |span| span.start_ns);
            }
            for span in &spans {
                self.span(span)?;
            }
            write!(self.out, "</svg></div></div>")?;
        }
        write!(self.out, "<div class=\"axis\"><div>")?;
        let ticks = (0..).map(|tick: u64| tick.saturating_mul(tick_ns));
        for at_ns in ticks.take_while(|ns| *ns < self.scale_ns / 100 * 93) {
            let x = self.part(at_ns, 0).0;
            let label = if at_ns == 0 {
                "0".to_owned()
            } else {
                tick_time(at_ns, tick_ns)
            };
            write!(self.out, "<i style=\"left:{x:.3}%\">{label}</i>")?;
        }
        write!(self.out, "</div></div>")?;
        if timeline.left_out > 0 {
            let count = timeline.left_out;
            write!(
                self.out,
                "<p class=\"sub\">{count} lanes with less in them are left out.</p>"
            )?;
        }
        Ok(())
    }

    fn span(&mut self, span: &Drawn) -> fmt::Result {
        let (x, width) = self.part(span.start_ns, span.duration_ns);
        let shade = Shade::ALL.iter().position(|shade| *shade == span.shade);
        let shade = shade.unwrap_or(0);
        let place = span.name.and_then(|name| self.place(name));
        let data = format!(
            "data-d=\"{} {} {} {} {shade}\"",
            span.start_ns,
            span.duration_ns,
            span.count,
            place.map_or(-1, |place| place as i64)
        );
        let label = span
            .name
            .filter(|_| width >= 100.0 * LABEL_PART && self.labels_left > 0);
        let Some(name) = label else {
            return write!(
                self.out,
                "<rect class=\"s{shade}\" x=\"{x:.3}%\" width=\"{width:.3}%\" height=\"100%\" \
                 {data}/>"
            );
        };
        // A nested `<svg>` clips a name that does not fit.
        self.labels_left -= 1;
        write!(
            self.out,
            "<svg x=\"{x:.3}%\" width=\"{width:.3}%\" height=\"100%\">\
             <rect class=\"s{shade}\" width=\"100%\" height=\"100%\" {data}/>\
             <text class=\"t{shade}\" x=\"5\" y=\"50%\" dy=\".35em\">{}</text></svg>",
            esc(self.names.text(name), 40)
        )
    }

    /// Writes the spans that the script draws when a step is picked: one line for each lane.
    fn zooms(&mut self, zooms: &[Timeline]) -> fmt::Result {
        let mut part = MOST_ZOOM_PARTS;
        let count = |part: u64| -> usize {
            let lanes = zooms.iter().flat_map(|zoom| {
                let finest_ns = zoom.length_ns / part;
                zoom.lanes
                    .iter()
                    .map(move |lane| lane.coarser(finest_ns).len())
            });
            lanes.sum()
        };
        while count(part) > MOST_ZOOM_SPANS && part > 20 {
            part /= 2;
        }
        write!(self.out, "<div id=\"zooms\" hidden>")?;
        let end = self.out.len() + ZOOM_BYTES;
        for zoom in zooms {
            if self.out.len() > end {
                break;
            }
            let step = zoom.step.unwrap_or(0);
            write!(
                self.out,
                "<div data-of=\"{step}\" data-length=\"{}\">",
                zoom.length_ns
            )?;
            for lane in &zoom.lanes {
                let kind = if lane.is_host { "host" } else { "gpu" };
                write!(
                    self.out,
                    "<p class=\"{kind}\" title=\"{}\">",
                    esc(&lane.name, 60)
                )?;
                let spans = lane.coarser(zoom.length_ns / part);
                for (at, span) in spans.iter().take(MOST_ZOOM_SPANS).enumerate() {
                    let shade = Shade::ALL.iter().position(|shade| *shade == span.shade);
                    let place = span.name.and_then(|name| self.place(name));
                    write!(
                        self.out,
                        "{}{} {} {} {} {}",
                        if at > 0 { ";" } else { "" },
                        span.start_ns,
                        span.duration_ns,
                        span.count,
                        place.map_or(-1, |place| place as i64),
                        shade.unwrap_or(0)
                    )?;
                    if self.out.len() > end {
                        break;
                    }
                }
                write!(self.out, "</p>")?;
            }
            write!(self.out, "</div>")?;
        }
        write!(self.out, "</div>")
    }

    /// Returns the index of a name in the list; `None` for one that did not fit.
    fn place(&mut self, name: Name) -> Option<usize> {
        if let Some(place) = self.places.get(&name) {
            return Some(*place);
        }
        if self.listed.len() >= NAMES_BYTES {
            return None;
        }
        let text = self.names.text(name);
        let _ = write!(self.listed, "<li>{}</li>", esc(text, NAME_LETTERS));
        let place = Shade::ALL.len() + self.places.len();
        self.places.insert(name, place);
        Some(place)
    }

    /// Returns a start and a length as percentages of the width.
    fn part(&self, start_ns: u64, duration_ns: u64) -> (f64, f64) {
        let part = |ns: u64| 100.0 * ns as f64 / self.scale_ns as f64;
        (part(start_ns), part(duration_ns))
    }

    /// Writes the names for the script as a hidden list: escaped, like all other text.
    fn names(&mut self) -> fmt::Result {
        write!(self.out, "<ol id=\"names\" hidden>{}</ol>", self.listed)
    }
}

/// Returns the time between two marks of the axis: 1, 2 or 5 times a power of ten, for about six marks.
pub fn tick_ns(scale_ns: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        for part in [1, 2, 5] {
            let tick = power.saturating_mul(part);
            if tick >= scale_ns / 7 {
                return tick.max(1);
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Returns the time at a mark, with as many decimals as the distance of marks has.
pub fn tick_time(at_ns: u64, tick_ns: u64) -> String {
    let (unit, word) = match tick_ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{} {word}", at_ns / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_has_round_marks() {
        assert_eq!(tick_ns(67_920_000), 10_000_000);
        assert_eq!(tick_ns(359_000), 100_000);
        assert_eq!(tick_ns(1), 1);
        assert_eq!(tick_time(300_000, 100_000), "300 µs");
        assert!(tick_ns(u64::MAX) > u64::MAX / 100);
    }
}
