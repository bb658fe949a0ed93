//! docs/developers/budget.txt: the maximum number of lines of code of each capability, and other limits.
//!
//! A ceiling is lowered by `cargo xtask budget --lower` and raised by hand, with a reason beside it.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};

use super::Complaint;
use super::count;
use super::tree::Tree;

const PAGE: &str = "docs/developers/budget.txt";
const LOWER: &str = "`cargo xtask budget --lower` lowers it";

/// The rows that do not count lines of code.
const PUBLIC: &str = "public items of the runtime";
const LONG: &str = "functions over 100 lines";
const NAMES: &str = "types of which more than three have one name";
const WIDE: &str = "lines of Python over 110 columns";

/// A longer function does several things.
const MOST_LINES: usize = 100;
/// With more types of one name, readers do not know which one is meant.
const MOST_OF_ONE_NAME: usize = 3;
/// A wider line of Python does not fit beside another file.
const MOST_COLUMNS: usize = 110;

/// A row of the table.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    name: String,
    most: usize,
    /// The prefixes of its files' paths, below `crates/`; all files if there is none.
    files: Vec<String>,
    /// The reason for the last raise.
    reason: String,
    /// The row's line number on the page.
    line: usize,
}

/// The counts of one file.
#[derive(Default)]
struct Counted {
    lines: usize,
    public: usize,
    long: usize,
    types: Vec<String>,
    wide: usize,
}

/// Prints the table with the current counts; with `is_lowered`, lowers ceilings that are too high.
pub fn run(is_lowered: bool) -> Result<bool> {
    let tree = Tree::read(crate::cargo::root())?;
    let page = tree
        .text(PAGE)
        .with_context(|| format!("{PAGE} is missing"))?;
    let found = found(&tree, &rows(page));
    println!("{:>8} {:>8}", "there", "at most");
    for (row, there) in &found {
        println!("{there:8} {:8}  {}", row.most, row.name);
    }
    let lines = found.iter().filter(|(row, _)| row.counts_lines());
    println!(
        "{:8}           all lines of code",
        lines.map(|(_, there)| there).sum::<usize>()
    );
    if is_lowered {
        let path = crate::cargo::root().join(PAGE);
        std::fs::write(path, lowered(page, &found))
            .with_context(|| format!("cannot write {PAGE}"))?;
    }
    Ok(true)
}

/// Complains about counts that exceed their ceiling, or have fallen so far below it that they could grow again
/// unseen; and about files of no capability.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let Some(page) = tree.text(PAGE) else {
        return Vec::new();
    };
    let rows = rows(page);
    let mut out = Vec::new();
    for (row, there) in found(tree, &rows) {
        let Row {
            name, most, line, ..
        } = row;
        if name == WIDE && there > most {
            out.extend(wide_lines(tree));
            continue;
        }
        let mut complain = |what: &str| {
            let what = format!("`{name}`: {there} counted, and the ceiling of {most} {what}");
            out.push(Complaint::new(PAGE, line, what));
        };
        if there > most {
            complain(
                "is exceeded; make it smaller, or raise the ceiling in a commit that says why, and say it in the last column",
            );
        } else if most * 50 > there * 51 {
            complain(&format!("is more than 2 % higher; {LOWER}"));
        }
    }
    for (file, _) in tree.texts().filter(|(file, _)| is_counted(file)) {
        if owner(file, &rows).is_none() {
            out.push(Complaint::new(
                file,
                1,
                format!("belongs to no capability of {PAGE}"),
            ));
        }
    }
    out
}

/// Complaints about lines of Python that are too wide.
fn wide_lines(tree: &Tree) -> impl Iterator<Item = Complaint> {
    let files = tree.texts().filter(|(file, _)| file.ends_with(".py"));
    files.flat_map(|(file, text)| {
        let what = format!("more than {MOST_COLUMNS} columns; break the line");
        wide(text).map(move |line| Complaint::new(file, line, &*what))
    })
}

/// Complains about ceilings that are higher than in the last commit, or in that commit than in the one before,
/// without a new reason. Without git there is nothing to compare.
pub fn raised(tree: &Tree) -> Vec<Complaint> {
    let page = tree.text(PAGE).unwrap_or_default();
    let before = ["HEAD", "HEAD~1"].map(|commit| {
        let git = Command::new("git")
            .args(["show", &format!("{commit}:{PAGE}")])
            .current_dir(crate::cargo::root())
            .output();
        git.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    });
    let mut out: Vec<_> = before
        .iter()
        .flat_map(|before| raised_since(before, page))
        .collect();
    out.dedup();
    out
}

fn raised_since(before: &str, page: &str) -> Vec<Complaint> {
    let before = rows(before);
    let is_raised = |row: &&Row| {
        let earlier = before.iter().find(|earlier| earlier.name == row.name);
        earlier.is_some_and(|earlier| row.most > earlier.most && row.reason == earlier.reason)
    };
    let rows = rows(page);
    let raised = rows.iter().filter(is_raised);
    let what = "is raised without a reason; say in the last column why";
    raised
        .map(|row| Complaint::new(PAGE, row.line, format!("`{}` {what}", row.name)))
        .collect()
}

