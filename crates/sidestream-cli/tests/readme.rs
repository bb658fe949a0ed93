//! Checks that the README and the pages show what the command prints.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_readme_and_the_pages_show_real_output() {
    let folder = folder();
    let mut compared = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).expect("the page is there");
        let mut lines = 0;
        for (language, block) in fences(&text) {
            let command = block.lines().next().unwrap_or_default();
            match (language, command.strip_prefix("$ sidestream ")) {
                ("", Some(args)) => lines += compare(block, &run(&folder, args)),
                // The two timelines at the top of the README.
                ("", None) if block.contains("(compute)") => {
                    lines += compare(block, &run(&folder, "overlap"));
                }
                // Commands that a reader is told to type must work.
                ("sh", _) => {
                    let typed = block.lines().filter_map(|l| l.strip_prefix("sidestream "));
                    for args in typed {
                        let ran = run(&folder, args);
                        assert_ne!(ran.status.code(), Some(2), "{args}: {}", shown(&ran));
                    }
                }
                _ => {}
            }
        }
        compared.push((page.file_name().expect("a name").to_owned(), lines));
    }
    for (page, least) in [("README.md", 15), ("devices.md", 12)] {
        let found = compared.iter().find(|(name, _)| name == page);
        assert!(
            found.is_some_and(|(_, lines)| *lines > least),
            "{compared:?}"
        );
    }
}

/// The picture in the README is what the command draws of the trace next to it.
#[test]
fn the_picture_is_drawn_from_the_trace() {
    let folder = folder();
    let drawn = run(
        &folder,
        "diagnose examples/traces/both_ways.before.json.gz --svg drawn.svg",
    );
    assert!(drawn.status.success(), "{}", shown(&drawn));
    let read = |path: &Path| std::fs::read_to_string(path).expect("a picture");
    let kept = Path::new(ROOT).join("docs/pictures/both_ways.svg");
    assert_eq!(read(&folder.join("drawn.svg")), read(&kept));
}

/// Returns the README and the pages under `docs`.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the folder exists") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Returns the blocks of a page, each with its language.
fn fences(page: &str) -> impl Iterator<Item = (&str, &str)> {
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced.filter_map(|block| block.split_once('\n'))
}

/// Returns the folder in which the commands of the pages run: it has the examples, and the files that docs/reference/devices.md
/// describes.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("sidestream-pages-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let _ = std::os::unix::fs::symlink(format!("{ROOT}/examples"), folder.join("examples"));
    let h200 = include_str!("../../sidestream/profiles/h200.toml");
    let page =
        std::fs::read_to_string(format!("{ROOT}/docs/reference/devices.md")).expect("the page");
    let changes = fences(&page).find(|(language, _)| *language == "toml");
    let (_, changes) = changes.expect("it shows what is changed");
    let file = changed(h200, changes);
    let link = changes.lines().find(|line| line.starts_with("gb_s"));
    let no_source = file.replace(link.expect("a link"), "gb_s = 24.5");
    for (name, text) in [("my_gpu.toml", file), ("no_source.toml", no_source)] {
        std::fs::write(folder.join(name), text).expect("a file");
    }
    folder
}

/// Returns a file with these lines instead of those for the same keys.
fn changed(file: &str, lines: &str) -> String {
    let key = |line: &str| Some(line.split_once(" = ")?.0.to_owned());
    let new = |line: &str| {
        lines
            .lines()
            .find(|l| key(line).is_some() && key(l) == key(line))
    };
    let changed = file.lines().map(|line| new(line).unwrap_or(line));
    changed.collect::<Vec<_>>().join("\n")
}

fn run(folder: &Path, args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sidestream"))
        .args(args.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("the command starts")
}

fn shown(ran: &Output) -> String {
    [&ran.stdout[..], &ran.stderr]
        .concat()
        .try_into()
        .expect("text")
}

/// Checks that the command prints all lines of the block; returns how many there are.
#[track_caller]
fn compare(block: &str, ran: &Output) -> usize {
    let printed = shown(ran);
    // An ellipsis marks lines that are left out.
    let lines = block.lines();
    let lines = lines.filter(|line| !line.starts_with("$ ") && *line != "…");
    let lines = lines.inspect(|line| {
        assert!(
            printed.lines().any(|l| l == *line),
            "this line is not printed:\n{line}\nbut this:\n{printed}"
        );
    });
    lines.count()
}
