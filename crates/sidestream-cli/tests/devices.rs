//! Tests the commands about devices without a GPU: with a file that is not a driver, or with the stand-in driver.

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
    // A user who names a driver does not want the simulated GPU instead.
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
    assert_eq!(
        names,
        [
            "sim:h200",
            "sim:h100",
            "sim:a100",
            "sim:a100-sxm",
            "sim:a10g",
            "sim:rtx4090"
        ]
    );
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
fn options_for_simulated_devices_are_refused_on_a_real_one() {
    for option in ["--trace", "--input"] {
        let refused = sidestream(&["overlap", "--device", "cuda:0", option, "file"]);
        assert_eq!((refused.code, refused.out.as_str()), (2, ""));
        assert!(refused.err.contains(option), "{}", refused.err);
        assert!(refused.err.contains("sim:h200"), "{}", refused.err);
    }
}

#[test]
fn a_measured_device_file_describes_the_device() {
    // Everything is known about a simulated device: the result must be its own file.
    let printed = sidestream(&["devices", "--profile", "h200"]).out;
    let truth: toml::Table = printed.parse().expect("TOML");
    let measured = sidestream(&["devices", "--measure", "sim:h200", "--profile", "a10g"]);
    assert_eq!((measured.code, measured.err.as_str()), (0, ""));
    let found: toml::Table = measured.out.parse().expect("TOML");
    assert_eq!(found["name"], truth["name"]);
    let mut compared = 0;
    for section in ["chip", "compute", "link", "latency", "calls"] {
        for (field, entry) in found[section].as_table().expect("a section") {
            let source = entry["source"].as_str().expect("a source");
            if source == "assumed: as on the NVIDIA A10G" {
                continue;
            }
            let number = |entry: &toml::Value| {
                let value = &entry["value"];
                value
                    .as_float()
                    .or(value.as_integer().map(|n| n as f64))
                    .expect("a number")
            };
            let (own, right) = (number(entry), number(&truth[section][field.as_str()]));
            // An allocation and a free cannot be measured separately: each is half of both.
            let near = if field.ends_with("_async_ns") {
                0.07
            } else {
                0.01
            };
            let off = (own - right).abs() / right.abs().max(f64::MIN_POSITIVE);
            assert!(
                off < near,
                "{section}.{field}: {own}, and it is {right} ({source})"
            );
            compared += 1;
        }
    }
    assert!(compared >= 29, "{compared} figures were measured");
    assert!(
        found.get("tensor").is_none(),
        "peaks by type are another device's"
    );
}

#[test]
fn devices_that_cannot_be_measured_are_refused() {
    for (device, why) in [
        ("gpu", "\"gpu\""),
        ("sim:nothing", "\"nothing\""),
        ("cuda:0", "/nowhere/libcuda.so"),
        (
            "cuda:0",
            "needs neither: `sidestream devices --measure sim:h200`\n",
        ),
    ] {
        let driver = ["--driver", "/nowhere/libcuda.so"];
        let driver = if device == "cuda:0" { &driver[..] } else { &[] };
        let refused = sidestream(&[&["devices", "--measure", device][..], driver].concat());
        assert_eq!((refused.code, refused.out.as_str()), (2, ""), "{device}");
        assert!(refused.err.contains(why), "{}", refused.err);
    }
}
