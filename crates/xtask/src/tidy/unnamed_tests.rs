//! Finds test files that no program runs.
//!
//! A crate whose only test program is `tests/main.rs` runs only the files that it names: cargo looks for no others,
//! and a missing one would not be noticed.

use super::Complaint;
use super::tree::Tree;

/// The end of the path of a crate's only test program.
const PROGRAM: &str = "/tests/main.rs";

/// Every file beside a `tests/main.rs` must be one of its modules, or have a `[[test]]` of its own.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let mut out = Vec::new();
    for (file, source) in tree.sources() {
        let Some(package) = file.strip_suffix(PROGRAM) else {
            continue;
        };
        let manifest = tree.text(&format!("{package}/Cargo.toml")).unwrap_or("");
        let folder = format!("{package}/tests/");
        for (other, _) in tree.texts() {
            let name = other.strip_prefix(&folder);
            let module = name.and_then(|name| name.strip_suffix(".rs"));
            let Some(module) = module.filter(|name| *name != "main" && !name.contains('/')) else {
                continue;
            };
            let is_named = source.modules.iter().any(|(named, _)| named == module);
            if !is_named && !manifest.contains(&format!("path = \"tests/{module}.rs\"")) {
                let what = format!("no program runs it; add `mod {module};` to {file}");
                out.push(Complaint::new(other, 1, what));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_program_names_is_found() {
        let tree = Tree::of(&[
            (
                "crates/a/Cargo.toml",
                "path = \"tests/main.rs\"\npath = \"tests/own.rs\"",
            ),
            ("crates/a/tests/main.rs", "mod named;"),
            ("crates/a/tests/named.rs", ""),
            ("crates/a/tests/own.rs", ""),
            ("crates/a/tests/named/inner.rs", ""),
            ("crates/a/tests/forgotten.rs", ""),
            ("crates/b/tests/single.rs", ""),
        ]);
        let found: Vec<_> = check(&tree).into_iter().map(|c| (c.file, c.what)).collect();
        let what = "no program runs it; add `mod forgotten;` to crates/a/tests/main.rs";
        assert_eq!(
            found,
            [("crates/a/tests/forgotten.rs".to_owned(), what.to_owned())]
        );
    }
}
