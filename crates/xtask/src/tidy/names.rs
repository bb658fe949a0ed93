//! Checks the lengths and names of files and modules.

use super::Complaint;

/// Longer files have two subjects.
const MOST_LINES: usize = 800;

/// Names that exclude nothing, so that everything ends up there.
const EMPTY: [&str; 8] = [
    "util", "utils", "helper", "helpers", "common", "misc", "ctx", "mgr",
];

/// Complains about the name and the length of a source file.
pub fn check(file: &str, text: &str) -> Vec<Complaint> {
    let Some(stem) = file.strip_suffix(".rs").or(file.strip_suffix(".py")) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let lines = text.lines().count();
    if lines > MOST_LINES {
        let what = format!(
            "{lines} lines, at most {MOST_LINES}: it has two subjects; move one to a file of its own, named after it"
        );
        out.push(Complaint::new(file, lines, what));
    }
    if let Some(name) = stem.split('/').find(|part| EMPTY.contains(part)) {
        out.push(Complaint::new(file, 1, empty(name)));
    }
    out
}

/// Complains about modules that are declared inside a file.
pub fn modules(file: &str, modules: &[(String, usize)]) -> Vec<Complaint> {
    let empty_ones = modules
        .iter()
        .filter(|(name, _)| EMPTY.contains(&name.as_str()));
    empty_ones
        .map(|(name, line)| Complaint::new(file, *line, empty(name)))
        .collect()
}

fn empty(name: &str) -> String {
    format!("`{name}` says nothing; name the subject")
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn long_files_are_named() {
        assert_eq!(lines(check("a.rs", &"\n".repeat(800))), [""; 0]);
        let what = "801: 801 lines, at most 800: it has two subjects; move one to a file of its own, named after it";
        assert_eq!(lines(check("a.py", &"\n".repeat(801))), [what]);
        assert_eq!(lines(check("a.yaml", &"\n".repeat(801))), [""; 0]);
    }

    #[test]
    fn empty_names_are_named() {
        for file in ["crates/a/src/helpers.rs", "crates/a/tests/helpers/mod.rs"] {
            let what = "1: `helpers` says nothing; name the subject";
            assert_eq!(lines(check(file, "")), [what]);
        }
        assert_eq!(lines(check("crates/a/src/utility_model.rs", "")), [""; 0]);
        let declared = [("misc".to_owned(), 4), ("order".to_owned(), 5)];
        assert_eq!(
            lines(modules("a.rs", &declared)),
            ["4: `misc` says nothing; name the subject"]
        );
    }
}