/// The rows: `| capability | at most | files | raised because |`. A number makes a row.
fn rows(page: &str) -> Vec<Row> {
    let row = |(at, line): (usize, &str)| {
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let [name, most, files, reason] = cells[..] else {
            return None;
        };
        Some(Row {
            name: name.to_owned(),
            most: most.replace(',', "").parse().ok()?,
            files: files
                .split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect(),
            reason: reason.to_owned(),
            line: at + 1,
        })
    };
    page.lines().enumerate().filter_map(row).collect()
}

/// The page with all ceilings lowered to the current counts.
fn lowered(page: &str, found: &[(Row, usize)]) -> String {
    let line = |(at, line): (usize, &str)| {
        let row = found.iter().find(|(row, _)| row.line == at + 1);
        match row.filter(|(row, there)| *there < row.most) {
            None => format!("{line}\n"),
            Some((_, there)) => {
                let cell = line.split('|').nth(2).unwrap_or_default();
                line.replacen(&format!("|{cell}|"), &format!("| {there} |"), 1) + "\n"
            }
        }
    };
    page.lines().enumerate().map(line).collect()
}

/// The current counts, by row. A file's lines belong to the row with the longest matching prefix.
fn found(tree: &Tree, rows: &[Row]) -> Vec<(Row, usize)> {
    let counted = tree
        .texts()
        .filter_map(|(file, text)| Some((file, counted(file, text, tree)?)));
    let counted: Vec<(&str, Counted)> = counted.collect();
    let of = |row: &Row| {
        let own = counted
            .iter()
            .filter(|(file, _)| row.begins(file).is_some());
        let own: Vec<_> = own.map(|(file, counted)| (*file, counted)).collect();
        let sum = |count: fn(&Counted) -> usize| own.iter().map(|(_, of)| count(of)).sum();
        match &*row.name {
            PUBLIC => sum(|of| of.public),
            LONG => sum(|of| of.long),
            WIDE => sum(|of| of.wide),
            NAMES => {
                let mut times = BTreeMap::new();
                for name in own.iter().flat_map(|(_, of)| &of.types) {
                    *times.entry(name).or_insert(0) += 1;
                }
                let mut times = times.into_values();
                times.by_ref().filter(|n| *n > MOST_OF_ONE_NAME).count()
            }
            _ => {
                let own = own
                    .iter()
                    .filter(|(file, _)| owner(file, rows) == Some(row));
                own.map(|(_, of)| of.lines).sum()
            }
        }
    };
    rows.iter().map(|row| (row.clone(), of(row))).collect()
}

/// The capability that a file belongs to.
fn owner<'r>(file: &str, rows: &'r [Row]) -> Option<&'r Row> {
    let of_lines = rows.iter().filter(|row| row.counts_lines());
    let longest = of_lines.max_by_key(|row| row.begins(file))?;
    longest.begins(file).map(|_| longest)
}

impl Row {
    fn counts_lines(&self) -> bool {
        ![PUBLIC, LONG, NAMES, WIDE].contains(&&*self.name)
    }

    /// The length of the longest prefix in the row that a file's path has.
    fn begins(&self, file: &str) -> Option<usize> {
        let file = file.strip_prefix("crates/").unwrap_or(file);
        let begins = self.files.iter().filter(|start| file.starts_with(*start));
        let all = self.files.is_empty().then_some(0);
        begins.map(String::len).max().or(all)
    }
}

/// Whether a file's lines count as code of a capability, not as tests, benches or examples.
fn is_counted(file: &str) -> bool {
    let inside = file
        .strip_prefix("crates/")
        .and_then(|file| file.split_once('/'));
    inside.is_some_and(|(_, inside)| match inside.rsplit('.').next() {
        Some("rs") => inside.contains("src/") || inside == "build.rs",
        Some("py" | "pyi") => inside.starts_with("python/"),
        _ => false,
    })
}

/// The numbers of the lines that are too wide.
fn wide(text: &str) -> impl Iterator<Item = usize> {
    let lines = (1..).zip(text.lines());
    lines.filter_map(|(at, line)| (line.chars().count() > MOST_COLUMNS).then_some(at))
}

