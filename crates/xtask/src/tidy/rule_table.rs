//! Checks docs/explanation/order.md: every rule names the function that implements it and the test that tests it.

use super::Complaint;
use super::rust::Item;
use super::tree::Tree;

const PAGE: &str = "docs/explanation/order.md";

/// Complains about rows `| R14 | … | `module::function` | `test` |` that name what does not exist: functions and
/// types in the module of that name, tests anywhere.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let page = tree.text(PAGE).unwrap_or_default();
    let mut out = Vec::new();
    for (index, line) in page.lines().enumerate().filter(|(_, line)| is_rule(line)) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        let [.., kept_by, tried_by] = cells[..] else {
            continue;
        };
        let wrong = quoted(kept_by).filter(|path| !is_defined(path, tree));
        let no_test = quoted(tried_by).filter(|name| !is_test(name, tree));
        let what = wrong.map(|path| format!("there is no `{path}`"));
        let what = what.chain(no_test.map(|name| format!("there is no test `{name}`")));
        out.extend(what.map(|what| Complaint::new(PAGE, index + 1, what)));
    }
    out
}

fn is_rule(line: &str) -> bool {
    let first = line.trim().strip_prefix('|').map(str::trim_start);
    let number = first.and_then(|cell| cell.strip_prefix('R'));
    number.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether `a::b::function`, `a::b::Type` or `a::b::Type::function` is in `src/a/b.rs` or `src/a/b/mod.rs` of a crate.
fn is_defined(path: &str, tree: &Tree) -> bool {
    let is_module = |word: &&str| word.starts_with(char::is_lowercase);
    let mut names: Vec<&str> = path.split("::").collect();
    let Some(last) = names.pop() else {
        return false;
    };
    let modules: Vec<&str> = names.iter().copied().take_while(is_module).collect();
    let module = modules.join("/");
    let files = [format!("/src/{module}.rs"), format!("/src/{module}/mod.rs")];
    let types = &names[modules.len()..];
    tree.sources().any(|(file, source)| {
        let has = |name: &&str| {
            source
                .items
                .iter()
                .any(|item| item.name == *name && item.kind != "mod")
        };
        files.iter().any(|end| file.ends_with(end)) && has(&last) && types.iter().all(has)
    })
}

fn is_test(name: &str, tree: &Tree) -> bool {
    let is_it = |item: &Item| item.is_test && item.name == name;
    tree.sources()
        .any(|(_, source)| source.items.iter().any(is_it))
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn complaints(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            (PAGE, page),
            (
                "crates/a/src/order/mod.rs",
                "/// legacy_wait\nstruct Order; impl Order { fn legacy_waits(&self) {} } mod rules;",
            ),
            ("crates/a/src/order/rules.rs", "fn push() { action() }"),
            (
                "crates/a/tests/legacy.rs",
                "#[test] fn legacy_is_between() {}\nfn no_test() {}",
            ),
        ]);
        lines(check(&tree))
    }

    #[test]
    fn what_exists_is_right() {
        let page = "| # | rule | function | test |\n|---|---|---|---|\n\
            | R14 | `cudaX` waits | `order::Order::legacy_waits`, `order::rules::push` | `legacy_is_between` |\n\
            text about `nothing`\n| R2 | no order | `order::Order` | |\n";
        assert_eq!(complaints(page), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        for gone in [
            "order::legacy_wait",   // A word of a comment.
            "order::rules",         // A module.
            "order::rules::action", // Called there and defined elsewhere.
            "order::push",          // In another module.
            "push",
            "order::Rules::legacy_waits",
        ] {
            let page = format!("\n| R14 | waits | `{gone}` | `legacy_is_between` |");
            assert_eq!(complaints(&page), [format!("2: there is no `{gone}`")]);
        }
        for gone in ["no_test", "push", "legacy"] {
            let page = format!("| R14 | waits | `order::rules::push` | `{gone}` |");
            assert_eq!(complaints(&page), [format!("1: there is no test `{gone}`")]);
        }
    }

    #[test]
    fn without_the_page_there_is_nothing_to_say() {
        assert_eq!(check(&Tree::of(&[])), []);
    }
}
