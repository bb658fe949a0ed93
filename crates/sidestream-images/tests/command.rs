//! `sidestream-augment`: pictures in, batches out, on the simulated GPU and on the stand-in driver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// Half of the work of the usual operators; only the flip is random.
const SMALL: &str = "Resize((24, 32)) RandomHorizontalFlip()";

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("augment_{name}"))
}

const COMMAND: &str = env!("CARGO_BIN_EXE_sidestream-augment");

/// The result of a run of the command.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// Runs the command, on the simulated GPU unless the arguments name a device. Asserts that it neither panics nor is
/// ended by a signal.
#[track_caller]
fn augment(more: &[&str]) -> Ran {
    let mut command = Command::new(COMMAND);
    command.args(more).stdin(Stdio::null());
    if !more.contains(&"--device") {
        command.args(["--device", "sim:h200"]);
    }
    let folder = env!("CARGO_TARGET_TMPDIR");
    let output = command.current_dir(folder).output();
    let output = output.expect("the command was built");
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    let Some(code) = output.status.code().filter(|&code| code != 101) else {
        panic!("ended with {}:\n{out}{err}", output.status);
    };
    Ran { code, out, err }
}

#[track_caller]
fn json(more: &[&str]) -> Value {
    let ran = augment(&[more, &["--json"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Returns the header of a .npy file, and its contents.
fn npy(path: &Path) -> (String, Vec<u8>) {
    let bytes = fs::read(path).expect("the file is there");
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\0");
    let end = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = String::from_utf8(bytes[10..end].to_vec()).expect("text");
    (header.trim_end().to_owned(), bytes[end..].to_vec())
}

#[test]
fn the_output_depends_on_the_seed_and_on_nothing_else() {
    let run = |name: &str, more: &[&str]| {
        let path = file(&format!("{name}.npy"));
        let said = json(&[&["--ops", SMALL, "--in-order", "-o", shown(&path)], more].concat());
        assert_eq!(said["pictures"], 40);
        let (header, values) = npy(&path);
        assert_eq!(
            header,
            "{'descr': '|u1', 'fortran_order': False, 'shape': (40, 3, 24, 32), }"
        );
        let (header, labels) = npy(&file(&format!("{name}.labels.npy")));
        assert_eq!(
            header,
            "{'descr': '<i8', 'fortran_order': False, 'shape': (40,), }"
        );
        assert!(!file(&format!("{name}.npy.part")).exists());
        (values, labels)
    };
    let one = run("one", &["--batch", "40", "--workers", "1"]);
    let other = run("other", &["--batch", "7", "--depth", "2"]);
    assert_eq!(one, other);
    assert_eq!(one.0.len(), 40 * 3 * 24 * 32);
    // Ten pictures of each class, in the order of their names.
    assert_eq!(one.1[8 * 10], 1);
    assert_ne!(one.0, run("seed", &["--seed", "1"]).0);
}

#[test]
fn the_driver_gives_the_results_of_the_simulated_gpu() {
    let driver = sidestream_stand_in::library().expect("Cargo has built it beside this test");
    let driver = shown(&driver);
    let run = |name: &str, more: &[&str]| {
        let path = file(&format!("{name}.safetensors"));
        let ops = "RandomResizedCrop(32) ToDtype(scale=True)";
        json(&[&["--ops", ops, "--batch", "16", "-o", shown(&path)], more].concat());
        fs::read(path).expect("the file is there")
    };
    let simulated = run("simulated", &[]);
    let driven = run("driven", &["--device", "cuda:0", "--driver", driver]);
    assert_eq!(simulated, driven);
    let header = std::str::from_utf8(&simulated[8..512]).expect("text");
    let header: Value = serde_json::from_str(header).expect("JSON");
    assert_eq!(
        header["images"]["shape"],
        serde_json::json!([40, 3, 32, 32])
    );
    assert_eq!(header["labels"]["data_offsets"][1], simulated.len() - 512);
}

#[test]
fn notices_are_printed_under_its_own_name() {
    let ran = augment(&["--ops", SMALL, "--stats", "--device", "auto"]);
    let note = "sidestream-augment: `auto` is ";
    assert!(
        ran.err.lines().any(|line| line.starts_with(note)),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("sidestream: "), "{}", ran.err);
}

#[test]
fn broken_files_are_named_and_left_out_or_end_the_run() {
    let folder = file("broken");
    let _ = fs::remove_dir_all(&folder);
    for sample in sidestream_images::source::samples(3) {
        let path = folder.join(&sample.name);
        fs::create_dir_all(path.parent().expect("a class")).expect("a folder");
        let whole = sample.bytes.len();
        let kept = if sample.name == "sea/03.jpg" {
            whole / 2
        } else {
            whole
        };
        fs::write(path, &sample.bytes[..kept]).expect("a file");
    }
    let sheet = file("broken.png");
    let said = json(&[shown(&folder), "--ops", SMALL, "--sheet", shown(&sheet)]);
    assert_eq!(said["sheet"], shown(&sheet));
    assert_eq!(said["pictures"], 39);
    assert_eq!(said["of_pictures"], 40);
    assert_eq!(
        said["labels"][3],
        serde_json::json!({"label": 3, "name": "sea", "pictures": 9})
    );
    assert_eq!(said["labels"].as_array().map(Vec::len), Some(4));
    assert_eq!(
        said["broken"][0]["name"]
            .as_str()
            .map(|name| name.ends_with("sea/03.jpg")),
        Some(true)
    );
    assert_eq!(said["broken"][0]["why"], "it ends before the picture does");
    assert_eq!(
        json(&[shown(&folder), "--ops", SMALL, "--broken", "replace"])["pictures"],
        40
    );
    let path = file("failed.npy");
    let ran = augment(&[
        shown(&folder),
        "--ops",
        SMALL,
        "--broken",
        "fail",
        "-o",
        shown(&path),
    ]);
    assert_eq!(ran.code, 2);
    let begins = format!("sidestream-augment: {}", shown(&folder.join("sea/03.jpg")));
    assert!(ran.err.starts_with(&begins), "{}", ran.err);
    let text = augment(&[shown(&folder), "--ops", SMALL]).out;
    assert!(text.starts_with("39 of 40 pictures on "), "{text}");
    assert!(!path.exists() && !file("failed.npy.part").exists());
}

#[test]
fn ranks_share_the_pictures_and_a_sheet_and_figures_are_told() {
    let sheet = file("sheet.png");
    let _ = fs::remove_file(&sheet);
    let said = json(&[
        "--ops",
        "Resize((8, 8)) ToDtype(scale=True)",
        "--stats",
        "--sheet",
        shown(&sheet),
        "--rank",
        "1",
        "--world",
        "3",
        "-o",
        shown(&file("share.npy")),
    ]);
    assert_eq!(said["pictures"], 13);
    assert_eq!(
        said["labels_written"],
        shown(&file("share.rank1.labels.npy"))
    );
    assert_eq!(said["sheet"], Value::Null);
    assert!(npy(&file("share.rank1.npy")).0.contains("(13, 3, 8, 8)"));
    let mean = said["statistics"]["mean"][0].as_f64().expect("a number");
    assert!(mean > 0.1 && mean < 0.9, "{mean}");
    // Of several ranks, only the first writes the sheet.
    assert!(!sheet.exists());
    let ran = augment(&["--ops", SMALL, "--sheet", shown(&sheet)]);
    assert_eq!(&fs::read(sheet).expect("a sheet")[1..4], b"PNG");
    assert!(ran.out.starts_with("40 pictures on "), "{}", ran.out);
    assert!(
        ran.out
            .contains("On the device, simulated, a batch:\n  upload "),
        "{}",
        ran.out
    );
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_written() {
    for (more, says) in [
        (
            &["--ops", "Resize("][..],
            "--ops: augment: a value was expected at character 8",
        ),
        (&["-o", "pictures.jpg"], "end it in .npy or .safetensors"),
        (
            &["-o", "x.npy", "--dtype", "bf16"],
            "a .npy file has no bf16",
        ),
        (&["--dtype", "u8"], "leave ToDtype out"),
        (&["/there/is/no/such/folder"], "/there/is/no/such/folder"),
        (&["--slab-mib", "1", "--ops", SMALL], "--slab-mib"),
        (
            &["--ops", "Resize(64)"],
            "end with an operator that gives all of them one size",
        ),
        (&["--rank", "0"], "--world"),
    ] {
        let ran = augment(more);
        assert_eq!(ran.code, 2, "{more:?}");
        assert!(ran.err.contains(says), "{more:?}: {}", ran.err);
    }
}

/// Starts the command, which writes to `name` until a signal comes.
fn started(name: &Path, more: &[&str]) -> Child {
    let mut command = Command::new(COMMAND);
    command.args(["--device", "sim:h200", "--ops", "Resize((64, 64))"]);
    command.args([
        "--epochs",
        "100000",
        "--batch",
        "40",
        "--json",
        "-o",
        shown(name),
    ]);
    let pipes = command
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    pipes
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command was built")
}

/// Waits until the unfinished file has at least this many bytes.
fn until_written(child: &mut Child, name: &Path, bytes: u64) -> PathBuf {
    let part = PathBuf::from(format!("{}.part", shown(name)));
    while !fs::metadata(&part).is_ok_and(|about| about.len() >= bytes) {
        assert_eq!(
            child.try_wait().expect("a child"),
            None,
            "it ended before a signal"
        );
        std::thread::yield_now();
    }
    part
}

fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.expect("a shell").success());
}

#[test]
fn a_signal_leaves_whole_batches_and_nothing_unfinished() {
    for (signalled, code) in [("TERM", 143), ("INT", 130)] {
        let name = file(&format!("{signalled}.npy"));
        let mut child = started(&name, &[]);
        let part = until_written(&mut child, &name, 2 << 20);
        signal(&child, signalled);
        let ended = child.wait_with_output().expect("its output");
        assert_eq!(ended.status.code(), Some(code));
        assert!(!part.exists());
        let said: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        assert_eq!(said["interrupted"], true);
        assert_eq!(said["of_pictures"], 4_000_000);
        let pictures = said["pictures"].as_u64().expect("a number");
        assert!(pictures > 0 && pictures.is_multiple_of(40), "{pictures}");
        let (header, values) = npy(&name);
        assert!(
            header.contains(&format!("({pictures}, 3, 64, 64)")),
            "{header}"
        );
        assert_eq!(values.len() as u64, pictures * 3 * 64 * 64);
        let labels = said["labels_written"].as_str().expect("a file");
        assert_eq!(npy(Path::new(labels)).1.len() as u64, 8 * pictures);
        fs::remove_file(name).expect("the file is there");
    }
}

#[test]
fn a_second_signal_ends_a_stuck_run_and_leaves_nothing() {
    let (name, sheet) = (file("stuck.npy"), file("stuck.png"));
    // Opening a pipe that has no reader blocks.
    let pipe = format!("{}.part", shown(&sheet));
    let _ = fs::remove_file(&pipe);
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("the command").success());
    let mut child = started(&name, &["--sheet", shown(&sheet)]);
    let part = until_written(&mut child, &name, 0);
    let ended = loop {
        // Two signals at the same time count as one.
        signal(&child, "TERM");
        if let Some(ended) = child.try_wait().expect("a child") {
            break ended;
        }
    };
    assert_eq!(ended.code(), Some(143));
    assert!(!part.exists() && !name.exists());
}

#[test]
fn an_unfinished_file_is_one_runs_alone_and_overwritten_when_that_is_gone() {
    let name = file("killed.npy");
    let _ = fs::remove_file(&name);
    let mut child = started(&name, &[]);
    let part = until_written(&mut child, &name, 0);
    let small = ["--ops", SMALL, "-o", shown(&name)];
    let ran = augment(&small);
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert!(
        ran.err
            .contains("killed.npy.part: another run is writing it; wait for that"),
        "{}",
        ran.err
    );
    // The file still belongs to the run that created it.
    assert!(part.exists());
    signal(&child, "KILL");
    child.wait().expect("it ended");
    assert!(part.exists() && !name.exists());
    assert_eq!(json(&small)["pictures"], 40);
    assert_eq!(npy(&name).1.len(), 40 * 3 * 24 * 32);
    assert!(!part.exists());
}

#[test]
fn a_full_disk_is_named_and_nothing_is_taken_for_whole() {
    let folder = file("full");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    // The shell limits files to a few kilobytes, and a write beyond that returns an error instead of ending the
    // process.
    let limited = |more: &[&str]| {
        let script = "trap '' XFSZ; ulimit -f 32; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, COMMAND]);
        command
            .args(["--device", "sim:h200", "--ops", SMALL])
            .args(more);
        command.output().expect("a shell")
    };
    for name in ["x.npy", "x.safetensors", "sheet.png"] {
        let path = folder.join(name);
        let option = if name == "sheet.png" { "--sheet" } else { "-o" };
        let ran = limited(&[option, shown(&path)]);
        let err = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{name}: {err}");
        assert!(
            err.contains(&format!("cannot write {}", shown(&path))),
            "{err}"
        );
        assert!(
            err.contains("nothing of it is kept: make room, or write elsewhere"),
            "{err}"
        );
    }
    let left = fs::read_dir(&folder).expect("the folder").count();
    assert_eq!(left, 0);
}

#[test]
fn the_guide_shows_what_is_printed() {
    let page = include_str!("../../../docs/guide/images.md");
    let block = page.split("\n```").find_map(|block| {
        let (command, shown) = block.trim_start().split_once('\n')?;
        Some((command.strip_prefix("$ sidestream-augment ")?, shown))
    });
    let (args, shown) = block.expect("it shows the command");
    let ran = augment(&args.split_whitespace().collect::<Vec<_>>());
    let lines: Vec<_> = shown.lines().filter(|line| *line != "…").collect();
    assert!(lines.len() > 3, "{shown}");
    for line in lines {
        let is_printed = ran.out.lines().any(|printed| printed == line);
        assert!(is_printed, "{line}\nis none of these:\n{}", ran.out);
    }
}
