//! The only way by which text of a trace gets into a page.

use std::fmt::{self, Write};

use crate::show::plain::is_unseen;

/// Returns text of a trace, cut to this many characters, for any place of a page: between tags, in a quoted attribute, in SVG.
///
/// A trace may come from anyone. Characters with a meaning in HTML become entities. Characters that are invisible or that
/// reorder text (controls, direction marks, zero-width spaces) are shown by their number, so that a name cannot pass for
/// another one.
pub fn esc(text: &str, most_letters: usize) -> Escaped<'_> {
    Escaped { text, most_letters }
}

/// The entity that [`esc`] writes for a backtick.
pub const BACKTICK: &str = "&#96;";

/// The result of [`esc`].
pub struct Escaped<'t> {
    text: &'t str,
    most_letters: usize,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut letters = self.text.chars();
        for letter in letters.by_ref().take(self.most_letters) {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '`' => f.write_str(BACKTICK)?,
                '\t' | '\n' | '\r' => f.write_char(' ')?,
                letter if is_unseen(letter) => write!(f, "\\u{{{:x}}}", u32::from(letter))?,
                letter => f.write_char(letter)?,
            }
        }
        match letters.next() {
            Some(_) => f.write_char('…'),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(esc(text, 40).to_string(), expected);
    }

    #[test]
    fn what_means_something_to_a_browser_becomes_an_entity() {
        check(
            "</script><b a=\"1\" c='2'>&`",
            "&lt;/script&gt;&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;&#96;",
        );
        check("void gemm<float>(int)", "void gemm&lt;float&gt;(int)");
    }

    #[test]
    fn invisible_characters_are_shown_by_their_number() {
        check("a\u{202e}b\u{2066}c", "a\\u{202e}b\\u{2066}c");
        check("a\0b\x1b[1mc\u{9b}", "a\\u{0}b\\u{1b}[1mc\\u{9b}");
        check(
            "a\u{200b}b\u{feff}\u{e0041}",
            "a\\u{200b}b\\u{feff}\\u{e0041}",
        );
        check("two\nlines", "two lines");
        check("größe 大きさ", "größe 大きさ");
    }

    #[test]
    fn text_is_cut_between_letters_and_not_inside_an_entity() {
        assert_eq!(esc("<<<<", 2).to_string(), "&lt;&lt;…");
        assert_eq!(esc("äöü", 3).to_string(), "äöü");
        assert_eq!(esc("", 0).to_string(), "");
    }
}
