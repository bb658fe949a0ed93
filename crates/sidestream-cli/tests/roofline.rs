//! Tests `sidestream roofline`: the least time of work by the figures of a device.

use crate::command::sidestream;
use serde_json::Value;

#[track_caller]
fn json(arguments: &str) -> Value {
    let mut args = vec!["roofline", "--json"];
    args.extend(arguments.split(' '));
    let ran = sidestream(&args);
    assert_eq!(ran.code, 0, "{arguments}: {}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

#[test]
fn a_product_of_matrices_is_bound_by_computing_and_a_sum_by_memory() {
    let product = json("--flops 1.1e12 --bytes 4.03e8 --dtype fp16 --device sim:a100");
    assert_eq!(product["bound"], "arithmetic");
    let floor = product["floor_ns"].as_f64().expect("a number");
    assert!(
        (floor / (1.1e12 / 312e12 * 1e9) - 1.0).abs() < 1e-9,
        "{floor}"
    );
    let ridge = product["ridge"].as_f64().expect("a number");
    assert!((ridge - 312e12 / 1935e9).abs() < 1e-6, "{ridge}");
    let sum = json("--flops 1e9 --bytes 1.2e10");
    assert_eq!(
        (&sum["bound"], &sum["dtype"]),
        (&"memory".into(), &"fp32".into())
    );
    assert_eq!(sum["floor_ns"], 2.5e6);
}

#[test]
fn it_says_where_the_peak_comes_from_and_what_was_reached() {
    let asked = "roofline --flops 1e12 --bytes 1e9 --dtype bf16 --measured-ms 2";
    let ran = sidestream(&asked.split(' ').collect::<Vec<_>>());
    let expected = "\
1 TFLOP in bf16 and 1 GB on a simulated NVIDIA H200

  computing        1.011 ms   at 989.4 TFLOP/s (NVIDIA H100 architecture whitepaper (same die), without sparsity)
  memory          208.33 µs   at 4.8 TB/s
  intensity          1000.0   operations for each byte
  ridge point         206.1   above it computing is the limit
  least time       1.011 ms   set by computing
  measured         2.000 ms   50.5 % of what the device can do
";
    assert_eq!((ran.code, ran.out.as_str()), (0, expected), "{}", ran.err);
}

#[test]
fn figures_may_have_units() {
    for (flops, bytes, are) in [
        ("3 TFLOP", "1.2 GB", (3e12, 1.2e9)),
        ("3tflops", "1.2gb", (3e12, 1.2e9)),
        ("2e3 GFLOP", "50 GiB", (2e12, 50.0 * (1u64 << 30) as f64)),
        ("5EFLOP", "512KiB", (5e18, 524288.0)),
        ("7T", " 8 ", (7e12, 8.0)),
    ] {
        let ran = sidestream(&["roofline", "--json", "--flops", flops, "--bytes", bytes]);
        let said: Value = serde_json::from_str(&ran.out).expect(&ran.err);
        let said = (said["flops"].as_f64(), said["bytes"].as_f64());
        assert_eq!(said, (Some(are.0), Some(are.1)), "{flops} {bytes}");
    }
}

#[test]
fn arguments_are_refused_with_the_valid_ones() {
    for (arguments, why) in [
        (
            "--flops 1 --bytes 1 --dtype fp8 --device sim:a10g",
            "no peak in fp8; it has fp32, tf32, bf16, fp16, int8",
        ),
        (
            "--flops 1 --bytes 1 --dtype fp4",
            "choose from fp64, fp32, tf32, bf16, fp16, fp8, int8",
        ),
        ("--flops -1 --bytes 1", "give a number above 0"),
        (
            "--flops 0TFLOP --bytes 1",
            "\"0TFLOP\" is not an amount; give a number above 0, such as 2.1e12 or 2.1TFLOP",
        ),
        ("--flops many --bytes 1", "\"many\" is not an amount"),
        ("--flops inf --bytes 1", "\"inf\" is not an amount"),
        (
            "--flops 3GB --bytes 1",
            "\"GB\" is not a unit of operations; use FLOP, kFLOP, MFLOP, GFLOP, TFLOP, PFLOP or EFLOP",
        ),
        (
            "--flops 3TFLOP/s --bytes 1",
            "\"TFLOP/s\" is a rate; give the total of the work",
        ),
        ("--flops 1 --bytes 4.8TB/s", "\"TB/s\" is a rate"),
        (
            "--flops 1 --bytes 4G",
            "\"G\" is not a unit of bytes; use B, kB, MB, GB or TB (by 1000), or KiB, MiB, GiB or TiB (by 1024)",
        ),
        (
            "--flops 1 --bytes 1 --measured-ms 2s",
            "\"2s\" is not a time; give a number of milliseconds above 0",
        ),
        ("--flops 1", "--bytes"),
        (
            "--flops 1 --bytes 1 --device sim:none",
            "no simulated GPU is called \"none\"",
        ),
    ] {
        let mut args = vec!["roofline"];
        args.extend(arguments.split(' '));
        let ran = sidestream(&args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{arguments}");
        assert!(ran.err.contains(why), "{arguments}: {}", ran.err);
    }
}

#[test]
fn a_description_may_leave_the_peaks_out_and_may_not_misspell_them() {
    let whole = sidestream(&["devices", "--profile", "a100"]).out;
    let path = std::env::temp_dir().join(format!("sidestream-peaks-{}.toml", std::process::id()));
    let device = format!("sim:{}", path.display());
    let asked = |text: String, dtype: &str| {
        std::fs::write(&path, text).expect("a file");
        let work = ["--flops", "1e12", "--bytes", "1e9", "--dtype", dtype];
        sidestream(&[&["roofline", "--device", &device] as &[&str], &work].concat())
    };
    let without = |of: &str| {
        let lines = whole.lines().filter(|line| !line.contains(of));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    // Without the section, only the peak of single precision is known.
    let (head, rest) = whole.split_once("[tensor]").expect("it has one");
    let (_, tail) = rest.split_once("[compute]").expect("it has one");
    let none = format!("{head}[compute]{tail}");
    assert_eq!(asked(none.clone(), "fp32").code, 0);
    assert!(
        asked(none, "fp16")
            .err
            .contains("has no peak in fp16; it has fp32,")
    );
    let some = without("fp16_tflops");
    let ran = asked(some, "fp16");
    assert!(
        ran.err
            .contains("has no peak in fp16; it has fp64, fp32, tf32, bf16, int8"),
        "{}",
        ran.err
    );
    let wrong = whole.replace("fp16_tflops", "fp17_tflops");
    assert!(
        asked(wrong, "fp32")
            .err
            .contains("`tensor.fp17_tflops`: is not a key of [tensor]")
    );
    let wrong = whole.replace(
        "fp16_tflops = { value = 312",
        "fp16_tflops = { value = -312",
    );
    assert!(asked(wrong, "fp32").err.contains("tensor.fp16_tflops"));
    assert_eq!(asked(whole.clone(), "fp16").code, 0);
    std::fs::remove_file(&path).expect("it is there");
}
