//! The median step as one SVG file, for a document, an issue or a message: measured, and as the best change would have it. The
//! page of `--html` has the same picture in its middle, but needs its style sheet and its script for it.

use std::fmt::{self, Write};

use super::html::{best, esc, tick_ns, tick_time};
use super::text::changes;
use crate::findings::time;
use crate::report::Report;
use crate::timeline::{Drawn, Lane, Shade, Timeline};

/// The colours of [`Shade::ALL`] on the page.
const COLOURS: [&str; Shade::ALL.len()] = [
    "#b9c0c8", "#d9566a", "#e58a2c", "#3f74b0", "#a8387f", "#1f8a5b", "#d3ae1e", "#5cc0dd",
    "#7a5cc0", "#dfe3e7",
];

/// The colours on which white letters would be hard to read.
const DARK_LABELS: [Shade; 5] = [
    Shade::Host,
    Shade::Loading,
    Shade::Download,
    Shade::Inner,
    Shade::Range,
];

/// Sizes in pixels.
const WIDTH: usize = 860;
const MARGIN: usize = 16;
const NAMES: usize = 132;
const LANE: usize = 24;
const TITLE: usize = 34;
const AXIS: usize = 22;
/// A span narrower than this has no room for its name.
const LEAST_LABEL: f64 = 60.0;
/// The finest detail: a part of the width.
const FINEST_PART: u64 = 1_400;
/// The maximum number of lanes; further lanes are left out, so that the picture stays small.
const MOST_LANES: usize = 12;

/// Returns the picture as the text of an SVG file; `None` for a trace without device work.
pub fn picture(name: &str, report: &Report) -> Option<String> {
    let measured = report.timeline.as_ref()?;
    let mut groups = vec![(format!("Measured: {}", time(measured.length_ns)), measured)];
    if let Ok(replay) = &report.replay
        && let Some(at) = best(replay)
        && let Some(prediction) = replay.predictions.get(at)
        && prediction.likely_ns < replay.measured_ns
        && !prediction.timeline.lanes.is_empty()
    {
        let range = format!(
            "{} to {}",
            time(prediction.low_ns),
            time(prediction.high_ns)
        );
        let title = format!(
            "Predicted with {}: {} ({range})",
            changes(prediction),
            time(prediction.likely_ns)
        );
        groups.push((title, &prediction.timeline));
    }
    let mut drawing = Drawing {
        out: String::new(),
        report,
        scale_ns: groups
            .iter()
            .map(|(_, timeline)| timeline.length_ns)
            .max()?
            .max(1),
        top: MARGIN,
    };
    let drawn = drawing.all(name, &groups);
    // Writing to a string cannot fail.
    drawn.is_ok().then(|| drawing.framed())
}

struct Drawing<'r> {
    out: String,
    report: &'r Report,
    /// The time from the left end of the lanes to the right.
    scale_ns: u64,
    /// The vertical position at which drawing continues.
    top: usize,
}

