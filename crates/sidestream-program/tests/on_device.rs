//! Programs through the explicit style of the library, on simulated devices.

use std::collections::BTreeMap;
use std::path::Path;

use sidestream::device::{Device, Options};
use sidestream::sim::Schedule;
use sidestream_program::{
    Limits, NotOnDevice, OnDevice, Plan, Program, check, differing, parse, run_on,
};

fn program(text: &str) -> Program {
    let mut document = parse(text, &Limits::default()).expect("a document");
    document.programs.remove(0).expect("follows the format")
}

fn ran(plan: &Plan<'_>, schedule: Schedule) -> OnDevice {
    let options = Options::new().schedule(schedule).notice(|_| ());
    let devices = Device::open_all(&vec!["sim:h200"; plan.devices()], &options).unwrap();
    run_on(plan, &devices).expect("it runs")
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let program = program(text);
    let why: NotOnDevice = Plan::of(&program).map(drop).unwrap_err();
    assert_eq!(why.to_string(), expected);
}

/// Every file of `examples/streams`.
fn examples() -> BTreeMap<String, Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/streams");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut programs = BTreeMap::new();
    for path in files {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        programs.insert(name, program(&std::fs::read_to_string(&path).unwrap()));
    }
    programs
}

#[test]
fn programs_without_a_race_compute_the_same_in_every_order() {
    let (mut compared, mut outside) = (0, Vec::new());
    for (name, program) in examples() {
        let plan = match Plan::of(&program) {
            Ok(plan) => plan,
            Err(why) => {
                outside.push(format!("{name}: {why}"));
                continue;
            }
        };
        let usual = ran(&plan, Schedule::InOrder);
        let late = ran(&plan, Schedule::Adversarial);
        assert!(!usual.results.is_empty(), "{name}");
        if check(&program).report.races.is_empty() {
            assert_eq!(differing(&usual, &late), Vec::<&_>::new(), "{name}");
            compared += 1;
        }
    }
    println!("{compared} {outside:#?}");
}
