//! Where there is no GPU, a driver that is none, or a stand-in for one: what the commands say of devices.

use serde_json::Value;

use crate::command::sidestream;

#[test]
fn other_commands_say_so_too() {
    let driver = ["--driver", "/nowhere/libcuda.so"];
    let overlap = sidestream(&[&["overlap", "--device", "cuda"][..], &driver].concat());
    assert_eq!((overlap.code, overlap.out.as_str()), (2, ""));
    assert!(
        overlap.err.contains("/nowhere/libcuda.so"),
        "{}",
        overlap.err
    );

    let auto = sidestream(&[&["overlap", "--device", "auto"][..], &driver].concat());
    // Whoever names a driver does not want the simulation in its place.
    assert_eq!((auto.code, auto.out.as_str()), (2, ""));
    assert!(auto.err.contains("/nowhere/libcuda.so"), "{}", auto.err);

    let devices = sidestream(&[&["devices"][..], &driver].concat());
    assert_eq!((devices.code, devices.err.as_str()), (0, ""));
    let why = devices
        .out
        .lines()
        .find(|line| line.starts_with("No CUDA device: "));
    let why = why.expect("it says why");
    assert!(why.contains("/nowhere/libcuda.so"), "{why}");
    let json: Value =
        serde_json::from_str(&sidestream(&[&["devices", "--json"][..], &driver].concat()).out)
            .expect("JSON");
    assert!(
        json["no_cuda_because"]
            .as_str()
            .is_some_and(|why| why.contains("/nowhere"))
    );
    let names = json["devices"].as_array().expect("a list").iter();
    let names: Vec<&str> = names
        .map(|device| device["name"].as_str().expect("a text"))
        .collect();
    assert_eq!(names, ["sim:h200", "sim:a100", "sim:a10g", "sim:rtx4090"]);
}

#[test]
fn devices_say_the_range_of_priorities() {
    let driver = sidestream_stand_in::library().expect("Cargo has built it beside this test");
    let driver = driver.to_str().expect("a path in UTF-8");
    let listed = sidestream(&["devices", "--json", "--driver", driver]);
    let json: Value = serde_json::from_str(&listed.out).expect("JSON");
    for device in json["devices"].as_array().expect("a list") {
        assert_eq!(device["priorities"], serde_json::json!([-5, 0]), "{device}");
    }
    let table = sidestream(&["devices", "--driver", driver]).out;
    let real = table.lines().find(|line| line.starts_with("cuda:0"));
    assert!(
        real.is_some_and(|line| line.ends_with("-5 to 0")),
        "{table}"
    );
}

#[test]
fn what_only_a_simulated_device_can_do_is_refused_on_a_real_one() {
    for option in ["--trace", "--input"] {
        let refused = sidestream(&["overlap", "--device", "cuda:0", option, "file"]);
        assert_eq!((refused.code, refused.out.as_str()), (2, ""));
        assert!(refused.err.contains(option), "{}", refused.err);
        assert!(refused.err.contains("sim:h200"), "{}", refused.err);
    }
}