impl Drawing<'_> {
    fn all(&mut self, name: &str, groups: &[(String, &Timeline)]) -> fmt::Result {
        let mut devices = self.report.devices.iter().map(|(device, _)| &device.name);
        let heading = match devices.next().filter(|name| !name.is_empty()) {
            Some(device) => format!("{name}, {device}"),
            None => name.to_owned(),
        };
        self.text(MARGIN, 14, "h", &heading)?;
        self.top += 18;
        for (title, timeline) in groups {
            self.text(MARGIN, 20, "b", title)?;
            self.top += TITLE;
            for lane in timeline.lanes.iter().take(MOST_LANES) {
                self.lane(lane)?;
            }
            self.axis()?;
        }
        self.legend(groups)
    }

    /// Draws a line of text with its baseline `below` pixels below `top`.
    fn text(&mut self, x: usize, below: usize, class: &str, text: &str) -> fmt::Result {
        let y = self.top + below;
        write!(
            self.out,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>",
            esc(text, 120)
        )
    }

    fn lane(&mut self, lane: &Lane) -> fmt::Result {
        self.text(MARGIN, 16, "n", &lane.name)?;
        let (left, top, width) = (MARGIN + NAMES, self.top, WIDTH - 2 * MARGIN - NAMES);
        write!(
            self.out,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{}\" fill=\"#f1f3f5\"/>",
            LANE - 3
        )?;
        for span in lane.coarser(self.scale_ns / FINEST_PART) {
            self.span(&span)?;
        }
        self.top += LANE;
        Ok(())
    }

    fn span(&mut self, span: &Drawn) -> fmt::Result {
        let (x, width) = (
            self.x(span.start_ns),
            self.x(span.end_ns()) - self.x(span.start_ns),
        );
        let shade = Shade::ALL.iter().position(|shade| *shade == span.shade);
        let (fill, top) = (COLOURS[shade.unwrap_or(0)], self.top);
        let name = span.name.filter(|_| width >= LEAST_LABEL);
        write!(
            self.out,
            "<svg x=\"{x:.2}\" y=\"{top}\" width=\"{width:.2}\" height=\"{}\">\
             <rect width=\"100%\" height=\"100%\" fill=\"{fill}\"/>",
            LANE - 3
        )?;
        if let Some(name) = name {
            // A nested `<svg>` clips a name that does not fit.
            let text = esc(self.report.names.text(name), 60);
            let class = if DARK_LABELS.contains(&span.shade) {
                "d"
            } else {
                "l"
            };
            write!(
                self.out,
                "<text class=\"{class}\" x=\"5\" y=\"14\">{text}</text>"
            )?;
        }
        write!(self.out, "</svg>")
    }

    fn axis(&mut self) -> fmt::Result {
        let tick = tick_ns(self.scale_ns);
        let ticks = (0..).map(|at: u64| at.saturating_mul(tick));
        for at_ns in ticks.take_while(|ns| *ns < self.scale_ns / 100 * 93) {
            let label = match at_ns {
                0 => "0".to_owned(),
                _ => tick_time(at_ns, tick),
            };
            let (x, y) = (self.x(at_ns), self.top + 12);
            write!(
                self.out,
                "<text class=\"a\" x=\"{x:.2}\" y=\"{y}\">{label}</text>"
            )?;
        }
        self.top += AXIS;
        Ok(())
    }

    fn legend(&mut self, groups: &[(String, &Timeline)]) -> fmt::Result {
        let lanes = || {
            groups
                .iter()
                .flat_map(|(_, timeline)| timeline.lanes.iter().take(MOST_LANES))
        };
        let mut x = MARGIN + NAMES;
        for (shade, colour) in Shade::ALL.iter().zip(COLOURS) {
            if lanes().any(|lane| lane.spans.iter().any(|span| span.shade == *shade)) {
                let y = self.top + 6;
                write!(
                    self.out,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"14\" height=\"10\" fill=\"{colour}\"/>"
                )?;
                self.text(x + 20, 15, "a", shade.as_str())?;
                x += 40 + 7 * shade.as_str().len();
            }
        }
        self.top += 24;
        Ok(())
    }

    fn x(&self, at_ns: u64) -> f64 {
        let width = (WIDTH - 2 * MARGIN - NAMES) as f64;
        (MARGIN + NAMES) as f64 + width * at_ns.min(self.scale_ns) as f64 / self.scale_ns as f64
    }

    /// Returns the drawing on a light background, so that it can be read in a dark document too.
    fn framed(self) -> String {
        let height = self.top + MARGIN;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" role=\"img\" font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif\" \
             font-size=\"12\"><style>.h{{fill:#5a6470}}.b{{fill:#1a1e23;font-weight:600;font-size:13px}}\
             .n{{fill:#5a6470}}.a{{fill:#77818b;font-size:11px}}.l{{fill:#fff;font-size:11px}}.d{{fill:#14171b;font-size:11px}}</style>\
             <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#fff\"/>{}</svg>\n",
            self.out
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_colours_are_those_of_the_page() {
        let page = include_str!("html/page.css");
        for (at, colour) in COLOURS.iter().take(9).enumerate() {
            assert!(page.contains(&format!("--s{at}:{colour}")), "{at}");
        }
    }
}
