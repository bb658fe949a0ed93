//! Checks that the command reports any wrong input in one line that names the place and the remedy, and ends with code 2.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{FOLDER, sidestream};
use crate::input::file;

/// Returns the message about wrong input: the first line of the errors, without the file's name.
#[track_caller]
fn refused(args: &[&str]) -> String {
    let ran = sidestream(args);
    assert_eq!(ran.code, 2, "{args:?}: {}{}", ran.out, ran.err);
    assert_eq!(ran.out, "", "{args:?}");
    let first = ran.err.lines().next().expect("a line");
    // Where an argument itself is wrong, a pointer to the help follows.
    let rest = ran.err.lines().skip(1).filter(|line| !line.is_empty());
    let rest: Vec<&str> = rest.collect();
    match first.split_once(": ") {
        Some(("sidestream", message)) if rest.is_empty() => message.to_owned(),
        Some(("error", message)) if rest.last() == Some(&"For more information, try '--help'.") => {
            message.to_owned()
        }
        _ => panic!("{args:?}: not one line: {}", ran.err),
    }
}

/// Checks that a message has all of these parts.
#[track_caller]
fn check(args: &str, says: &[&str]) {
    let args: Vec<&str> = args.split(' ').collect();
    says_all(&refused(&args), says);
}

#[track_caller]
fn says_all(message: &str, says: &[&str]) {
    for part in says {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

#[test]
fn sizes_and_counts() {
    let no_size = [
        "--batch <SIZE>",
        "is not a size; write a whole number and a unit, as in 4MiB",
    ];
    for size in ["abc", "-1", "4.5MiB", "MiB", "1e6", "0x10", "4MiB4", "½"] {
        check(
            &format!("overlap --batch {size}"),
            &[no_size[0], no_size[1], size],
        );
    }
    says_all(&refused(&["overlap", "--batch", ""]), &no_size);
    check(
        "overlap --batch 4PiB",
        &["\"PiB\" is not a unit; use B, KiB, MiB, GiB or TiB"],
    );
    for size in [
        "99999999999999999999",
        "18446744073709551615KiB",
        "16777216TiB",
    ] {
        check(
            &format!("overlap --batch {size}"),
            &["is more bytes than any machine has"],
        );
    }
    for size in ["0", "3", "0MiB"] {
        let message = "a batch holds at least one float; give 4 bytes or more";
        check(&format!("overlap --batch {size}"), &[message]);
    }
    check(
        "overlap --batch 100GiB",
        &[
            "four slots of 100 GiB for input and 100 GiB for output do not fit into the 139 GiB of NVIDIA H200; give 17792MiB or less",
        ],
    );
    for size in ["18446744073709551615", "20TiB", "4000g"] {
        check(
            &format!("overlap --batch {size} --device sim:a10g"),
            &[
                "do not fit into the 24 GiB of NVIDIA A10G",
                "give 3072MiB or less",
            ],
        );
    }
    for count in ["0", "-1", "100001", "18446744073709551615", "many", "1.5"] {
        check(
            &format!("overlap --count {count}"),
            &["invalid value", count, "--count <COUNT>"],
        );
    }
    for work in ["0", "-4096", "10000001"] {
        check(
            &format!("overlap --work {work}"),
            &["invalid value", work, "--work <STEPS>", "1..=10000000"],
        );
    }
    let program = file("name: x\nops: []\n");
    for width in ["0", "19", "1001", "-1", "99999999999"] {
        for command in [&format!("run {program}"), "overlap", "diagnose x.json"] {
            check(
                &format!("{command} --width={width}"),
                &["invalid value", width, "--width <COLUMNS>", "20..=1000"],
            );
        }
    }
    check(
        "devices --profile b200",
        &["\"b200\"", "h200, h100, a100, a100-sxm, a10g, rtx4090"],
    );
}

#[test]
fn the_largest_and_smallest_allowed_values() {
    let program = file("name: x\nops: [{do: kernel, s: s1, w: [A]}]\n");
    for args in [
        "overlap --batch 17792MiB --count 2".to_owned(),
        "overlap --batch 3072MiB --device sim:a10g --work 10000000".to_owned(),
        "overlap --batch 4 --count 1 --work 1".to_owned(),
        "overlap --batch 7 --count 100000 --work 1 --json".to_owned(),
        format!("run {program} --width 20"),
        format!("run {program} --width 1000"),
        format!("run {program} --schedule seeded:18446744073709551615"),
    ] {
        let ran = sidestream(&args.split(' ').collect::<Vec<_>>());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args}");
    }
}

#[test]
fn arguments() {
    let program = file("name: x\nops: []\n");
    check("frobnicate", &["unrecognized subcommand 'frobnicate'"]);
    check(
        "overlap --bach 4MiB",
        &["unexpected argument '--bach' found"],
    );
    check("check", &["required arguments were not provided"]);
    check("run", &["required arguments were not provided"]);
    check(
        &format!("run {program} {program}"),
        &["unexpected argument"],
    );
    for schedule in [
        "late",
        "seeded",
        "seeded:",
        "seeded:-1",
        "seeded:99999999999999999999",
        "adversarial:x",
        "adversarial:call:",
        "In-Order",
    ] {
        check(
            &format!("run {program} --schedule {schedule}"),
            &[
                "--schedule <SCHEDULE>",
                schedule,
                "there are in-order, seeded:N, adversarial, adversarial:N",
            ],
        );
    }
    check(
        &format!("run {program} --schedule adversarial:0"),
        &["program x: there is no op 0 for --schedule adversarial:0; the program has no op"],
    );
}

#[test]
fn devices() {
    let program = file("name: x\nops: []\n");
    let known = "there are sim:h200, sim:h100, sim:a100, sim:a100-sxm, sim:a10g, sim:rtx4090 and sim:FILE.toml";
    for device in ["h200", "cuda:", "cuda0", "sim", "gpu", "SIM:h200"] {
        for command in ["overlap", &format!("run {program}")] {
            check(
                &format!("{command} --device {device}"),
                &["no device is called", device, known],
            );
        }
    }
    // The named file is not a driver, so the result does not depend on whether the machine has a GPU.
    for device in ["cuda:0", "auto"] {
        check(
            &format!("run {program} --device {device} --driver no-driver.so"),
            &["no-driver.so", "could be loaded"],
        );
    }
    check(
        "overlap --device cuda:0 --driver no-driver.so",
        &[
            "needs an NVIDIA GPU and its driver",
            "no-driver.so",
            "--device sim:h200",
        ],
    );
    check(
        "overlap --device sim:h200 --driver no-driver.so",
        &["sim:h200 needs no driver", "--device cuda:0"],
    );
    says_all(&refused(&["overlap", "--device", ""]), &[known]);
    for device in ["sim:", "sim:h300", "sim:h200.yaml"] {
        check(
            &format!("overlap --device {device}"),
            &[
                "no simulated GPU is called",
                known,
                "the name of a file ends in .toml or has a / in it",
            ],
        );
    }
    let own = file("");
    check(
        &format!("overlap --device sim:{own}"),
        &[&format!("the file of that name is sim:./{own}")],
    );
    check(
        "overlap --device sim:nowhere.toml",
        &["cannot read nowhere.toml: No such file"],
    );
    check(
        "overlap --device sim:/",
        &["/ is a folder; name a file in it"],
    );
}

#[test]
fn device_files() {
    let h200 = include_str!("../../sidestream/profiles/h200.toml");
    let sms = h200
        .lines()
        .find(|line| line.starts_with("sms"))
        .expect("a field");
    let cases = [
        (
            String::new(),
            "device profile, `name`: is missing; add name = ",
        ),
        (
            "name = 1\n".to_owned(),
            "`name`: must be a non-empty string",
        ),
        (
            "name = = 1\n".to_owned(),
            "not valid TOML: TOML parse error at line 1, column 8: ",
        ),
        (
            format!("{h200}\n[calls]\n"),
            "not valid TOML: TOML parse error at line ",
        ),
        (
            h200.replace(sms, ""),
            "`chip.sms`: is missing; write it as { value = 1, source = ",
        ),
        (
            h200.replace(sms, "sms = 132"),
            "`chip.sms`: has no source; write it as { value = 132, source = ",
        ),
        (
            h200.replace(sms, "sms = { value = -1, source = \"x\" }"),
            "`chip.sms`: is -1, but must be from 1 to 4096",
        ),
        (
            h200.replace(sms, "sms = { value = 1.5, source = \"x\" }"),
            "`chip.sms`: is 1.5, but must be a whole number",
        ),
        (
            h200.replace(sms, "sms = { value = nan, source = \"x\" }"),
            "`chip.sms`: is NaN, but must be from 1 to 4096",
        ),
        (
            h200.replace(sms, "sms = { value = \"many\", source = \"x\" }"),
            "`chip.sms`: has no number as its value",
        ),
        (
            h200.replace(sms, &sms.replace("sms", "sm")),
            "`chip.sm`: is not a key of [chip]; did you mean `sms`?",
        ),
        (
            format!("{h200}\n[chips]\nsms = 1\n"),
            "`chips`: is not a section or key of a device profile; did you mean `chip`?",
        ),
    ];
    for (text, says) in cases {
        // A path with a separator is a file, regardless of its extension.
        let name = file(text);
        let message = refused(&["overlap", "--device", &format!("sim:./{name}")]);
        says_all(&message, &[&name, says]);
    }
    let latin = file(b"name = \"\xff\"\n");
    says_all(
        &refused(&["overlap", "--device", &format!("sim:./{latin}")]),
        &["not UTF-8; save the file as UTF-8"],
    );
    let own = file(h200.replace("NVIDIA H200\"\n", "My own\"\n"));
    let ran = sidestream(&["overlap", "--device", &format!("sim:./{own}")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("on a simulated My own\n"), "{}", ran.out);
}

/// Ten aliases of ten aliases of …: 10^9 nodes if they were expanded.
fn alias_bomb() -> String {
    let mut text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, of) in "bcdefghi".chars().zip("abcdefgh".chars()) {
        text += &format!(
            "{name}: &{name} [{}]\n",
            vec![format!("*{of}"); 10].join(", ")
        );
    }
    text + "name: bomb\nops: *i\n"
}

#[test]
fn files_without_a_program() {
    let bom_only = "\u{feff}";
    let deep = format!(
        "name: x\nops: {}{}\n",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let cases: Vec<(Vec<u8>, &str)> = vec![
        ("".into(), "line 1, column 1: the file is empty"),
        (bom_only.into(), "the file is empty"),
        (
            "# nothing\n".into(),
            "the file is empty; a program is a mapping with `name:` and `ops:`",
        ),
        (
            "hello\n".into(),
            "line 1, column 1: `hello` is given where a program is expected",
        ),
        ("- a\n- b\n".into(), "is given where a program is expected"),
        (
            "cases: []\n".into(),
            "`cases` lists no program; add one with `name:` and `ops:`",
        ),
        (
            "cases: 7\n".into(),
            "is given where the list of programs under `cases` is expected",
        ),
        ("name: x\nops: [\n".into(), "line 3, column 1: not YAML"),
        ("name: x\n\tops: []\n".into(), "found a tab"),
        ("name: 'x\n".into(), "not YAML"),
        (
            b"name: caf\xe9\n".to_vec(),
            "line 1, column 10: the text is not UTF-8; save the file as UTF-8",
        ),
        (
            "name: a\nops: []\n---\nname: b\nops: []\n".into(),
            "a second YAML document starts here",
        ),
        (
            alias_bomb().into(),
            "the document has more than 4194304 nodes, with aliases expanded",
        ),
        ("a: &a [*a]\n".into(), "line 1, column "),
        (deep.into(), "line 2, column "),
        (
            vec![b'x'; (32 << 20) + 1],
            "is longer than 32 MiB, which is the most that is read; split it",
        ),
    ];
    for (bytes, says) in cases {
        let name = file(&bytes);
        for command in ["check", "run"] {
            let message = refused(&[command, &name]);
            says_all(&message, &[&name, says]);
            assert!(message.len() < 400, "{message}");
        }
    }
}

#[test]
fn paths_that_are_not_files() {
    for command in ["check", "run"] {
        check(&format!("{command} ."), &[". is a folder; name ", " in it"]);
        check(
            &format!("{command} nowhere.yaml"),
            &["cannot read nowhere.yaml: No such file"],
        );
        says_all(&refused(&[command, ""]), &["a value is required"]);
    }
}

/// Advice on one line does not help a user who gave another kind of file.
#[test]
fn files_that_are_something_else() {
    let cpp = file("// a program in C++\nint main() { return 0; }\n");
    let json = file("{\"a\": 1}\n");
    let trace = file("{\"traceEvents\": []}\n");
    let packed = file(b"\x1f\x8b\x08\0");
    for command in ["check", "run"] {
        for other in [&cpp, &json] {
            let says =
                "it has neither `ops:` nor `cases:`, so it may not be a stream program (YAML";
            says_all(
                &refused(&[command, other]),
                &[&format!("{other}: line 1"), says],
            );
        }
        let says = format!("`sidestream diagnose {packed}` says why the GPU idled in it");
        says_all(&refused(&[command, &packed]), &["is compressed", &says]);
    }
    let says =
        format!("{trace} is a trace, not a stream program: `sidestream diagnose {trace}` says why");
    says_all(&refused(&["run", &trace]), &[&says]);
    let broken = file("name: x\nops: [\n");
    assert!(!refused(&["check", &broken]).contains("not be a stream program"));
    let binary = file(b"\x7fELF\x02\x01\x01\0\0");
    says_all(
        &refused(&["check", &binary]),
        &[
            &binary,
            "is neither a text file nor an op log; this command reads stream programs (YAML",
        ],
    );
    says_all(
        &refused(&["run", &binary]),
        &[&binary, "is not a text file, as a stream program must be"],
    );
    says_all(
        &refused(&["check", "."]),
        &["as in `sidestream check ./*.yaml`"],
    );
    let nsight = format!("{binary}.sqlite");
    std::fs::rename(
        Path::new(FOLDER).join(&binary),
        Path::new(FOLDER).join(&nsight),
    )
    .expect("it is there");
    says_all(
        &refused(&["check", &nsight]),
        &["`sidestream diagnose` says"],
    );
}

/// An unknown option is not proposed as the name of a file.
#[test]
fn tips_that_lead_nowhere() {
    for (args, tip) in [
        ("check --frob x.yaml", None),
        ("diagnose --frob x.json", None),
        (
            "check --jsn x.yaml",
            Some("a similar argument exists: '--json'"),
        ),
    ] {
        let ran = sidestream(&args.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, 2, "{args}");
        assert!(!ran.err.contains("-- --"), "{args}: {}", ran.err);
        assert_eq!(
            ran.err.contains("tip:"),
            tip.is_some(),
            "{args}: {}",
            ran.err
        );
        assert!(
            tip.is_none_or(|tip| ran.err.contains(tip)),
            "{args}: {}",
            ran.err
        );
    }
}

/// Files that never end are not read to their end.
#[cfg(target_os = "linux")]
#[test]
fn endless_files() {
    check(
        "overlap --device sim:/dev/zero",
        &["/dev/zero is longer than 32 MiB"],
    );
    check("check /dev/zero", &["/dev/zero is neither a text file nor"]);
    check("run /dev/zero", &["/dev/zero is not a text"]);
}

#[test]
fn programs_that_break_the_format() {
    let cases = [
        (
            "{do: kernel, s: s1, w: [A], repeat: 0}",
            "field `repeat`: `0` is not within 1 to 1000000000",
        ),
        ("{do: kernel, s: s1, w: [A], repeat: -1}", "field `repeat`"),
        (
            "{do: kernel, s: s1, w: [A], repeat: 99999999999999999999}",
            "field `repeat`",
        ),
        (
            "{do: kernel, s: s1, w: [\"A[0:99999999999999999999]\"]}",
            "field `w`",
        ),
        ("{do: kernel, s: s1, w: [\"A[8:4]\"]}", "field `w`"),
        ("{do: kernel, s: s1, w: [\"A[0:1025]\"]}", "field `w`"),
        ("{do: sync_device, dev: 64}", "field `dev`"),
        ("{do: dance}", "dance"),
        ("{s: s1}", "`do`"),
        ("7", "op 0"),
    ];
    for (op, says) in cases {
        let name = file(format!("name: x\nops:\n- {op}\n"));
        let message = refused(&["run", &name]);
        says_all(&message, &[&name, "line 3, op 0", says]);
        // `check` reports the invalid program as one of its results, and goes on with other programs.
        let ran = sidestream(&["check", &name]);
        assert_eq!(
            (ran.code, ran.out, ran.err),
            (
                2,
                format!("{}\n", message.replace(": line", ": x: line")),
                String::new()
            )
        );
    }
}

#[test]
fn programs_that_are_too_large_for_the_device() {
    let big = |kind: &str, bytes: u64| {
        file(format!(
            "name: big\nbuffers: {{x: {{kind: {kind}, bytes: {bytes}}}}}\nops: [{{do: memset_async, s: s1, to: x}}]\n"
        ))
    };
    let device = big("dev", 200_000_000_000);
    says_all(
        &refused(&["run", &device]),
        &[
            &device,
            "program big: its device buffers take 200000000000 bytes, the device has 149250113536; use smaller buffers",
        ],
    );
    for name in [big("pinned", 1 << 48), big("dev", 100 << 30)] {
        for command in ["run", "check"] {
            let ran = sidestream(&[command, &name]);
            assert_eq!(
                (ran.code, ran.err),
                (0, String::new()),
                "{command} needs no memory for them"
            );
        }
    }
    let beyond = big("dev", (1 << 48) + 1);
    says_all(&refused(&["run", &beyond]), &[&beyond, "line 2"]);
}

#[test]
fn sixty_four_devices_are_no_trouble() {
    let streams: Vec<String> = (0..64).map(|n| format!("a{n}: nb@{n}")).collect();
    let ops: Vec<String> = (0..64)
        .map(|n| format!("- {{do: kernel, s: a{n}, w: [A{n}]}}"))
        .collect();
    let name = file(format!(
        "name: many\nstreams: {{{}}}\nops:\n{}\n",
        streams.join(", "),
        ops.join("\n")
    ));
    for command in ["run", "check"] {
        let ran = sidestream(&[command, &name]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    }
    assert!(sidestream(&["run", &name]).out.contains("  GPU 63\n"));
}

#[test]
fn traces_that_cannot_be_written() {
    let program = file("name: x\nops: []\n");
    for command in ["overlap --count 2", &format!("run {program}")] {
        check(
            &format!("{command} --trace nowhere/x.json"),
            &["--trace nowhere/x.json cannot be written: No such file"],
        );
        check(
            &format!("{command} --trace ."),
            &["--trace . cannot be written: Is a directory"],
        );
        if Path::new("/dev/full").exists() {
            check(
                &format!("{command} --trace /dev/full"),
                &["cannot write /dev/full: No space left"],
            );
        }
    }
}

/// An output whose reader has gone away, such as `head`, ends the command without a message.
#[test]
fn closed_output() {
    let names: Vec<String> = (0..20)
        .map(|n| format!("- {{name: n{n}, ops: [{{do: kernel, s: s1, w: [A]}}]}}\n"))
        .collect();
    let programs = file(format!("cases:\n{}", names.concat()));
    let run = format!("run {programs} --width 1000");
    let check = format!("check {programs}");
    for args in [
        "overlap",
        "overlap --json",
        &run,
        &check,
        "devices --sources",
        "--help",
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidestream"));
        command.args(args.split(' ')).current_dir(FOLDER);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let child = command
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args}");
        assert_eq!(output.status.code(), Some(0), "{args}");
    }
}

/// Help that cannot be written is an error like any other output.
#[test]
#[cfg(target_os = "linux")]
fn full_output() {
    for args in ["--help", "--version", "check --help", "devices"] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidestream"));
        let output = command
            .args(args.split(' '))
            .stdout(full.expect("Linux has it"))
            .stderr(Stdio::piped())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("sidestream: cannot write the output: "),
            "{args}: {said}"
        );
        assert_eq!(output.status.code(), Some(2), "{args}");
    }
}

/// Opening a pipe without a writer would block forever.
#[test]
#[cfg(unix)]
fn named_pipes() {
    let pipe = format!("{}/pipe_{}", FOLDER, std::process::id());
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    for command in ["check", "run"] {
        let message = refused(&[command, &pipe]);
        says_all(&message, &["is a named pipe", "pass `-`"]);
    }
    std::fs::remove_file(&pipe).expect("it was made");
    // What a shell makes of `<(…)` has no name.
    let mut shell = Command::new("bash");
    let script = format!(
        "{} check <(echo '{{name: x, ops: [{{do: kernel, s: s1}}]}}')",
        env!("CARGO_BIN_EXE_sidestream")
    );
    let output = shell.args(["-c", &script]).output().expect("bash");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.ends_with(": x: no race\n"), "{said}");
}

/// File names are printed in one line, even with a line break in them.
#[test]
#[cfg(unix)]
fn names_of_files() {
    let message = refused(&["check", "no\nx.yaml: x: no race\u{1b}[2K"]);
    says_all(
        &message,
        &["cannot read no\\nx.yaml: x: no race\\u{1b}[2K: "],
    );
}
