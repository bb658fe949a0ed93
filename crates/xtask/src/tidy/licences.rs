//! Checks that deny.toml allows the licence of every dependency. `cargo deny`, which reads the same file, is not needed for that.

use anyhow::{Context, Result};

use super::{Complaint, features};
use crate::cargo;

const ALLOWED: &str = "deny.toml";

/// Complains about the dependencies of the workspace on all targets.
pub fn check() -> Result<Vec<Complaint>> {
    let path = cargo::root().join(ALLOWED);
    let allowed = std::fs::read_to_string(path).context("cannot read deny.toml")?;
    let all = ["--workspace", "--target", "all"];
    let packages = features::tree("{l}\t{p}", "normal,build,dev", &all)?;
    Ok(refused(&allowed, &packages))
}

/// The complaints about a list of licences and packages, a line each.
fn refused(deny: &str, packages: &str) -> Vec<Complaint> {
    let list = deny.split_once("allow = [").map_or("", |(_, list)| list);
    let lines = list.lines().map(str::trim);
    let lines = lines.take_while(|line| !line.starts_with(']'));
    let allowed: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix('"')?.split('"').next())
        .collect();
    let mut out: Vec<_> = packages
        .lines()
        .filter_map(|line| line.trim_end_matches(" (*)").split_once('\t'))
        // Crates of this repository have their path.
        .filter(|(licence, package)| !package.contains('/') && !allows(&allowed, licence))
        .map(|(licence, package)| {
            let what = format!("the licence of {package}, `{licence}`, is not allowed; add it if it may be, or drop the dependency");
            Complaint::new(ALLOWED, 1, what)
        })
        .collect();
    out.sort();
    out.dedup();
    out
}

/// Whether an expression can be met by allowed licences alone. `OR` binds less than `AND`; old manifests write `/` for it.
fn allows(allowed: &[&str], expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ");
    let text = spaced.trim();
    let is_outside = |at: &usize| {
        let before = &text[..*at];
        before.matches('(').count() == before.matches(')').count()
    };
    for operator in [" OR ", " AND "] {
        let mut places = text.match_indices(operator).map(|(at, _)| at);
        if let Some(at) = places.find(is_outside) {
            let left = allows(allowed, &text[..at]);
            let right = allows(allowed, &text[at + operator.len()..]);
            return if operator == " OR " {
                left || right
            } else {
                left && right
            };
        }
    }
    match text
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'))
    {
        Some(inner) => allows(allowed, inner),
        None => allowed.contains(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_that_is_not_allowed_is_named_once() {
        let deny = "[licenses]\nallow = [\n  \"MIT\",\n  # \"GPL\" is not.\n  \"Zlib\",\n  \"A WITH B\",\n]\n[bans]\n";
        let fine = [
            "MIT",
            "GPL/MIT",
            "(GPL OR MIT) AND Zlib",
            "GPL AND GPL OR A WITH B",
        ];
        for licence in fine {
            assert_eq!(
                refused(deny, &format!("{licence}\ta v1\n")),
                [],
                "{licence}"
            );
        }
        for licence in ["GPL", "", "MIT AND GPL", "A", "(MIT OR Zlib) AND (GPL)"] {
            let packages =
                format!("{licence}\town v1 (/here)\n{licence}\ta v1\n{licence}\ta v1 (*)\n");
            let found = refused(deny, &packages);
            assert_eq!(found.len(), 1, "{licence}");
            assert!(found[0].what.contains(&format!("a v1, `{licence}`")));
        }
    }
}
