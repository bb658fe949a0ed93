//! Tests `sidestream check --exact -- PROGRAM` with compilers that only copy files, and a probe that hears by the stand-in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sidestream_inject::calls::CALLS;
use sidestream_inject::wire::{HEADER_WORDS, Head, Tag};

use crate::command::{FOLDER, Ran, sidestream, sidestream_with};
use crate::program::{compiled, linked};

/// A folder with what `--exact` looks for.
struct Installed(PathBuf);

impl Installed {
    fn new(name: &str) -> Installed {
        let root = Path::new(FOLDER).join(format!("exact-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for folder in ["include", "bin", "lib"] {
            fs::create_dir_all(root.join(folder)).expect("the folder is the test's");
        }
        let installed = Installed(root);
        installed.write("lib/libsanitizer-public.so", "");
        installed.write("include/cuda.h", "");
        installed.write(
            "include/sanitizer_patching.h",
            "SANITIZER_INSTRUCTION_TMA_LOAD = 43,",
        );
        installed.script("bin/nvcc", "echo \"$*\" >> \"$0.ran\"; : > \"$out\"");
        let probe = linked("probe.c", Path::new("-lc"), &["-shared", "-fPIC"]);
        let copies = format!("echo \"$*\" >> \"$0.ran\"; cp {} \"$out\"", probe.display());
        installed.script("bin/compiler", &copies);
        installed
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("the folder is the test's");
    }

    /// Writes a compiler, for which `$out` is what comes after `-o`.
    fn script(&self, name: &str, what: &str) {
        let finds = "for word; do case \"$before\" in -o) out=$word;; esac; before=$word; done";
        self.write(name, &format!("#!/bin/sh\n{finds}\n{what}\n"));
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.0.join(name), mode).expect("the file is the test's");
    }

