//! The width of the output.

use sidestream::trace::{Timeline, Trace};

/// The option for the length of lines.
#[derive(clap::Args, Clone, Copy)]
pub struct Width {
    /// Maximum number of columns in a line, from 20 to 1000; by default the width of the terminal
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(20..=1000))]
    width: Option<u16>,
}

/// The maximum length of lines, and the maximum width of a picture.
#[derive(Clone, Copy)]
pub struct Lines {
    /// `None` if the width is not known.
    pub columns: Option<usize>,
    picture: usize,
}

/// A wider picture is hard to take in.
const USUAL_PICTURE: usize = 100;

impl Width {
    /// Returns the width that was asked for.
    pub fn asked(self) -> Option<usize> {
        self.width.map(usize::from)
    }

    /// Returns the width that was asked for, otherwise the terminal's.
    pub fn lines(self) -> Lines {
        Lines {
            columns: self.asked().or_else(terminal),
            picture: self.asked().unwrap_or(USUAL_PICTURE),
        }
    }
}

impl Lines {
    /// For output whose destination is not known.
    pub const ANY: Lines = Lines {
        columns: None,
        picture: USUAL_PICTURE,
    };

    /// Returns a picture of a run whose lines fit.
    pub fn timeline(self, trace: &Trace) -> Timeline<'_> {
        let timeline = Timeline::new(trace, self.picture);
        match self.columns {
            Some(columns) => timeline.within(columns),
            None => timeline,
        }
    }

    /// Returns the text with its long lines broken between words; unchanged where the width is not known.
    pub fn wrapped(self, text: &str) -> String {
        match self.columns {
            Some(columns) => text
                .split_inclusive('\n')
                .map(|line| broken(line, columns))
                .collect(),
            None => text.to_owned(),
        }
    }
}

/// Returns the columns of the terminal to which the output goes.
pub fn terminal() -> Option<usize> {
    // Some terminals report their columns but no rows. A terminal that reports 0 columns has no reader.
    crate::system::terminal_columns().filter(|columns| *columns > 0)
}

/// Returns one line broken to this width; the continuation lines are indented by two more columns.
fn broken(line: &str, columns: usize) -> String {
    if line.trim_end().chars().count() <= columns {
        return line.to_owned();
    }
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (line, ""),
    };
    let margin = text.chars().take_while(|c| *c == ' ').count();
    let mut out = " ".repeat(margin);
    let mut used = margin;
    for (at, word) in words(text.trim_start()).into_iter().enumerate() {
        let length = word.chars().count();
        if at > 0 && used + 1 + length > columns {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(margin + 2));
            used = margin + 2;
        } else if at > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(&word);
        used += length;
    }
    out + end
}

/// Returns the words of a line. A number and its unit are one word.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut() {
            Some(number) if ends_in_digit(number) && is_unit(word) => {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn ends_in_digit(word: &str) -> bool {
    word.ends_with(|c: char| c.is_ascii_digit())
}

fn is_unit(word: &str) -> bool {
    let word = word.trim_end_matches([',', ';', ':', '.']);
    ["ns", "µs", "ms", "s", "%", "KiB", "MiB", "GiB"].contains(&word)
}

#[cfg(test)]
mod tests {
    use super::broken;

    #[test]
    fn long_lines_break_between_words_and_keep_their_margin() {
        let text = "  one two three four five\n";
        assert_eq!(broken(text, 25), text);
        assert_eq!(broken(text, 14), "  one two\n    three four\n    five\n");
        assert_eq!(
            broken("upload 78.4 µs, kernel 162.3 µs", 14),
            "upload\n  78.4 µs,\n  kernel\n  162.3 µs"
        );
        assert_eq!(
            broken("a_word_that_is_too_long b", 10),
            "a_word_that_is_too_long\n  b"
        );
    }
}
