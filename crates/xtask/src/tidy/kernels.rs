//! Checks that the checked-in PTX is what `cargo xtask kernels` builds from its source.

use super::Complaint;
use super::tree::Tree;
use crate::kernels::{FOLDERS, HEADER_LINES, header, joined};

/// Complains about kernels that were changed and not built, and about PTX that was changed by hand.
pub fn check(tree: &Tree) -> Vec<Complaint> {
    let names = |folder: &'static str, end: &'static str| {
        let files = tree.files.keys();
        files.filter_map(move |file| file.strip_prefix(folder)?.strip_suffix(end))
    };
    let mut out = Vec::new();
    for (sources, ptx, _) in FOLDERS {
        for name in names(sources, ".cu") {
            let source = format!("{sources}{name}.cu");
            let built = format!("{ptx}{name}.ptx.gz");
            if !is_built(tree, &source, &built) {
                let what = format!("{built} was not built from it; run `cargo xtask kernels`");
                out.push(Complaint::new(&source, 1, what));
            }
        }
        for name in names(ptx, ".ptx.gz") {
            if !tree.has(&format!("{sources}{name}.cu")) {
                let what = format!("there is no {sources}{name}.cu; remove it");
                out.push(Complaint::new(&format!("{ptx}{name}.ptx.gz"), 1, what));
            }
        }
    }
    out
}

fn is_built(tree: &Tree, source: &str, built: &str) -> bool {
    let text = |file: &str| tree.files.get(file).and_then(Option::as_deref);
    let (Some(code), Some(whole)) = (text(source), text(built)) else {
        return false;
    };
    let above = whole.split_inclusive('\n').take(HEADER_LINES);
    let (above, ptx) = whole.split_at(above.map(str::len).sum());
    let code = joined(source, code, |file| text(file).map(str::to_owned));
    above == header(source, &code, ptx)
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    const SOURCE: &str = "kernels/a.cu";
    const PTX: &str = "crates/sidestream/src/ptx/a.ptx.gz";

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        lines(check(&Tree::of(files)))
    }

    fn built(source: &str, ptx: &str) -> String {
        header(SOURCE, source, ptx) + ptx
    }

    #[test]
    fn what_was_built_is_right() {
        let built = built("source", ".version 8.0\n");
        assert_eq!(complaints(&[(SOURCE, "source"), (PTX, &built)]), [""; 0]);
    }

    #[test]
    fn a_change_on_either_side_is_named() {
        let stale = format!("1: {PTX} was not built from it; run `cargo xtask kernels`");
        let built = built("source", ".version 8.0\n");
        assert_eq!(complaints(&[(SOURCE, "changed"), (PTX, &built)]), [&*stale]);
        let edited = format!("{built}// more\n");
        assert_eq!(complaints(&[(SOURCE, "source"), (PTX, &edited)]), [&*stale]);
        let other = built.replace("NVRTC 12", "NVRTC 13");
        assert_eq!(complaints(&[(SOURCE, "source"), (PTX, &other)]), [&*stale]);
        assert_eq!(complaints(&[(SOURCE, "source")]), [&*stale]);
        assert_eq!(complaints(&[(SOURCE, "source"), (PTX, "")]), [&*stale]);
    }

    #[test]
    fn a_change_of_an_included_part_is_named() {
        const PART: &str = "kernels/part.cuh";
        let source = "before\n#include \"part.cuh\"\nafter\n";
        let built = built("before\npart\nafter\n", "");
        let files = |part| [(SOURCE, source), (PART, part), (PTX, &*built)];
        assert_eq!(complaints(&files("part\n")), [""; 0]);
        let stale = format!("1: {PTX} was not built from it; run `cargo xtask kernels`");
        assert_eq!(complaints(&files("other\n")), [&*stale]);
    }

    #[test]
    fn ptx_without_a_source_is_named() {
        let built = built("source", ".version 8.0\n");
        assert_eq!(
            complaints(&[(PTX, &built)]),
            ["1: there is no kernels/a.cu; remove it"]
        );
    }
}
