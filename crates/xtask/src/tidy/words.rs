//! Words of our own, which a reader would have to learn: the maximum number of lines of tracked text that may have each
//! of them. STYLE.md, in its section "Words", says what is written instead.

use super::Complaint;
use super::tree::Tree;

/// The phrases, spelled so that this list is not counted itself, each with the maximum number of lines that may have
/// it.
const WORDS: [(&[&str], usize); 5] = [
    (&[concat!("no", "body")], 25),
    (&[concat!("who", "ever")], 0),
    (&[concat!("so ", "many")], 10),
    (&[concat!("is ", "over"), concat!("are ", "over")], 20),
    (
        &[
            concat!("stands ", "behind"),
            concat!("stand ", "behind"),
            concat!("holds ", "up"),
            concat!("hold ", "up"),
            concat!("held ", "up"),
        ],
        0,
    ),
];
/// A comment that begins with this opening says what its subject is like, not what it is.
const OPENING: &str = concat!("The ", "same ");
const MARKS: [&str; 5] = ["///", "//!", "//", "#", "\"\"\""];

/// Complains where a phrase is in more lines than it may be, at the first line above the limit.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let mut out = Vec::new();
    let mut found = WORDS.map(|_| 0);
    let texts = tree
        .texts()
        .filter(|(file, _)| *file != "CHANGELOG.md" && !file.ends_with(".lock"));
    for (file, text) in texts {
        let mut above = None;
        for (index, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for ((phrases, most), count) in WORDS.iter().zip(&mut found) {
                if let Some(phrase) = phrases.iter().find(|phrase| has(&lower, phrase)) {
                    *count += 1;
                    if *count > *most {
                        let what = format!(
                            "`{phrase}`: at most {most} lines may have it; STYLE.md has other words"
                        );
                        out.push(Complaint::new(file, index + 1, what));
                    }
                }
            }
            let comment = MARKS
                .iter()
                .find_map(|mark| line.trim_start().strip_prefix(mark));
            if above.is_none() && comment.is_some_and(|text| text.trim_start().starts_with(OPENING))
            {
                let what = format!("a comment begins `{OPENING}…`; say what this one does");
                out.push(Complaint::new(file, index + 1, what));
            }
            above = comment;
        }
    }
    out
}

/// Whether a line in lower case has this phrase as whole words.
fn has(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
        !is_letter(line[..at].chars().next_back())
            && !is_letter(line[at + phrase.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn the_first_line_above_the_limit_is_named() {
        let text = format!("// {} waits.\nfn f() {{}}\n", concat!("No", "body"));
        let many = text.repeat(26);
        let tree = Tree::of(&[("a.rs", &many), ("CHANGELOG.md", concat!("Who", "ever\n"))]);
        let says = concat!(
            "51: `no",
            "body`: at most 25 lines may have it; STYLE.md has other words"
        );
        assert_eq!(lines(check(&tree)), [says]);
    }

    #[test]
    fn only_whole_words_count_and_only_an_opening_is_one() {
        let text =
            "// A list of [`x`].\n// The same in this line.\nlet oversees = 1;\n# The same here.\n";
        let tree = Tree::of(&[("a.py", text)]);
        assert_eq!(lines(check(&tree)).len(), 1);
        assert!(has("it is over", "is over") && !has("it is oversized", "is over"));
    }
}
