//! Checks Cargo.toml files: a reason beside each dependency, and the oldest compiler.

use super::Complaint;

/// Complains about one manifest.
pub fn check(file: &str, text: &str) -> Vec<Complaint> {
    let mut out = Vec::new();
    if !text.lines().any(|line| line.starts_with("rust-version")) {
        out.push(Complaint::new(file, 1, "`rust-version` is missing"));
    }
    let mut lists_dependencies = false;
    let mut above = "";
    for (index, line) in text.lines().enumerate() {
        let mut dependency = None;
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or(header);
            lists_dependencies = header.ends_with("dependencies");
            dependency = single(header).filter(|_| !has_path(text.lines().skip(index + 1)));
        } else if lists_dependencies && line.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            // A continuation line is indented.
            let name = line.split(['=', '.', ' ']).next();
            dependency = name.filter(|_| !names_path(line));
        }
        let reason = line.contains(" # ") || above.starts_with('#');
        if let Some(name) = dependency.filter(|_| !reason) {
            let what = format!("`{name}` has no reason; say in a comment above it what it is for");
            out.push(Complaint::new(file, index + 1, what));
        }
        above = line;
    }
    out
}

/// The dependency of a header such as `[dependencies.serde]`.
fn single(header: &str) -> Option<&str> {
    let (before, name) = header.rsplit_once('.')?;
    before.ends_with("dependencies").then_some(name)
}

/// Whether a dependency with its own table, up to the next header, is a crate of this repository.
fn has_path<'a>(mut lines: impl Iterator<Item = &'a str>) -> bool {
    lines
        .by_ref()
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.starts_with("path"))
}

/// Whether a line names a crate of this repository: by its path, or by the workspace's table.
fn names_path(code: &str) -> bool {
    if code.starts_with("sidestream") && code.ends_with(".workspace = true") {
        return true;
    }
    let inner = code.split(['{', ',']).map(str::trim);
    inner
        .into_iter()
        .any(|part| part.starts_with("path =") || part.starts_with("path="))
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn complaints(text: &str) -> Vec<String> {
        // The first line counts as line 0, so that the lines of `text` count from one.
        let text = format!("rust-version.workspace = true\n{text}\n");
        let mut complaints = check("Cargo.toml", &text);
        complaints.iter_mut().for_each(|c| c.line -= 1);
        lines(complaints)
    }

    #[test]
    fn reasons_stand_above_or_at_the_end() {
        let text = "[dependencies]\n# Fast.\na = \"1\"\nb = \"1\" # Small.\nc = { path = \"../c\" }\n\n[lints]\nworkspace = true";
        assert_eq!(complaints(text), [""; 0]);
    }

    #[test]
    fn a_dependency_without_a_reason_is_named() {
        let reason = "has no reason; say in a comment above it what it is for";
        let text = "[dev-dependencies]\n# For a only.\na = \"1\"\nb = { version = \"1#\", features = [\n  \"x\",\n] }\nc.workspace = true";
        assert_eq!(
            complaints(text),
            [format!("4: `b` {reason}"), format!("7: `c` {reason}")]
        );
        let text = "[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n[build-dependencies.cc]\nversion = \"1\"\n[dependencies.own]\npath = \"../own\"";
        assert_eq!(
            complaints(text),
            [format!("2: `libc` {reason}"), format!("3: `cc` {reason}")]
        );
    }

    #[test]
    fn the_oldest_compiler_is_stated() {
        let found = lines(check("Cargo.toml", "[package]\nname = \"a\"\n"));
        assert_eq!(found, ["1: `rust-version` is missing"]);
    }
}
