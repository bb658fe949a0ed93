//! A folder with a sub-folder for each class.

use std::path::Path;

use walkdir::{DirEntry, WalkDir};

use super::{Dataset, Draft, Place};
use crate::{Error, Result};

const ENDS: [&str; 5] = ["jpg", "jpeg", "jpe", "jfif", "png"];

pub(super) fn open(root: &Path, only: Option<&[&str]>) -> Result<Dataset> {
    let mut draft = Draft::default();
    let (folders, beside) = list(root)?;
    let classes: Vec<String> = match only {
        None => folders,
        Some(only) => {
            for (index, class) in only.iter().enumerate() {
                if only[..index].contains(class) {
                    return Err(Error::source(
                        root.display(),
                        format!("the class `{class}` is named twice"),
                    ));
                }
                if !folders.iter().any(|folder| folder == class) {
                    let why = format!(
                        "there is no sub-folder `{class}`; make it, or leave the class out"
                    );
                    return Err(Error::source(root.display(), why));
                }
            }
            only.iter().map(|class| class.to_string()).collect()
        }
    };
    if classes.is_empty() {
        for name in &beside {
            draft.add(name, None)?;
        }
        return draft.finish(Place::Files(root.to_owned()), classes, root.display());
    }
    if let Some(name) = beside.first().filter(|_| only.is_none()) {
        let why = format!(
            "`{name}` lies beside the folders of the classes, so it has no class; move it into one"
        );
        return Err(Error::source(root.display(), why));
    }
    for (class, number) in classes.iter().zip(0..) {
        let walk = WalkDir::new(root.join(class))
            .follow_links(true)
            .sort_by_file_name();
        for entry in walk
            .into_iter()
            .filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry))
        {
            let entry = entry.map_err(|error| Error::source(root.display(), error))?;
            if entry.file_type().is_file() && is_picture(&entry) {
                draft.add(&below(root, &entry)?, Some(number))?;
            }
        }
    }
    draft.finish(Place::Files(root.to_owned()), classes, root.display())
}

/// The sub-folders and the pictures of a folder, by name.
fn list(root: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let mut folders = Vec::new();
    let mut pictures = Vec::new();
    let walk = WalkDir::new(root).follow_links(true).sort_by_file_name();
    for entry in walk.min_depth(1).max_depth(1) {
        let entry = entry.map_err(|error| Error::source(root.display(), error))?;
        if is_hidden(&entry) {
            continue;
        }
        if entry.file_type().is_dir() {
            folders.push(below(root, &entry)?);
        } else if entry.file_type().is_file() && is_picture(&entry) {
            pictures.push(below(root, &entry)?);
        }
    }
    Ok((folders, pictures))
}

fn below(root: &Path, entry: &DirEntry) -> Result<String> {
    let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
    let name = path.to_str().map(str::to_owned);
    name.ok_or_else(|| Error::source(entry.path().display(), "its name is not UTF-8; rename it"))
}

fn is_hidden(entry: &DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

fn is_picture(entry: &DirEntry) -> bool {
    ends_as_picture(entry.path())
}

/// Whether the name is one of a picture.
pub(super) fn ends_as_picture(path: &Path) -> bool {
    let end = path.extension();
    end.is_some_and(|end| ENDS.iter().any(|known| end.eq_ignore_ascii_case(known)))
}
