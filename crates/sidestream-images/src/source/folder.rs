//! Reads a data set from a folder with a sub-folder for each class.

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
            "`{name}` is outside the folders of the classes, so it has no class; move it into one"
        );
        return Err(Error::source(root.display(), why));
    }
    for (class, number) in classes.iter().zip(0..) {
        let walk = WalkDir::new(root.join(class))
            .follow_links(true)
            .sort_by_file_name();
        for entry in walk
            .into_iter()
            .filter_entry(|entry| entry.depth() == 0 || !is_hidden(entry.path()))
        {
            if let Some(Found::Picture(name)) = found(root, entry)? {
                draft.add(&name, Some(number))?;
            }
        }
    }
    draft.finish(Place::Files(root.to_owned()), classes, root.display())
}

/// Returns the sub-folders and the pictures of a folder, sorted by name.
fn list(root: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let mut folders = Vec::new();
    let mut pictures = Vec::new();
    let walk = WalkDir::new(root).follow_links(true).sort_by_file_name();
    for entry in walk.min_depth(1).max_depth(1) {
        match found(root, entry)? {
            Some(Found::Folder(name)) => folders.push(name),
            Some(Found::Picture(name)) => pictures.push(name),
            None => {}
        }
    }
    Ok((folders, pictures))
}

/// A folder entry that is used, with its path below the root.
enum Found {
    Folder(String),
    Picture(String),
}

/// Returns what the entry is, or none if it is hidden or neither a folder nor a picture.
fn found(root: &Path, entry: walkdir::Result<DirEntry>) -> Result<Option<Found>> {
    let error = match entry {
        Ok(entry) if is_hidden(entry.path()) => return Ok(None),
        Ok(entry) if entry.file_type().is_dir() => {
            return below(root, entry.path()).map(|name| Some(Found::Folder(name)));
        }
        Ok(entry) if entry.file_type().is_file() && ends_as_picture(entry.path()) => {
            return below(root, entry.path()).map(|name| Some(Found::Picture(name)));
        }
        Ok(_) => return Ok(None),
        Err(error) => error,
    };
    let is_link = |path: &&Path| error.loop_ancestor().is_none() && path.is_symlink();
    match error.path().filter(is_link) {
        None => Err(Error::source(root.display(), error)),
        // A picture that cannot be read counts as a broken picture, for which the loader's option decides.
        Some(link) if ends_as_picture(link) && !is_hidden(link) => {
            below(root, link).map(|name| Some(Found::Picture(name)))
        }
        Some(link) if is_hidden(link) || leads_to_itself(link) => Ok(None),
        // The link may lead to a folder of pictures on a disk that is not mounted.
        Some(link) => {
            let why = "it is a link that leads to nothing; fix or remove it";
            Err(Error::source(link.display(), why))
        }
    }
}

/// Returns whether following the link never ends.
fn leads_to_itself(link: &Path) -> bool {
    let mut at = link.to_owned();
    (0..64).all(|_| match at.read_link() {
        Ok(to) => {
            at = at.parent().unwrap_or(Path::new("")).join(to);
            true
        }
        Err(_) => false,
    })
}

fn below(root: &Path, path: &Path) -> Result<String> {
    let name = path.strip_prefix(root).unwrap_or(path).to_str();
    name.map(str::to_owned)
        .ok_or_else(|| Error::source(path.display(), "its name is not UTF-8; rename it"))
}

fn is_hidden(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(b".")
}

/// Returns whether the file name has the extension of a picture.
pub(super) fn ends_as_picture(path: &Path) -> bool {
    let end = path.extension();
    end.is_some_and(|end| ENDS.iter().any(|known| end.eq_ignore_ascii_case(known)))
}
