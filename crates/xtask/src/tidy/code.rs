//! Constructs that are not allowed in the code.

use super::Complaint;
use super::rust::Source;

/// Macros that mark unfinished code.
const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Libraries: clock, seed and device are arguments there.
const NO_ENVIRONMENT: [&str; 4] = [
    "crates/sidestream/src/",
    "crates/sidestream-program/src/",
    "crates/sidestream-diagnose/src/",
    "crates/sidestream-py/src/",
];

/// Complains about one Rust file.
pub fn check(file: &str, source: &Source) -> Vec<Complaint> {
    let mut out = Vec::new();
    for &line in &source.ignores {
        let what = "an ignored test tests nothing; fix it or remove it";
        out.push(Complaint::new(file, line, what));
    }
    let library = NO_ENVIRONMENT.iter().any(|dir| file.starts_with(dir));
    for path in &source.paths {
        let names: Vec<&str> = path.segments.iter().map(String::as_str).collect();
        let what = match names[..] {
            [.., last] if path.is_macro && UNFINISHED.contains(&last) => {
                format!("`{last}!` does not belong in finished code")
            }
            [.., "thread", "sleep"] if path.in_test => {
                "a test that sleeps is slow and still fails at times; wait for the condition itself"
                    .into()
            }
            ["std", "env", ..] | ["env", "var" | "var_os" | "vars" | "vars_os"] if library => {
                "a library does not read the environment; take it as an argument".into()
            }
            _ => continue,
        };
        out.push(Complaint::new(file, path.line, what));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    fn complaints(file: &str, text: &str) -> Vec<String> {
        lines(check(file, &Source::read(file, text).unwrap()))
    }

    #[test]
    fn unfinished_code_is_named() {
        let text = "fn f() {\n todo!();\n std::unimplemented!(\"x\");\n dbg!(1);\n}\nfn todo() { todo(); a.dbg != (1) }";
        let expected = [(2, "todo"), (3, "unimplemented"), (4, "dbg")];
        assert_eq!(
            complaints("crates/a/src/b.rs", text),
            expected
                .map(|(line, name)| format!("{line}: `{name}!` does not belong in finished code"))
        );
    }

    #[test]
    fn ignored_tests_are_named() {
        let text = "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n#[cfg_attr(miri, ignore)]\nfn b() {}";
        let what = "an ignored test tests nothing; fix it or remove it";
        assert_eq!(
            complaints("crates/a/src/b.rs", text),
            [format!("2: {what}"), format!("4: {what}")]
        );
    }

    #[test]
    fn only_tests_may_not_sleep() {
        let text = "fn f() { std::thread::sleep(d) }";
        assert_eq!(complaints("crates/a/src/b.rs", text), [""; 0]);
        let what =
            "1: a test that sleeps is slow and still fails at times; wait for the condition itself";
        assert_eq!(complaints("crates/a/tests/b.rs", text), [what]);
        let inner = "#[cfg(test)] mod tests { use std::{thread::sleep, fmt}; }";
        assert_eq!(complaints("crates/a/src/b.rs", inner), [what]);
    }

    #[test]
    fn libraries_read_no_environment() {
        let what = "a library does not read the environment; take it as an argument";
        for text in [
            "use std::{env, fs};",
            "fn f() { std::env::var(\"X\") }",
            "fn f() { env::var_os(\"X\") }",
        ] {
            let found = complaints("crates/sidestream/src/log.rs", text);
            assert_eq!(found, [format!("1: {what}")], "{text}");
            assert_eq!(
                complaints("crates/sidestream-cli/src/main.rs", text),
                [""; 0]
            );
        }
    }
}
