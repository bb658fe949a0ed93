//! Tests `sidestream check TEXT.md`: the code blocks in a Markdown file, each with its verdict.

use std::path::Path;

use crate::command::{FOLDER, Ran, sidestream};

fn text(name: &str, content: &str) -> String {
    std::fs::write(Path::new(FOLDER).join(name), content).expect("the folder is there");
    name.to_owned()
}

const STREAMS: &str = "\
# Notes

```yaml
name: racy
ops:
- {do: kernel, s: s1, w: [A]}
- {do: kernel, s: s2, r: [A]}
```

```yaml
on: push
```

1. In a list:
   ```yml
   name: clean
   ops:
   - {do: kernel, s: s1, w: [A]}
   ```
";

#[test]
fn stream_programs_of_a_text_are_judged_with_its_lines() {
    let name = text("streams.md", STREAMS);
    let ran = sidestream(&["check", &name]);
    assert_eq!((ran.code, ran.err.as_str()), (1, ""));
    assert!(
        ran.out
            .starts_with("streams.md:4: yaml: race\n  racy: 1 race\n"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("op 1 (line 7) on s2"), "{}", ran.out);
    assert!(
        ran.out
            .ends_with("streams.md:16: yaml: clean\n  clean: no race\n\n"),
        "{}",
        ran.out
    );
    let json = sidestream(&["check", &name, "--json"]);
    let lines: Vec<&str> = json.out.lines().collect();
    assert_eq!((json.code, lines.len()), (1, 2));
    assert!(lines[0].starts_with(
        "{\"schema\":\"sidestream.block/1\",\"line\":4,\"language\":\"yaml\",\"verdict\":\"race\",\"found\":{"
    ));
}

#[test]
fn a_block_that_breaks_the_format_has_a_verdict() {
    let name = text(
        "bad.md",
        "```yaml\nname: a\nops:\n- {do: kernel, s: fast}\n```\n",
    );
    let ran = sidestream(&["check", &name]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.out.starts_with("bad.md:2: yaml: unreadable\n") && ran.out.contains("line 4, op 0"),
        "{ran:?}"
    );
}

#[test]
fn a_text_without_programs_has_nothing_to_check() {
    let ran = sidestream(&[
        "check",
        &text("empty.md", "# Nothing\n\n```cpp\nint x;\n```\n"),
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert!(ran.err.contains("there is nothing to check"), "{ran:?}");
    let ran = sidestream(&["check", "empty.md", "--reduce", "x.yaml"]);
    assert!(
        ran.code == 2
            && ran
                .err
                .contains("work on one run; give the log or the program"),
        "{ran:?}"
    );
    std::fs::write(Path::new(FOLDER).join("latin.md"), b"caf\xe9").expect("the folder is there");
    let ran = sidestream(&["check", "latin.md"]);
    assert!(ran.code == 2 && ran.err.contains("is not UTF-8"), "{ran:?}");
}

/// Checks a Markdown file with Python programs, with a script in place of the Python package.
#[cfg(unix)]
fn with_python(name: &str, script: &str) -> Ran {
    use std::os::unix::fs::PermissionsExt;
    let python = Path::new(FOLDER).join(format!("{name}.sh"));
    std::fs::write(&python, format!("#!/bin/sh\n{script}\n")).expect("the folder is there");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let name = text(
        &format!("{name}.md"),
        &format!("```python\nx()\n```\n\n{STREAMS}"),
    );
    let python = python.to_string_lossy().into_owned();
    sidestream(&["check", &name, "--python", &python])
}

#[test]
#[cfg(unix)]
fn python_programs_are_listed_with_the_verdicts_of_the_package() {
    let says = "echo heard >&2; printf '{\"blocks\":[{\"line\":2,\"verdict\":\"open\",\"text\":\"found\\\\n\\\\n it\",\"found\":{}}]}' > \"$5\"";
    let ran = with_python(
        "among",
        &format!("test \"$3\" = --simulate && test \"$6\" = among.md && {says}"),
    );
    assert_eq!((ran.code, ran.err.as_str()), (1, ""), "{ran:?}");
    assert!(
        ran.out
            .starts_with("among.md:2: python: open\n  found\n\n   it\n\namong.md:8: yaml: race\n"),
        "{ran:?}"
    );
}

#[test]
#[cfg(unix)]
fn a_text_without_marks_is_checked_by_the_package() {
    let python = "found.sh";
    with_python(
        "found",
        "printf '{\"blocks\":[{\"line\":3,\"verdict\":\"clean\",\"text\":\"no race\",\"found\":{}}]}' > \"$5\"",
    );
    let python = Path::new(FOLDER)
        .join(python)
        .to_string_lossy()
        .into_owned();
    let bare = text("bare.md", "# Streams\n\nimport torch\nx = torch.ones(2)\n");
    let ran = sidestream(&["check", &bare, "--python", &python]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "bare.md:3: python: clean\n  no race\n\n"),
        "{ran:?}"
    );
}

#[test]
#[cfg(unix)]
fn a_python_without_the_package_is_named_with_the_remedy() {
    let ran = with_python(
        "without",
        "echo \"No module named 'sidestream'\" >&2; exit 1",
    );
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
    assert!(ran.err.contains("No module named 'sidestream'; install `sidestream` and PyTorch for it, or name another Python"), "{ran:?}");
    let ran = sidestream(&["check", "without.md", "--python", "no-such-python"]);
    assert!(
        ran.code == 2 && ran.err.contains("no-such-python cannot be run"),
        "{ran:?}"
    );
    assert!(
        ran.err
            .contains("name a Python that has the package `sidestream` with --python"),
        "{ran:?}"
    );
}