fn counted(file: &str, text: &str, tree: &Tree) -> Option<Counted> {
    let mut out = Counted::default();
    if file.ends_with(".py") {
        out.wide = wide(text).count();
    }
    if !is_counted(file) {
        return (out.wide > 0).then_some(out);
    }
    let mut functions = Vec::new();
    let code = if file.ends_with(".rs") {
        count::rust(text)
    } else {
        count::python(text)
    };
    if file.ends_with(".rs") {
        // A file that cannot be parsed is reported elsewhere.
        for item in &tree.source(file)?.items {
            match &*item.kind {
                _ if !code[item.lines.start() - 1] => continue,
                "fn" => functions.push(item.lines.start() - 1..*item.lines.end()),
                "struct" | "enum" | "union" | "trait" => out.types.push(item.name.clone()),
                _ => {}
            }
            out.public += usize::from(item.is_public);
        }
    } else {
        functions = count::python_functions(text);
    }
    let lines = |code: &[bool]| code.iter().filter(|is_code| **is_code).count();
    let long = functions
        .into_iter()
        .filter(|at| lines(&code[at.clone()]) > MOST_LINES);
    out.long = long.count();
    out.lines = lines(&code);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    const TABLE: &str = "| capability | at most | files | raised because |\n|---|---|---|---|\n";

    fn tree(rows: &str) -> Tree {
        let page = format!("{TABLE}{rows}\n| public items of the runtime | 2 | `a/src/` | |");
        Tree::of(&[
            (PAGE, &page),
            (
                "crates/a/src/lib.rs",
                "pub fn a() {}\npub(crate) fn b() {}\n#[cfg(test)]\nmod tests {\n    pub fn c() {}\n}\n",
            ),
            (
                "crates/a/src/b/mod.rs",
                "/// One.\npub struct C;\n\n// Two.\n",
            ),
            (
                "crates/a/python/p/__init__.py",
                "\"\"\"Three.\n\nFour.\n\"\"\"\nimport a\n",
            ),
            ("crates/a/tests/t.rs", "fn t() {}\n"),
        ])
    }

    #[test]
    fn what_is_within_its_ceiling_is_right() {
        assert_eq!(
            lines(check(&tree("| a | 3 | `a/` | |\n| b | 1 | `a/src/b` | |"))),
            [""; 0]
        );
        assert_eq!(
            lines(check(&Tree::of(&[("crates/a/src/lib.rs", "")]))),
            [""; 0]
        );
    }

    #[test]
    fn what_exceeds_its_ceiling_or_fell_below_is_named() {
        assert_eq!(
            lines(check(&tree(
                "| a | 1,000 | `a/` | |\n| b | 0 | `a/src/b` | |"
            ))),
            [
                "3: `a`: 3 counted, and the ceiling of 1000 is more than 2 % higher; `cargo xtask budget --lower` lowers it",
                "4: `b`: 1 counted, and the ceiling of 0 is exceeded; make it smaller, or raise the ceiling in a commit that says why, and say it in the last column",
            ]
        );
    }

    #[test]
    fn each_line_of_python_that_is_too_wide_is_named() {
        let row = |most| format!("{TABLE}| lines of Python over 110 columns | {most} | all | |");
        let text = format!("{}\n#{}\n", "é".repeat(110), "é".repeat(110));
        let found = |most| {
            let file = "examples/python/a.py";
            check(&Tree::of(&[(PAGE, &row(most)), (file, &text)]))
        };
        let what = "more than 110 columns; break the line";
        assert_eq!(found(0), [Complaint::new("examples/python/a.py", 2, what)]);
        assert_eq!(found(1), []);
    }

    #[test]
    fn a_file_of_no_capability_is_named() {
        let found = check(&tree("| a | 2 | `a/src/lib` | |"));
        let files: Vec<_> = found.iter().map(|complaint| &*complaint.file).collect();
        assert_eq!(
            files,
            ["crates/a/python/p/__init__.py", "crates/a/src/b/mod.rs"]
        );
    }

    #[test]
    fn ceilings_are_lowered_and_never_raised() {
        let tree = tree("| a | 1,000 | `a/` | once |\n| b | 0 | `a/src/b` | |");
        let page = tree.text(PAGE).unwrap();
        assert_eq!(
            lowered(page, &found(&tree, &rows(page))),
            format!(
                "{TABLE}| a | 3 | `a/` | once |\n| b | 0 | `a/src/b` | |\n| public items of the runtime | 2 | `a/src/` | |\n"
            )
        );
    }

    #[test]
    fn a_ceiling_is_raised_with_a_reason() {
        let before = "| a | 3 | `a` | |\n| b | 5 | `b` | one |";
        assert_eq!(
            raised_since(
                before,
                "| a | 2 | `a` | |\n| b | 6 | `b` | one, two |\n| c | 9 | `c` | |"
            ),
            []
        );
        assert_eq!(
            lines(raised_since(
                before,
                "| a | 4 | `a` | |\n| b | 6 | `b` | one |"
            )),
            [
                "1: `a` is raised without a reason; say in the last column why",
                "2: `b` is raised without a reason; say in the last column why"
            ]
        );
    }

    #[test]
    fn long_functions_names_and_wide_lines_are_counted() {
        let long = format!(
            "fn a() {{\n{}}}\nfn b() {{\n    // no code\n{}}}\n",
            "    a();\n".repeat(99),
            "    a();\n".repeat(98)
        );
        let python = format!(
            "def a(\n    b,\n):\n{}\n\ndef c():\n    d{}\n",
            "    a()\n".repeat(98),
            "d".repeat(110)
        );
        let of = |file, text: &str| {
            let of = counted(file, text, &Tree::of(&[(file, text)])).unwrap();
            (of.long, of.wide)
        };
        assert_eq!(of("crates/a/src/lib.rs", &long), (1, 0));
        assert_eq!(of("crates/a/python/a.py", &python), (1, 1));
        assert_eq!(of("crates/a/tests/a.py", &python), (0, 1));
    }
}
