//! What the README shows is what the command prints.

use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn the_readme_shows_real_output() {
    let readme = std::fs::read_to_string(format!("{ROOT}/README.md")).expect("the README is there");
    let fenced = readme.split("\n```").skip(1).step_by(2);
    // A fence that names a language holds no output.
    let blocks = fenced.filter_map(|block| block.strip_prefix('\n'));
    let mut compared = 0;
    let mut compare = |block: &str, args: &[&str]| {
        let printed = run(args);
        // An ellipsis stands for what is left out.
        for line in block
            .lines()
            .filter(|line| !line.starts_with("$ ") && *line != "…")
        {
            assert!(
                printed.lines().any(|l| l == line),
                "{args:?} does not print this line:\n{line}\nbut this:\n{printed}"
            );
            compared += 1;
        }
    };
    for block in blocks {
        match block.lines().next() {
            Some(command) if command.starts_with("$ sidestream ") => {
                let args: Vec<&str> = command.split_whitespace().skip(2).collect();
                compare(block, &args);
            }
            // The two timelines at the top.
            Some(_) if block.contains("(compute)") => compare(block, &["overlap"]),
            _ => {}
        }
    }
    assert!(compared > 25, "only {compared} lines were compared");
}

fn run(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sidestream"))
        .args(args)
        .current_dir(ROOT)
        .output()
        .expect("the command starts");
    String::from_utf8(output.stdout).expect("text")
}
