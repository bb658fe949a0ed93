//! Draws a timeline as lines of text: a lane for each host thread and each stream.
//!
//! Frame and letters are those of `sidestream overlap`, which draws each operation of a run as a bar with a name. Here a
//! character represents everything that a lane did in that time, which may be a hundred kernels.

use crate::timeline::{Lane, Shade, Timeline};

/// The number of parts into which a column is divided.
const PARTS: usize = 32;
/// The width of the narrowest useful picture.
const LEAST_COLUMNS: usize = 20;

/// Returns the character of a shade, for a column of which it takes half or more.
fn letter(shade: Shade) -> char {
    match shade {
        Shade::Host => 'H',
        Shade::Waiting => 'W',
        Shade::Loading => 'L',
        Shade::Kernel => 'K',
        Shade::Collective => 'C',
        Shade::Upload => 'U',
        Shade::Download => 'D',
        Shade::Inner => 'M',
        Shade::Peer => 'P',
        Shade::Range => 'R',
    }
}

/// Draws pictures on one scale, each under its title: lines of at most `columns` characters, then a legend.
pub fn pictures(pictures: &[(String, &Timeline)], columns: usize) -> String {
    let lanes = pictures.iter().flat_map(|(_, timeline)| &timeline.lanes);
    let label = lanes.map(|lane| lane.name.chars().count()).max();
    let label = label.unwrap_or(0);
    // Two spaces before the name, one after it, and a bar on either side.
    let columns = columns.saturating_sub(label + 5).max(LEAST_COLUMNS);
    let longest_ns = pictures.iter().map(|(_, t)| t.length_ns).max();
    let longest_ns = longest_ns.unwrap_or(0).max(1);
    let mut out = String::new();
    let mut seen = [false; Shade::ALL.len()];
    let mut is_thin = false;
    for (title, timeline) in pictures {
        out += &format!("{title}\n");
        let share = timeline.length_ns as f64 / longest_ns as f64;
        let width = ((columns as f64 * share).round() as usize).clamp(1, columns);
        for lane in &timeline.lanes {
            let cells = cells(lane, timeline.length_ns, width);
            for (at, shade) in Shade::ALL.iter().enumerate() {
                let thin = cells.contains(&letter(*shade).to_ascii_lowercase());
                seen[at] |= thin || cells.contains(&letter(*shade));
                is_thin |= thin;
            }
            let cells: String = cells.into_iter().collect();
            out += &format!("  {:label$} |{cells}|\n", lane.name);
        }
        if timeline.left_out > 0 {
            out += &format!("  and {} lanes with less in them\n", timeline.left_out);
        }
    }
    let shown = Shade::ALL.iter().zip(seen).filter(|(_, seen)| *seen);
    let mut legend: Vec<String> = shown
        .map(|(shade, _)| format!("{} {}", letter(*shade), shade.as_str()))
        .collect();
    if is_thin {
        legend.push("small: under half of its column".to_owned());
    }
    out += &format!("  {}\n", legend.join(", "));
    out
}

/// Returns the activity of a lane, column by column.
fn cells(lane: &Lane, length_ns: u64, columns: usize) -> Vec<char> {
    // The shade of each part of a column: later spans cover earlier ones.
    let mut parts: Vec<Option<Shade>> = vec![None; columns * PARTS];
    let place = |at_ns: u64| {
        let at = u128::from(at_ns.min(length_ns)) * parts.len() as u128;
        (at / u128::from(length_ns.max(1))) as usize
    };
    let places: Vec<(usize, usize, Shade)> = lane
        .spans
        .iter()
        .map(|span| (place(span.start_ns), place(span.end_ns()), span.shade))
        .collect();
    for (from, to, shade) in places {
        // A span shorter than a part is drawn too.
        let from = from.min(parts.len() - 1);
        parts[from..to.max(from + 1)].fill(Some(shade));
    }
    parts.chunks(PARTS).map(cell).collect()
}

fn cell(parts: &[Option<Shade>]) -> char {
    let count = |shade: &Shade| parts.iter().filter(|part| **part == Some(*shade)).count();
    let most = Shade::ALL.iter().max_by_key(|shade| count(shade));
    let Some(most) = most.filter(|shade| count(shade) > 0) else {
        return '.';
    };
    let filled = parts.iter().flatten().count();
    if 2 * filled >= parts.len() {
        letter(*most)
    } else {
        letter(*most).to_ascii_lowercase()
    }
}
