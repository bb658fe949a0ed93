//! docs/order.md: every rule names the function that keeps it and the test that tries it.

use std::collections::HashSet;

use super::Complaint;
use super::tree::Tree;

const PAGE: &str = "docs/order.md";

/// Complaints about rows `| R14 | … | `function` | `test` |` that name what does not exist.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let Some(Some(page)) = tree.files.get(PAGE) else {
        return Vec::new();
    };
    let known = names(tree);
    let mut out = Vec::new();
    for (index, line) in page.lines().enumerate().filter(|(_, line)| is_rule(line)) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        for quoted in cells
            .iter()
            .rev()
            .take(2)
            .rev()
            .flat_map(|cell| quoted(cell))
        {
            if !exists(quoted, &known, tree) {
                let what = format!("there is no `{quoted}`");
                out.push(Complaint::new(PAGE, index + 1, what));
            }
        }
    }
    out
}

fn is_rule(line: &str) -> bool {
    let first = line.trim().strip_prefix('|').map(str::trim_start);
    let number = first.and_then(|cell| cell.strip_prefix('R'));
    number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// A quoted file exists under that name or at the end of a longer one; everything else is names
/// joined by `::` or the like, each of which stands somewhere in the sources.
fn exists(quoted: &str, known: &HashSet<&str>, tree: &Tree) -> bool {
    let is_file = quoted.contains('/') || quoted.ends_with(".rs") || quoted.ends_with(".yaml");
    if is_file {
        let ending = format!("/{quoted}");
        return tree.has(quoted) || tree.files.keys().any(|file| file.ends_with(&ending));
    }
    words(quoted).all(|word| known.contains(word))
}

/// Every name in the sources and in the programs that tests run.
fn names(tree: &Tree) -> HashSet<&str> {
    let sources = tree.texts().filter(|(file, _)| {
        [".rs", ".py", ".yaml"]
            .iter()
            .any(|end| file.ends_with(end))
    });
    sources.flat_map(|(_, text)| words(text)).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn complaints(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (PAGE, page),
            (
                "crates/a/src/order.rs",
                "impl Order { fn legacy_waits(&self) {} }",
            ),
            ("crates/a/tests/legacy.rs", "fn legacy_is_between() {}"),
        ]);
        lines(check(&tree))
    }

    #[test]
    fn what_exists_is_right() {
        let page = "| # | rule | function | test |\n|---|---|---|---|\n\
            | R14 | `cudaX` waits | `Order::legacy_waits` | `legacy_is_between`, `tests/legacy.rs` |\n\
            text about `nothing`\n| R2 | no order | | |\n";
        assert_eq!(complaints(page), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        let page = "\n| R14 | waits | `legacy_wait` | `legacy_is_between`, `tests/gone.rs` |";
        assert_eq!(
            complaints(page),
            [
                "2: there is no `legacy_wait`",
                "2: there is no `tests/gone.rs`"
            ]
        );
    }

    #[test]
    fn without_the_page_there_is_nothing_to_say() {
        assert_eq!(check(&Tree::of(&[])), []);
    }
}
