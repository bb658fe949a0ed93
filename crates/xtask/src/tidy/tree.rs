//! The files of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Complaint;
use super::rust::Source;
use crate::kernels;

/// The tracked files, by path from the root, with `/` as the separator.
pub struct Tree {
    /// The text, unpacked if it is PTX; `None` if the file is not text.
    pub files: BTreeMap<String, Option<String>>,
    /// The parsed Rust files, or why they cannot be parsed.
    pub sources: BTreeMap<String, Result<Source, Complaint>>,
}

impl Tree {
    /// Reads the tracked files from git. Without git (an unpacked archive), every file counts.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut names = tracked(root);
        if names.is_empty() {
            walk(root, root, &mut names)?;
        }
        let mut files = BTreeMap::new();
        for name in names {
            let path = root.join(&name);
            // A tracked file may have been deleted without a commit; a link is not followed.
            if fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
                let bytes =
                    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
                let text = match name.ends_with(".ptx.gz") {
                    true => kernels::unpacked(&bytes).ok(),
                    false => String::from_utf8(bytes).ok(),
                };
                files.insert(name, text);
            }
        }
        Ok(Tree::new(files))
    }

    fn new(files: BTreeMap<String, Option<String>>) -> Tree {
        let rust = files.iter().filter(|(file, _)| file.ends_with(".rs"));
        let source = |(file, text): (&String, &Option<String>)| {
            Some((file.clone(), Source::read(file, text.as_deref()?)))
        };
        let sources = rust.filter_map(source).collect();
        Tree { files, sources }
    }

    /// The files that are text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let files = self.files.iter();
        files.filter_map(|(name, text)| Some((name.as_str(), text.as_deref()?)))
    }

    /// The content of a file, if it is text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    /// The parsed source of a Rust file, if it can be parsed.
    pub fn source(&self, path: &str) -> Option<&Source> {
        self.sources.get(path)?.as_ref().ok()
    }

    /// The Rust files that can be parsed.
    pub fn sources(&self) -> impl Iterator<Item = (&str, &Source)> {
        let sources = self.sources.iter();
        sources.filter_map(|(file, source)| Some((file.as_str(), source.as_ref().ok()?)))
    }

    /// Whether there is such a file or folder.
    pub fn has(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        path.is_empty()
            || self.files.contains_key(path)
            || self.files.keys().any(|name| name.starts_with(&inside))
    }

    /// A small tree for tests.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let entry = |&(name, text): &(&str, &str)| (name.to_owned(), Some(text.to_owned()));
        Tree::new(files.iter().map(entry).collect())
    }
}

/// The files that git tracks below `root`; empty without git or a repository.
fn tracked(root: &Path) -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

fn walk(root: &Path, dir: &Path, names: &mut Vec<String>) -> Result<()> {
    let list = || format!("cannot list {}", dir.display());
    for entry in fs::read_dir(dir).with_context(list)? {
        let path = entry.with_context(list)?.path();
        let name = path.file_name().unwrap_or_default();
        if name == ".git" || name == "target" {
            continue;
        }
        if path.is_dir() && !path.is_symlink() {
            walk(root, &path, names)?;
        } else if let Ok(relative) = path.strip_prefix(root) {
            let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
            names.push(parts.join("/"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_exist_through_their_files() {
        let tree = Tree::of(&[("docs/explanation/order.md", "")]);
        assert!(tree.has("docs") && tree.has("docs/explanation/order.md") && tree.has(""));
        assert!(!tree.has("doc") && !tree.has("docs/order"));
    }

    #[test]
    fn without_git_the_folders_are_walked() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut names = Vec::new();
        walk(here, here, &mut names).unwrap();
        assert!(
            names.iter().any(|name| name == "src/tidy/tree.rs"),
            "{names:?}"
        );
    }
}