    /// The arguments with which a compiler was called.
    fn calls_of(&self, name: &str) -> Vec<String> {
        let calls = fs::read_to_string(self.0.join(name).with_extension("ran"));
        calls
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    #[track_caller]
    fn run(&self, set: &[(&str, &Path)], arguments: &[&str]) -> Ran {
        let (compiler, cache) = (self.0.join("bin/compiler"), self.0.join("cache"));
        let mut all = vec![
            ("SIDESTREAM_SANITIZER", self.0.as_path()),
            ("SIDESTREAM_EXACT_ARCH", Path::new("80, 90")),
            ("CXX", &compiler),
            ("XDG_CACHE_HOME", &cache),
        ];
        all.extend(set);
        sidestream_with(&[&["check"], arguments].concat(), &all)
    }

    /// Runs a program, and returns what it has written into its ring.
    #[track_caller]
    fn records(&self, options: &[&str], program: &Path, how: &str) -> Vec<(Head, Vec<u64>)> {
        let copy = self.0.join("ring");
        let script = "\"$0\" $1; cp \"$SIDESTREAM_RINGS\"/[0-9]*.0 \"$2\"";
        let (program, to) = (
            program.to_str().expect("UTF-8"),
            copy.to_str().expect("UTF-8"),
        );
        let ran = self.run(
            &[],
            &[options, &["--", "sh", "-c", script, program, how, to]].concat(),
        );
        assert!(ran.err.is_empty(), "{}", ran.err);
        let bytes = fs::read(&copy).expect("the program has a ring");
        let (words, _) = bytes.as_chunks();
        let words: Vec<u64> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let mut rest = &words[HEADER_WORDS..];
        let mut records = Vec::new();
        while let Some(head) = Head::of(rest[0]) {
            let (record, after) = rest.split_at(usize::from(head.words));
            records.push((head, record[1..].to_vec()));
            rest = after;
        }
        records
    }
}

/// Returns the launches before each call of this name, each in two words, and checks that they are of the call's thread.
#[track_caller]
fn launches(records: &[(Head, Vec<u64>)], name: &str) -> Vec<Vec<u64>> {
    let pairs = records.iter().zip(&records[1..]);
    let is_it = |head: &Head| head.tag == Tag::Call && CALLS[usize::from(head.index)].name == name;
    let before = pairs.filter(|(_, (head, _))| is_it(head));
    let launches = before.map(|((head, record), (_, call))| {
        assert_eq!((head.tag, record[0]), (Tag::Launches, call[0]), "{name}");
        record[1..].to_vec()
    });
    launches.collect()
}

fn waits() -> String {
    compiled("waits.c").to_str().expect("UTF-8").to_owned()
}

#[test]
fn what_is_missing_is_named_with_its_remedy() {
    let installed = Installed::new("missing");
    let nothing = installed.0.join("nothing");
    let cases = [
        (
            "SIDESTREAM_SANITIZER",
            &nothing,
            "finds no libsanitizer-public.so with its headers: `pip install",
        ),
        (
            "PATH",
            &nothing,
            "needs a C++ compiler, and there is no g++, c++ or clang++: install one",
        ),
    ];
    for (variable, value, says) in cases {
        let set: [(&str, &Path); 2] = [("CXX", Path::new("")), (variable, value)];
        let ran = installed.run(&set, &["--exact", "--", &waits()]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
        assert!(ran.err.contains(says), "{}", ran.err);
    }
}

#[test]
fn only_a_program_can_be_watched() {
    for arguments in [
        &["--exact", "a.yaml"][..],
        &["--exact", "--light", "--", "a"],
        &["--only", "x", "--", "a"],
    ] {
        let ran = Installed::new("arguments").run(&[], arguments);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
        assert!(ran.err.contains("--exact"), "{}", ran.err);
    }
    for option in ["--light", "--provoke=20", "--stacks", "--only=x"] {
        let ran = sidestream(&["check", option, "a.yaml"]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
        assert!(ran.err.contains("cannot be used with"), "{}", ran.err);
    }
    for arguments in [
        &["check", "--exact", "first", "--", "a"][..],
        &["check", "all"],
    ] {
        let ran = sidestream(arguments);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
        assert!(ran.err.contains("write --exact="), "{}", ran.err);
    }
}

#[test]
fn what_a_compiler_says_is_shown() {
    let installed = Installed::new("fails");
    installed.script(
        "bin/nvcc",
        "echo note: a; echo 'patches.cu(3): error: b'; exit 2",
    );
    let ran = installed.run(&[], &["--exact", "--", &waits()]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
    let says = "libsanitizer-public.so: patches.cu(3): error: b\n";
    assert!(ran.err.ends_with(says), "{}", ran.err);
    // Of the last version that is known, and of those that may come.
    installed.write("include/sanitizer_patching.h", "zFillSize");
    let ran = installed.run(&[], &["--exact", "--", &waits()]);
    assert!(
        ran.err
            .contains("error: b; if this library is newer than 13.5"),
        "{}",
        ran.err
    );
}

#[test]
fn the_probe_is_compiled_once_and_kept() {
    let installed = Installed::new("kept");
    for _ in 0..2 {
        let ran = installed.run(&[], &["--exact", "--", &waits(), "repaired"]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
        assert!(ran.out.contains("no race"), "{}", ran.out);
    }
    let (nvcc, compiler) = (
        installed.calls_of("bin/nvcc"),
        installed.calls_of("bin/compiler"),
    );
    assert_eq!(
        (nvcc.len(), compiler.len()),
        (1, 1),
        "{nvcc:?} {compiler:?}"
    );
    let devices = "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90";
    assert!(
        nvcc[0].contains(devices) && nvcc[0].contains("-DVERSION=133"),
        "{nvcc:?}"
    );
    let kept = fs::read_dir(installed.0.join("cache/sidestream/exact")).expect("it is kept");
    let kept: Vec<_> = kept.flatten().collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let mode = kept[0].metadata().expect("a folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // Another version of the library, and a cache that cannot be written.
    installed.write("include/sanitizer_patching.h", "");
    let nowhere = [("XDG_CACHE_HOME", Path::new("/dev/null/cache"))];
    let ran = installed.run(&nowhere, &["--exact", "--", &waits(), "repaired"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    let nvcc = installed.calls_of("bin/nvcc");
    assert!(
        nvcc.len() == 2 && nvcc[1].contains("-DVERSION=130"),
        "{nvcc:?}"
    );
}

#[test]
fn calls_are_heard_by_the_probe_and_what_it_tells_is_written() {
    let installed = Installed::new("heard");
    let options = ["--exact", "--only", "scale", "--only", "add"];
    let records = installed.records(&options, &compiled("waits.c"), "");
    // What was launched by calls that are not heard belongs to none.
    assert_eq!(launches(&records, "cuLaunchKernel"), [[0, 2]]);
    let of = |tag| records.iter().filter(move |(head, _)| head.tag == tag);
    let touched = of(Tag::Touched).map(|(_, record)| &record[..2]);
    let touched: Vec<_> = touched.filter(|record| record[0] != 99).collect();
    assert_eq!(touched, [[2, "scale\nadd".len() as u64]]);
    // What has ended is passed on before a call that waits returns.
    let mut pairs = records.windows(2);
    let returned = pairs.find(|pair| pair[1].0.tag == Tag::Returned);
    assert_eq!(returned.expect("a wait")[0].1[0], 99);
    assert_eq!(of(Tag::Map).count(), 1);
    let is_variable = |(head, _): &&(Head, Vec<u64>)| {
        CALLS[usize::from(head.index)].name == "cuModuleGetGlobal_v2"
    };
    let variables: Vec<_> = of(Tag::Call).filter(is_variable).collect();
    assert_eq!(variables.len(), 1);
    assert_eq!(variables[0].1[7..], [0xabc000, 64]);
    assert!(of(Tag::Call).all(|(_, record)| record[0] != 0xbad));
}

#[test]
fn nodes_of_graphs_and_of_captures_are_told() {
    let installed = Installed::new("nodes");
    let library = linked(
        "told.c",
        Path::new("-lc"),
        &["-shared", "-fPIC", "-DLIBRARY"],
    );
    let program = linked("told.c", &library, &["-rdynamic"]);
    let records = installed.records(&["--exact"], &program, "launches");
    assert_eq!(launches(&records, "cuLaunchKernel"), [[0x71, 0]]);
    assert_eq!(launches(&records, "cuGraphLaunch"), [[7, 2, 8, 3]]);
    // A program that launches nothing was heard to the byte, too.
    let program = program.to_str().expect("UTF-8");
    let ran = installed.run(
        &[],
        &["--exact", "--json", "--", program, "edges", "repaired"],
    );
    assert!(ran.out.contains("\"exact\":{"), "{}{}", ran.out, ran.err);
}

#[test]
fn tensor_maps_among_parameters_are_written_before_the_launch() {
    let installed = Installed::new("maps");
    let records = installed.records(&["--exact"], &compiled("maps.c"), "");
    let launched = launches(&records, "cuLaunchKernel");
    assert_eq!(launched, [[0, 2], [0, 4], [0, 6]]);
    let pairs = records.iter().zip(&records[1..]);
    let maps = pairs.filter(|((head, _), _)| head.tag == Tag::Maps);
    let told = maps.map(|((_, maps), (next, launch))| {
        assert_eq!((next.tag, launch[0]), (Tag::Launches, maps[0]));
        let (maps, rest) = maps[1..].as_chunks::<16>();
        let addresses: Vec<_> = maps.iter().map(|map| map[0] & 0xff).collect();
        assert!(maps.iter().all(|map| map[1] == 16 << 32 | 0x390) && rest.is_empty());
        (launch[2], addresses)
    });
    let first = |from: u64, count| (from..from + count).map(|at| 16 * at).collect();
    let expected: [(u64, Vec<u64>); 2] = [(4, first(6, 1)), (6, first(5, 8))];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}

#[test]
fn known_findings_are_left_out_and_no_others() {
    let installed = Installed::new("suppressed");
    for (known, code) in [("waits.c:29 it is", 0), ("waits.c:28 it is", 1)] {
        installed.write("known.txt", known);
        let known = installed.0.join("known.txt");
        let known = known.to_str().expect("UTF-8");
        let ran = installed.run(&[], &["--exact", "--suppress", known, "--", &waits()]);
        assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
        let is_left_out = ran
            .out
            .contains("\n  suppressed: 1 finding: waits.c:29 (it is)\n");
        assert_eq!(is_left_out, code == 0, "{}", ran.out);
    }
}

#[test]
fn a_probe_that_does_not_begin_says_why() {
    let installed = Installed::new("refuses");
    let ran = installed.run(
        &[],
        &["--exact", "--only", "nothing", "--", &waits(), "repaired"],
    );
    assert_eq!((ran.code, ran.out.as_str()), (2, "done\n"), "{}", ran.err);
    assert!(
        ran.err.contains("the probe of --exact: it is asked not to"),
        "{}",
        ran.err
    );
    installed.script("bin/compiler", ": > \"$out\"");
    let ran = installed.run(&[], &["--exact", "--", &waits(), "repaired"]);
    assert_eq!((ran.code, ran.out.as_str()), (2, "done\n"), "{}", ran.err);
    assert!(
        ran.err.contains("the probe of --exact: ") && ran.err.contains("file too short"),
        "{}",
        ran.err
    );
}
