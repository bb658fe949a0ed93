//! Which lines of a source file are code: not blank, and not part of a comment, a docstring or a test in the file.

use std::ops::Range;

/// Whether each line of a Rust file is code. The file is formatted, so a module ends at a brace with the indentation
/// of its beginning.
pub fn rust(text: &str) -> Vec<bool> {
    let mut end_of_tests: Option<String> = None;
    let (mut in_comment, mut is_for_tests) = (false, false);
    let is_code = |line: &str| {
        let trimmed = line.trim();
        if in_comment || trimmed.starts_with("/*") {
            in_comment = !trimmed.contains("*/");
            return false;
        }
        if let Some(end) = &end_of_tests {
            if line == end {
                end_of_tests = None;
            }
            return false;
        }
        if trimmed.is_empty() || trimmed.starts_with("//") {
            return false;
        }
        if trimmed.starts_with("#[cfg(test)]") {
            is_for_tests = true;
            return false;
        }
        let is_test = std::mem::take(&mut is_for_tests) && is_module(trimmed);
        if is_test && trimmed.ends_with('{') {
            let inset = &line[..line.len() - line.trim_start().len()];
            end_of_tests = Some(format!("{inset}}}"));
        }
        !is_test
    };
    text.lines().map(is_code).collect()
}

fn is_module(line: &str) -> bool {
    ["mod ", "pub mod ", "pub(crate) mod ", "pub(super) mod "]
        .iter()
        .any(|start| line.starts_with(start))
}

/// Whether each line of a Python file is code. A string that is a whole statement is a docstring.
pub fn python(text: &str) -> Vec<bool> {
    let mut closing: Option<&str> = None;
    let mut is_statement = true;
    let is_code = |line: &str| {
        let trimmed = line.trim();
        if let Some(quotes) = closing {
            closing = closing.filter(|_| !trimmed.contains(quotes));
            return false;
        }
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return false;
        }
        let string = trimmed.trim_start_matches(['r', 'R', 'f', 'u', 'b']);
        let quotes = ["\"\"\"", "'''", "\"", "'"];
        let quotes = quotes.into_iter().find(|quotes| string.starts_with(quotes));
        if let Some(quotes) = quotes.filter(|_| is_statement) {
            let rest = &string[quotes.len()..];
            if quotes.len() == 3 && !rest.contains(quotes) {
                closing = Some(quotes);
            }
            if closing.is_some() || rest.ends_with(quotes) {
                return false;
            }
        }
        // An open bracket continues in the next line.
        is_statement = !trimmed.ends_with(['(', '[', '{', ',', '=', '+', '\\', '"', '\'']);
        true
    };
    text.lines().map(is_code).collect()
}

/// The line ranges of the functions in a Python file, from 0. Each ends before the next line that is not indented
/// further, except for the brackets that close its arguments.
pub fn python_functions(text: &str) -> Vec<Range<usize>> {
    let lines: Vec<&str> = text.lines().collect();
    let inset = |line: &str| line.len() - line.trim_start().len();
    let function = |(start, line): (usize, &&str)| {
        let trimmed = line.trim_start();
        if !trimmed.starts_with("def ") && !trimmed.starts_with("async def ") {
            return None;
        }
        let ends = |later: &&str| {
            let trimmed = later.trim_start();
            !trimmed.is_empty() && !trimmed.starts_with(')') && inset(later) <= inset(line)
        };
        let rest = lines[start + 1..].iter().position(ends);
        Some(start..rest.map_or(lines.len(), |rest| start + 1 + rest))
    };
    lines.iter().enumerate().filter_map(function).collect()
}
