//! Checks pages: no broken links, and no paths of a particular machine.

use super::Complaint;
use super::tree::Tree;

/// Folders at the root of a machine where people keep their files.
const MACHINE: [&str; 4] = ["work", "root", "home", "Users"];

/// Complains about absolute paths of a machine, in any text.
pub fn machine_paths(file: &str, text: &str) -> Vec<Complaint> {
    let mut out = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for folder in MACHINE.map(|name| format!("/{name}/")) {
            // Inside a longer path or an address, the folder is not at the root of a machine.
            let starts = |at: usize| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && !"._-~/}>)".contains(c))
            };
            if line.match_indices(&folder).any(|(at, _)| starts(at)) {
                let what = format!("`{folder}…` is a path of one machine");
                out.push(Complaint::new(file, index + 1, what));
            }
        }
    }
    out
}

/// Complains about links to files that do not exist.
pub fn links(file: &str, text: &str, tree: &Tree) -> Vec<Complaint> {
    let mut out = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start();
        if fence.starts_with("```") || fence.starts_with("~~~") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(&without_code(line)) {
            if !leads_somewhere(file, target, tree) {
                let what = format!("the link to `{target}` is broken");
                out.push(Complaint::new(file, index + 1, what));
            }
        }
    }
    out
}

/// A line without the text between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The targets of the links in a line: `[text](target "title")` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    let defined = line
        .starts_with('[')
        .then(|| line.split_once("]: "))
        .flatten();
    let all = inline.chain(defined.map(|(_, target)| target));
    all.filter_map(|target| target.split_whitespace().next())
        .map(|target| target.trim_matches(['<', '>']))
        .collect()
}

fn leads_somewhere(file: &str, target: &str, tree: &Tree) -> bool {
    let path = target.split(['#', '?']).next().unwrap_or(target);
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    if elsewhere || path.is_empty() {
        return true;
    }
    let mut parts: Vec<&str> = match path.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => file.split('/').collect(),
    };
    parts.pop(); // The page itself.
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            part => parts.push(part),
        }
    }
    tree.has(&parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn paths_of_a_machine_are_named() {
        for name in MACHINE {
            let text = format!("fine\nsee /{name}/me/notes.txt\n");
            let what = format!("2: `/{name}/…` is a path of one machine");
            assert_eq!(lines(machine_paths("a.yaml", &text)), [what]);
            let text = format!("docs/{name}/x and https://example.org/{name}/ and ../{name}/y");
            assert_eq!(lines(machine_paths("a.yaml", &text)), [""; 0]);
        }
    }

    #[test]
    fn dead_links_are_named() {
        let tree = Tree::of(&[
            ("README.md", ""),
            ("docs/explanation/order.md", ""),
            ("docs/a/b.md", ""),
        ]);
        let good = "[a](explanation/order.md#r14) [b](../README.md) [c](a/) [d](https://x.org/y) [e](#top)\n`[f](gone)`\n```\n[g](gone)\n```\n[h]: a/b.md\n";
        assert_eq!(lines(links("docs/x.md", good, &tree)), [""; 0]);
        let bad = "[a](gone.md)\n![b](../docs/gone.png \"title\")\n[c]: ../../out.md\n";
        assert_eq!(
            lines(links("docs/x.md", bad, &tree)),
            [
                "1: the link to `gone.md` is broken",
                "2: the link to `../docs/gone.png` is broken",
                "3: the link to `../../out.md` is broken",
            ]
        );
    }
}
