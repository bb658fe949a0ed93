//! `sidestream check TEXT.md`: checks the code blocks in a Markdown file, and gives a verdict on each.
//!
//! Stream programs are checked here. Python programs are run by the Python package, on simulated GPUs.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use sidestream_program::{Limits, bad_json, check, checked_json, parse, unreadable_json};

use crate::check::{Outcome, outcome};
use crate::failure::{Failure, print, shown};
use crate::input;
use crate::system::create_private;

/// Returns whether a file is a Markdown file, by its name.
pub fn is_text(path: &Path) -> bool {
    path.extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("md"))
}

/// The result of checking a block.
struct Judged {
    /// The line number of the block's first line.
    line: u64,
    language: &'static str,
    outcome: Outcome,
    /// The verdict in one word.
    verdict: String,
    /// All findings, as printed with `--json`, and as text.
    found: Value,
    text: String,
}

/// Checks each code block of a Markdown file.
pub fn check_text(path: &Path, python: &Path, json: bool) -> Result<Outcome, Failure> {
    let bytes = input::read(path, input::open(path)?)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::input(format!("{} is not UTF-8; save it as UTF-8", shown(path))))?;
    let blocks = blocks(&text);
    let mut judged: Vec<Judged> = blocks.iter().flat_map(of_streams).collect();
    // Without a language mark, the package finds what parses as a PyTorch program.
    if blocks.iter().any(|block| is_python(&block.language))
        || (judged.is_empty() && text.contains("torch"))
    {
        judged.extend(of_python(path, python)?);
    }
    if judged.is_empty() {
        return Err(Failure::input(format!(
            "{}: no code block is marked as python, no block parses as a PyTorch program, and no block marked as yaml is a stream program; there is nothing to check",
            shown(path)
        )));
    }
    judged.sort_by_key(|block| block.line);
    let mut worst = Outcome::Clean;
    for block in &judged {
        worst = worst.max(block.outcome);
        let Judged {
            line,
            language,
            verdict,
            found,
            text,
            ..
        } = block;
        if json {
            let shown = json!({"schema": "sidestream.block/1", "line": line, "language": language, "verdict": verdict, "found": found});
            print(format_args!("{shown}\n"))?;
        } else {
            let text = text.trim_end();
            print(format_args!(
                "{}:{line}: {language}: {verdict}\n",
                shown(path)
            ))?;
            for line in text.lines() {
                print(format_args!("{}\n", format!("  {line}").trim_end()))?;
            }
            print("\n")?;
        }
    }
    Ok(worst)
}

struct Block {
    /// The line number of the block's first line, from 1.
    line: u64,
    language: String,
    text: String,
}

fn is_python(language: &str) -> bool {
    matches!(language, "python" | "py")
}

/// Returns the blocks between lines of three backticks.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        match &mut open {
            None if trimmed.starts_with("```") => {
                let language = trimmed.trim_start_matches('`').trim();
                let word = language.split(|c: char| !c.is_alphanumeric()).next();
                let block = Block {
                    line: at as u64 + 2,
                    language: word.unwrap_or_default().to_ascii_lowercase(),
                    text: String::new(),
                };
                open = Some((block, line.len() - trimmed.len()));
            }
            None => {}
            Some(_) if line.trim() == "```" => blocks.extend(open.take().map(|(block, _)| block)),
            Some((block, indent)) => {
                // A block in a list is indented as far as its first line.
                let lead = line.len() - trimmed.len();
                block.text.push_str(&line[lead.min(*indent)..]);
                block.text.push('\n');
            }
        }
    }
    blocks
}

/// Checks the stream programs of a block; returns nothing if the block is something else.
fn of_streams(block: &Block) -> Vec<Judged> {
    let has = |key: &str| block.text.lines().any(|line| line.starts_with(key));
    let is_program = matches!(&*block.language, "yaml" | "yml") && (has("ops:") || has("cases:"));
    let judged = |outcome, verdict: &str, found, text| Judged {
        line: block.line,
        language: "yaml",
        outcome,
        verdict: verdict.to_owned(),
        found,
        text,
    };
    if !is_program {
        return Vec::new();
    }
    // Blank lines before the block make the line numbers those of the file.
    let lines = "\n".repeat(block.line as usize - 1);
    let document = match parse(&(lines + &block.text), &Limits::default()) {
        Ok(document) => document,
        Err(error) => {
            let why = error.to_string();
            let found = unreadable_json(&why);
            return vec![judged(Outcome::Unreadable, "unreadable", found, why)];
        }
    };
    let programs = document.programs.into_iter().map(|program| match program {
        Ok(program) => {
            let checked = check(&program);
            let verdict = checked.report.verdict().name();
            let text = checked.page(Some(&program));
            judged(outcome(&checked), verdict, checked_json(&checked), text)
        }
        Err(bad) => judged(
            Outcome::Unreadable,
            "unreadable",
            bad_json(&bad),
            bad.to_string(),
        ),
    });
    programs.collect()
}

/// Runs the Python package's check of the programs in a Markdown file, and returns its results.
fn of_python(path: &Path, python: &Path) -> Result<Vec<Judged>, Failure> {
    let folder = Folder::new()?;
    let (report, said) = (folder.0.join("report.json"), folder.0.join("said.txt"));
    let heard = File::create(&said).map_err(|e| Failure::file("create", &said, &e))?;
    let status = Command::new(python)
        .args(["-m", "sidestream.check", "--simulate", "--json"])
        .args([report.as_path(), path])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(heard)
        .status();
    let status = status.map_err(|error| {
        Failure::input(format!(
            "{} cannot be run: {error}; name a Python that has the package `sidestream` with --python",
            shown(python)
        ))
    })?;
    let written = std::fs::read_to_string(&report).unwrap_or_default();
    let found: Value = serde_json::from_str(&written).unwrap_or_default();
    let blocks = found["blocks"].as_array().ok_or_else(|| {
        let last = last_line(&said);
        let why = if last.contains("No module named") || last.contains("not installed") {
"; install `sidestream` and PyTorch for it, or name another Python with --python"
} else {
""
};
        Failure::input(format!(
            "{}: the Python programs in it were not checked: `{} -m sidestream.check` ended with {status}: {last}{why}",
            shown(path),
            shown(python)
        ))
    })?;
    let judged = blocks.iter().map(|block| {
        let verdict = block["verdict"].as_str().unwrap_or("unreadable");
        let outcome = match verdict {
            "clean" => Outcome::Clean,
            "race" => Outcome::Race,
            "open" => Outcome::Warnings,
            _ => Outcome::Refused,
        };
        let mut found = block["found"].clone();
        found["failure"] = block["failure"].clone();
        Judged {
            line: block["line"].as_u64().unwrap_or(0),
            language: "python",
            outcome,
            verdict: verdict.to_owned(),
            found,
            text: block["text"].as_str().unwrap_or_default().to_owned(),
        }
    });
    Ok(judged.collect())
}

/// Returns the last line that a program printed, from the end of a file.
fn last_line(said: &Path) -> String {
    const MOST: u64 = 4_096;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(said)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MOST)))?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    sidestream::check::one_line(last.unwrap_or("it printed nothing")).into_owned()
}

/// A private temporary folder, removed when this is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Result<Folder, Failure> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sidestream-text-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A folder that already exists belongs to another process.
        create_private(&path).map_err(|e| Failure::file("create", &path, &e))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
