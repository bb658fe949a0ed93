//! A table for a terminal: figures, and a name next to them or above them.

use std::fmt::{self, Write};

use super::plain::plain;

/// The minimum room for a name, in characters; a shorter name has no meaning.
pub const LEAST_NAME: usize = 24;

/// Returns a name of at most `room` characters that does not break the table.
pub fn short(name: &str, room: usize) -> String {
    let name = plain(name);
    if name.chars().count() <= room {
        return name;
    }
    let mut text: String = name.chars().take(room.saturating_sub(1)).collect();
    text.push('…');
    text
}

/// Figures on the left, and a name after them. Where there is no room for the name, it has its own line above them.
pub struct Figures<'a> {
    out: &'a mut String,
    widths: Vec<usize>,
    columns: Option<usize>,
}

impl<'a> Figures<'a> {
    /// Begins a table with these heads; the last is that of the names.
    pub fn new(
        out: &'a mut String,
        heads: &[&str],
        rows: &[Vec<String>],
        columns: Option<usize>,
    ) -> Result<Figures<'a>, fmt::Error> {
        let (name, heads) = heads.split_last().unwrap_or((&"", heads));
        let wide = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let most = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            most.max(heads[at].chars().count())
        };
        let widths = (0..heads.len()).map(wide).collect();
        let mut table = Figures {
            out,
            widths,
            columns,
        };
        let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
        if table.is_beside() {
            table.row(&heads, name, "")?
        } else {
            let line = table.figures(&heads);
            writeln!(table.out, "{name}\n{line}")?;
        }
        Ok(table)
    }

    fn figures(&self, cells: &[String]) -> String {
        let cells = cells.iter().zip(&self.widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:>width$}"))
            .collect();
        cells.join(" ")
    }

    /// Returns the maximum number of characters in a name next to the figures.
    fn room(&self) -> usize {
        let used = self.widths.iter().map(|width| width + 1).sum::<usize>() + 1;
        self.columns
            .map_or(usize::MAX, |columns| columns.saturating_sub(used))
    }

    fn is_beside(&self) -> bool {
        self.room() >= LEAST_NAME
    }

    /// Adds a row. The name is cut to fit; `behind`, the text after it, is not.
    pub fn row(&mut self, cells: &[String], name: &str, behind: &str) -> fmt::Result {
        let figures = self.figures(cells);
        let taken = behind.chars().count();
        if self.is_beside() {
            let name = short(name, self.room().saturating_sub(taken).max(1));
            writeln!(self.out, "{figures}  {name}{behind}")
        } else {
            let room = self.columns.unwrap_or(usize::MAX).saturating_sub(taken);
            let name = short(name, room.max(1));
            writeln!(self.out, "{name}{behind}\n{figures}")
        }
    }
}
