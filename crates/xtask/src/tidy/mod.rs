//! `cargo xtask tidy`: checks the rules of this repository that neither the compiler nor clippy checks.
//!
//! Each check is a function from texts to complaints, so that its tests are texts too. Checks of code work on Rust's
//! tokens ([`rust`]): a rule may be quoted in a comment or a string without breaking it.

pub mod budget;
mod code;
mod count;
mod features;
mod kernels;
mod layers;
mod licences;
mod manifests;
mod names;
mod pages;
mod rule_table;
mod rust;
mod tree;
mod unnamed_tests;
mod words;

use std::fmt;

use anyhow::Result;

use tree::Tree;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Complaint {
    file: String,
    line: usize,
    what: String,
}

impl Complaint {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Complaint {
        Complaint {
            file: file.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// Prints every complaint. Returns whether there was none.
pub fn run() -> Result<bool> {
    let tree = Tree::read(crate::cargo::root())?;
    let mut complaints = all(&tree);
    let (tests, package) = features::read()?;
    complaints.extend(features::check(&tests, &package));
    complaints.extend(licences::check()?);
    complaints.extend(budget::raised(&tree));
    for complaint in &complaints {
        println!("{complaint}");
    }
    match complaints.len() {
        0 => println!(
            "tidy: {} files, nothing to complain about",
            tree.files.len()
        ),
        n => println!("tidy: {n} to fix (the rules and their reasons: STYLE.md)"),
    }
    Ok(complaints.is_empty())
}

fn all(tree: &Tree) -> Vec<Complaint> {
    let mut out = Vec::new();
    for (file, text) in tree.texts() {
        out.extend(names::check(file, text));
        out.extend(pages::machine_paths(file, text));
        if file.rsplit('/').next() == Some("Cargo.toml") {
            out.extend(manifests::check(file, text));
            out.extend(layers::manifest(file, text));
        }
        if file.ends_with(".md") {
            out.extend(pages::links(file, text, tree));
        }
    }
    for (file, source) in &tree.sources {
        match source {
            Ok(source) => {
                out.extend(code::check(file, source));
                out.extend(names::modules(file, &source.modules));
                out.extend(layers::check(file, source));
            }
            Err(complaint) => out.push(complaint.clone()),
        }
    }
    out.extend(budget::check(tree));
    out.extend(kernels::check(tree));
    out.extend(rule_table::check(tree));
    out.extend(unnamed_tests::check(tree));
    out.extend(words::check(tree));
    out.sort();
    out
}

/// For the tests of the checks: complaints about one text, as lines `line: what`.
#[cfg(test)]
fn lines(complaints: Vec<Complaint>) -> Vec<String> {
    let line = |c: Complaint| format!("{}: {}", c.line, c.what);
    complaints.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_is_asked() {
        let tree = Tree::of(&[
            (
                "crates/sidestream/src/op.rs",
                "use crate::order::Order;\nfn f() { todo!() }\n",
            ),
            ("crates/sidestream/src/order/mod.rs", "}"),
            ("crates/sidestream/src/util.rs", ""),
            ("crates/new/Cargo.toml", "[dependencies]\nserde = \"1\"\n"),
            ("README.md", "[gone](gone.md)\n"),
            ("kernels/new.cu", ""),
            ("crates/new/tests/main.rs", ""),
            ("crates/new/tests/other.rs", ""),
            (
                "docs/explanation/order.md",
                "| R1 | stream order | `nobody` | `nothing` |\n",
            ),
        ]);
        let mut files: Vec<_> = all(&tree).into_iter().map(|c| (c.file, c.line)).collect();
        files.dedup();
        let expected = [
            ("README.md", 1),
            ("crates/new/Cargo.toml", 1),
            ("crates/new/Cargo.toml", 2),
            ("crates/new/tests/other.rs", 1),
            ("crates/sidestream/src/op.rs", 1),
            ("crates/sidestream/src/op.rs", 2),
            ("crates/sidestream/src/order/mod.rs", 1),
            ("crates/sidestream/src/util.rs", 1),
            ("docs/explanation/order.md", 1),
            ("kernels/new.cu", 1),
        ];
        assert_eq!(files, expected.map(|(file, line)| (file.to_owned(), line)));
    }

    #[test]
    fn a_complaint_names_the_place() {
        let complaint = Complaint::new("a.rs", 3, "no");
        assert_eq!(complaint.to_string(), "a.rs:3: no");
    }
}
