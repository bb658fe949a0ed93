//! Valid and invalid stream programs: text in, one line out.

use sidestream::op::DeviceId;
use sidestream_program::{Expected, Limits, Origin, Program, Verb, parse, parse_bytes};

/// Returns the reader's answer: for each program `ok` or a one-line message; or what is wrong with the whole text.
fn said(text: &str) -> String {
    match parse(text, &Limits::default()) {
        Err(error) => format!("not a document: {error}"),
        Ok(document) => {
            let lines = document.programs.iter().map(|program| match program {
                Ok(_) => "ok".to_owned(),
                Err(bad) => bad.to_string(),
            });
            lines.collect::<Vec<_>>().join("\n")
        }
    }
}

#[track_caller]
fn check(text: &str, expected: &str) {
    let said = said(text);
    assert_eq!(said, expected, "\nfor the text\n{text}");
}

/// Checks one op, at line 1, in a program without declarations.
#[track_caller]
fn check_op(op: &str, expected: &str) {
    check(&format!("{{name: x, ops: [{op}]}}"), expected);
}

/// Checks the keys besides `name` and `ops`.
#[track_caller]
fn check_key(key: &str, expected: &str) {
    check(
        &format!("{{name: x, ops: [{{do: kernel, s: s1}}, {{do: kernel, s: s1}}], {key}}}"),
        expected,
    );
}

fn program(text: &str) -> Program {
    let mut document = parse(text, &Limits::default()).unwrap_or_else(|error| panic!("{error}"));
    document
        .programs
        .remove(0)
        .unwrap_or_else(|bad| panic!("{bad}"))
}

#[test]
fn ops_that_break_the_format() {
    check_op(
        "{do: kernal, s: s1}",
        "line 1, op 0 (`kernal`), field `do`: `kernal` is not an op; did you mean `kernel`?",
    );
    check_op(
        "{do: x1}",
        "line 1, op 0 (`x1`), field `do`: `x1` is not an op; docs/reference/stream-programs.md lists the ops",
    );
    check_op(
        "{s: s1}",
        "line 1, op 0, field `do`: `do` is missing; say which call the op is, as in `do: kernel`",
    );
    check_op(
        "kernel",
        "line 1, op 0: `kernel` is given where an op, a mapping with `do`, is expected",
    );
    check_op(
        "{do: kernel, stream: s1}",
        "line 1, op 0 (`kernel`), field `stream`: `stream` is not known here; `kernel` takes `s`, `r`, `w`, `may_write`, `atomic`, `repeat`, `programmatic`, `t`, `site`",
    );
    check_op(
        "{do: wait, s: s1}",
        "line 1, op 0 (`wait`), field `ev`: this field is missing; `wait` takes `s`, `ev`, `t`, `site`",
    );
    check_op(
        "{do: wait, s: s1, ev: e, s: s2}",
        "line 1, op 0 (`wait`), field `s`: this key appears twice in one mapping; remove one",
    );
    check_op(
        "{do: copy_async, s: s1, from: H, to: x9}",
        "line 1, op 0 (`copy_async`), field `to`: buffer `x9` is not declared; declare it under `buffers:` or use one capital letter and digits",
    );
    for name in ["s100", "s01", "s", "S1", "b"] {
        check_op(
            &format!("{{do: sync_stream, st: {name}}}"),
            &format!(
                "line 1, op 0 (`sync_stream`), field `st`: stream `{name}` is not declared; declare it under `streams:` or use `s0` to `s99`"
            ),
        );
    }
    check_op(
        "{do: kernel, s: s1, r: A}",
        "line 1, op 0 (`kernel`), field `r`: `A` is given where a list of accesses is expected; write it in brackets, `[…]`",
    );
    check_op(
        "{do: memset, to: \"A[0:1025]\"}",
        "line 1, op 0 (`memset`), field `to`: bytes 0:1025 are outside `A`, which has 1024; declare its `bytes` or use a smaller range",
    );
    check_op(
        "{do: memset, to: \"A[8:4]\"}",
        "line 1, op 0 (`memset`), field `to`: the range 8:4 ends before it starts; write the lower byte first",
    );
    for range in [
        "A[0:4", "A[:4]", "A[0-4]", "A[-1:4]", "A[0:+4]", "A[0:4]x", "A[0: 4]", "[0:4]",
    ] {
        check_op(
            &format!("{{do: memset, to: \"{range}\"}}"),
            &format!(
                "line 1, op 0 (`memset`), field `to`: the text \"{range}\" is not an access; write a buffer or a range of its bytes, as in \"A[0:64]\""
            ),
        );
    }
    check_op(
        "{do: free, buf: \"A[0:4]\"}",
        "line 1, op 0 (`free`), field `buf`: this call applies to all of `A`; leave out the range",
    );
    check_op(
        "{do: host_read, buf: A}",
        "line 1, op 0 (`host_read`), field `buf`: the host cannot reach `A`, which is device memory; copy it to pinned memory, or declare it `managed`",
    );
    check_op(
        "{do: host_func, s: s1, w: [A]}",
        "line 1, op 0 (`host_func`), field `w`: the host cannot reach `A`, which is device memory; copy it to pinned memory, or declare it `managed`",
    );
    check_op(
        "{do: wait_flag, flag: f}, {do: set_flag, flag: f}",
        "line 1, op 0 (`wait_flag`), field `flag`: no op further up raises flag `f`; list the `set_flag` or the `host_func` that `sets` it before this wait",
    );
    check_op(
        "{do: query_event, ev: e, ready: yes}",
        "line 1, op 0 (`query_event`), field `ready`: `yes` is neither `true` nor `false`",
    );
    check_op(
        "{do: kernel, s: s1}, {do: kernel, s: p}, {do: pool_get, count: 2, first: p, last: q}",
        "line 1, op 1 (`kernel`), field `s`: stream `p` is not declared; declare it under `streams:` or use `s0` to `s99`",
    );
    check_op(
        "{do: kernel, s: s-1}",
        "line 1, op 0 (`kernel`), field `s`: `s-1` is not a name; use a letter, then letters, digits and `_`, 255 at most",
    );
    check(
        "name: x\nstreams: {b: blk}\nops:\n- do: kernel\n  s: b\n- {do: pool_get, count: 1, first: b, last: c}\n",
        "line 6, op 1 (`pool_get`), field `first`: `b` is declared `blk`, but streams of the pool are `nb`; use another name",
    );
}

#[test]
fn numbers_are_whole_plain_and_within_bounds() {
    let repeat = |number: &str| {
        said(&format!(
            "{{name: x, ops: [{{do: kernel, s: s1, repeat: {number}}}]}}"
        ))
    };
    for good in ["1", "+4", "007", "0x10", "0o17", "1000000000"] {
        assert_eq!(repeat(good), "ok", "{good}");
    }
    let outside = |number: &str| {
        format!("line 1, op 0 (`kernel`), field `repeat`: `{number}` is not within 1 to 1000000000")
    };
    let huge = "340282366920938463463374607431768211456";
    for bad in ["0", "-1", "1000000001", "18446744073709551616", huge, "-0"] {
        assert_eq!(repeat(bad), outside(bad));
    }
    for bad in ["1.0", "1e3", ".nan", ".inf", "1_000", "0x", "four", "--1"] {
        let says = format!(
            "line 1, op 0 (`kernel`), field `repeat`: `{bad}` is not a whole number; write digits, without quotes"
        );
        assert_eq!(repeat(bad), says);
    }
    assert!(
        repeat("\"4\"")
            .ends_with("the text \"4\" is not a whole number; write digits, without quotes")
    );
    assert!(repeat("").ends_with("nothing is not a whole number; write digits, without quotes"));
    check_op(
        "{do: set_device, dev: 64}",
        "line 1, op 0 (`set_device`), field `dev`: `64` is not within 0 to 63",
    );
    check_op(
        "{do: memset, to: \"A[99999999999999999999:99999999999999999999]\"}",
        "line 1, op 0 (`memset`), field `to`: bytes 18446744073709551615:18446744073709551615 are outside `A`, which has 1024; declare its `bytes` or use a smaller range",
    );
    check_key(
        "buffers: {big: {kind: dev, bytes: 281474976710657}}",
        "line 1, key `bytes`: `281474976710657` is not within 0 to 281474976710656",
    );
}

#[test]
fn keys_and_declarations_that_break_the_format() {
    check(
        "{name: x}",
        "line 1, key `ops`: `ops` is missing; every program has a `name` and `ops`",
    );
    check(
        "{ops: []}",
        "line 1, key `name`: `name` is missing; every program has a `name` and `ops`",
    );
    check(
        "{name: 7, ops: []}",
        "line 1, key `name`: `7` is not a name; use a letter, then letters, digits and `_`, 255 at most",
    );
    check(
        "{name: x, ops: }",
        "line 1, key `ops`: nothing is given where a list of ops is expected; write it in brackets, `[…]`",
    );
    check_key(
        "seed: 4",
        "line 1, key `seed`: `seed` is not known here; a program has the keys version, name, level, streams, buffers, events, ops, expect, from, note, rules",
    );
    check_key(
        "name: y",
        "line 1, key `name`: this key appears twice in one mapping; remove one",
    );
    check_key(
        "version: 2",
        "line 1, key `version`: `2` is not a version of the format; this reader knows 1",
    );
    check_key(
        "level: gpu",
        "line 1, key `level`: `gpu` is not a level; use `checker` or `runtime`",
    );
    check_key(
        "streams: {b: blocking}",
        "line 1, key `streams`: `blocking` is not a kind for stream `b`; use `nb`, `blk`, `legacy` or `ptds`, with `@N` for device N, up to 63",
    );
    for kind in ["nb@", "nb@64", "nb@-1", "nb@+1", "nb@300", "@1", "nb@1@1"] {
        assert!(
            said(&format!("{{name: x, ops: [], streams: {{b: \"{kind}\"}}}}"))
                .contains("a kind for stream"),
            "{kind}"
        );
    }
    check_key(
        "streams: {d: legacy, e: legacy@1, f: legacy@1}",
        "line 1, key `streams`: `f` is the legacy stream of device 1, which is `e` already; use one name",
    );
    check_key(
        "streams: {b: nb, b: nb}",
        "line 1, key `b`: this key appears twice in one mapping; remove one",
    );
    check_key(
        "streams: [b]",
        "line 1, key `streams`: a list is given where a mapping from names to kinds is expected",
    );
    check_key(
        "streams: {b: {kind: nb, priority: high}}",
        "line 1, key `priority`: `high` is not a whole number; write digits, without quotes",
    );
    check_key(
        "streams: {b: {kind: legacy, priority: -1}}",
        "line 1, key `priority`: `b` is a default stream, whose priority is 0; give one to a stream of kind `nb` or `blk`",
    );
    check_key(
        "streams: {b: {priority: -1}}",
        "line 1, key `streams`: stream `b` has no `kind`; add one",
    );
    check_key(
        "streams: {b: {kind: nb, urgency: 1}}",
        "line 1, key `urgency`: `urgency` is not known here; stream `b` has a `kind` and `priority`",
    );
    check_key(
        "buffers: {b: host}",
        "line 1, key `buffers`: `host` is not a kind for buffer `b`; use `dev`, `pinned`, `pageable` or `managed`",
    );
    check_key(
        "buffers: {b: {bytes: 4}}",
        "line 1, key `buffers`: buffer `b` has no `kind`; add one",
    );
    check_key(
        "buffers: {b: {kind: dev, size: 4}}",
        "line 1, key `size`: `size` is not known here; buffer `b` has a `kind` and `bytes`",
    );
    check_key(
        "events: {e: timing}",
        "line 1, key `events`: `timing` is not a kind for event `e`; use `no_timing` or `devN` for device N, up to 63",
    );
    check_key(
        "rules: [R8, x]",
        "line 1, key `rules`: `x` is not the number of a rule; use 30 or R30",
    );
}

#[test]
fn expectations_that_break_the_format() {
    let at = "line 1, key `expect`: ";
    for (expect, says) in [
        ("{}", "`v` is missing; use `clean`, `race` or `error`"),
        (
            "{v: fine}",
            "`fine` is not a verdict; use `clean`, `race` or `error`",
        ),
        (
            "{v: race}",
            "`must` is missing; list the hazards, as in `must: [[RAW, A, 0, 1]]`",
        ),
        (
            "{v: race, must: [[RAW, A, 0]]}",
            "a hazard has four parts and this has 3; write [kind, buffer, first, second]",
        ),
        (
            "{v: race, must: [[RAW, A, 0, 1, 2]]}",
            "a hazard has four parts and this has 5; write [kind, buffer, first, second]",
        ),
        (
            "{v: race, must: [[RAW, A, 0, 2]]}",
            "there is no op 2; the program has 2, numbered from 0",
        ),
        (
            "{v: race, must: [[RAW, A, 1, 0]]}",
            "op 1 is not listed before op 0; the earlier op comes first",
        ),
        (
            "{v: race, must: [[RAW, b, 0, 1]]}",
            "buffer `b` is not declared; name it as op `second` does",
        ),
        (
            "{v: race, must: [[TIMING, A, 0, 1]]}",
            "a TIMING hazard has no buffer; write `null`",
        ),
        (
            "{v: race, must: [], severity: bad}",
            "`bad` is not a severity; use `warn` or `error`",
        ),
        (
            "{v: error, at: 0}",
            "`code` is missing; say how the op fails, as in `code: CapturedEvent`",
        ),
        (
            "{v: error, code: CapturedEvent}",
            "`at` is missing; give the number of the op that fails",
        ),
        (
            "{v: clean, lint: [SLOW]}",
            "`SLOW` is not a lint code; use `UNPINNED_ASYNC_COPY`, `DEFAULT_STREAM_SERIALIZATION`, `WAIT_ON_UNRECORDED_EVENT`, `SYNC_IN_LOOP`, `FOREIGN_DEVICE_LAUNCH` or `STREAM_POOL_ALIAS`",
        ),
    ] {
        check_key(&format!("expect: {expect}"), &format!("{at}{says}"));
    }
    check_key(
        "expect: {v: clean, distinct: 1}",
        "line 1, key `distinct`: `distinct` is not known here; with this verdict the keys are v, lint",
    );
    for good in [
        "{v: clean, lint: []}",
        "{v: race, must: []}",
        "{v: race, must: [[TIMING, null, 0, 1]], severity: error, distinct: 1}",
        "{v: error, at: 1, code: CapturedEvent, lint: [SYNC_IN_LOOP]}",
        "{v: error, at: null, code: BadProgram}",
    ] {
        check_key(&format!("expect: {good}"), "ok");
    }
}

#[test]
fn a_bad_program_still_says_its_name_and_what_it_expects() {
    let text = "{name: x, ops: [{do: fly}], expect: {v: error, at: 0, code: BadProgram}}";
    let document = parse(text, &Limits::default()).unwrap();
    let bad = document.programs[0].as_ref().unwrap_err();
    assert_eq!(
        (bad.name.as_deref(), bad.at, bad.line),
        (Some("x"), Some(0), 1)
    );
    let expect = bad.expect.as_ref().unwrap();
    assert!(matches!(
        expect.verdict,
        Expected::Error { at: Some(0), .. }
    ));
}

#[test]
fn cases_are_read_one_by_one() {
    check(
        "version: 1\ncases:\n- {name: a, ops: []}\n- {name: b, ops: [{do: fly}]}\n- {name: c, ops: []}\n- {name: a, ops: []}\n- 5\n",
        "ok\nline 4, op 0 (`fly`), field `do`: `fly` is not an op; docs/reference/stream-programs.md lists the ops\nok\nline 6, key `name`: a case further up has the same name; give each case a name of its own\nline 7: `5` is given where a program, a mapping with `name` and `ops`, is expected",
    );
    check("cases: []", "");
    check(
        "cases: {}",
        "not a document: line 1, column 8: a mapping is given where the list of programs under `cases` is expected",
    );
    check(
        "version: 2\ncases: [{name: a, ops: []}]",
        "line 1, key `version`: `2` is not a version of the format; this reader knows 1",
    );
    check(
        "seed: 2\ncases: [{name: a, ops: []}]",
        "line 1, key `seed`: `seed` is not known here; besides `cases`, only `version` is allowed",
    );
}

#[test]
fn names_are_strings_whatever_yaml_makes_of_them() {
    let text = "
name: on
streams: {y: nb, n: 'blk', off: ptds@3}
buffers: {null: managed, true: {kind: pinned, bytes: 0}}
ops:
- {do: kernel, s: y, w: [null], site: no}
- {do: record, ev: yes, s: !!str n}
- {do: copy_async, s: off, from: true, to: \"null\"}
- {do: set_flag, flag: ~t, t: on}
";
    check(
        text,
        "line 9, op 3 (`set_flag`), field `flag`: `~t` is not a name; use a letter, then letters, digits and `_`, 255 at most",
    );
    let program = program(&text.replace("~t", "t"));
    assert_eq!(program.name, "on");
    assert_eq!(program.streams[2].device, DeviceId(3));
    assert_eq!(program.buffers[1].size_bytes, 0);
    assert_eq!(program.threads, ["t0", "on"]);
}

#[test]
fn a_tenant_fits_its_place() {
    let with = |buffers: &str, over: &str| {
        format!(
            "name: x\nbuffers: {{{buffers}}}\nops:\n- {{do: alloc, buf: A}}\n- {{do: alloc, buf: B, over: {over}}}\n"
        )
    };
    check(
        &with("B: {kind: dev, bytes: 2048}", "A"),
        "line 5, op 1 (`alloc`), field `over`: `B` has 2048 bytes, and the place that it is put over has 1024; name a larger \
         place, or declare `B` under `buffers:` with `bytes: 1024`",
    );
    // Without a declaration the buffer has 1024 bytes.
    check(
        &with("", "\"A[0:512]\""),
        "line 5, op 1 (`alloc`), field `over`: `B` has 1024 bytes, and the place that it is put over has 512; name a larger \
         place, or declare `B` under `buffers:` with `bytes: 512`",
    );
    check(&with("B: {kind: dev, bytes: 512}", "\"A[512:1024]\""), "ok");
    check(&with("B: {kind: dev, bytes: 8}", "A"), "ok");
}

#[test]
fn unusual_but_valid_programs_are_read() {
    for op in [
        "{do: memset, to: \"A[4:4]\"}",
        "{do: memset, to: \"A[0:1024]\"}",
        "{do: alloc, buf: A, over: \"B[0:1024]\", after_events: true}",
        "{do: alloc, buf: A, must_alias: B, must_not_alias: C}",
        "{do: copy, from: H, to: \"A[0:4]\"}",
        "{do: sync_device}",
        "{do: sim_hold, st: s99}, {do: set_capacity, blocks: 0}, {do: sim_release, st: s99}",
        "{do: host_func, s: s1, sets: f}, {do: wait_flag, flag: f, t: u}",
    ] {
        check_op(op, "ok");
    }
    check(
        "--- \nname: x\nops: []\nnote:\nfrom: 4\nrules: [R8, 30]\n...\n",
        "ok",
    );
    check("&a {name: x, ops: [&k {do: kernel, s: s1}, *k, *k]}", "ok");
}

#[test]
fn streams_of_the_pool_are_on_the_current_device_of_their_thread() {
    let program = program(
        "{name: x, ops: [{do: set_device, dev: 2, t: u}, {do: pool_get, count: 3, first: p, last: q, t: u}, \
         {do: pool_get, count: 1, first: a, last: a}]}",
    );
    let streams = program.streams.iter();
    let streams: Vec<_> = streams
        .map(|s| (s.name.as_str(), s.device.0, s.origin))
        .collect();
    assert_eq!(
        streams,
        [
            ("p", 2, Origin::Pool),
            ("q", 2, Origin::Pool),
            ("a", 0, Origin::Pool)
        ]
    );
    assert_eq!(program.ops[1].verb, Verb::PoolGet);
    assert_eq!(program.ops[1].fields.number, Some(3));
}

#[test]
fn text_that_is_not_a_document() {
    let empty = "not a document: line 1, column 1: the file is empty; a program is a mapping with `name:` and `ops:`";
    check("", empty);
    check("# nothing\n", empty);
    check("\u{feff}", empty);
    let found = "is given where a program is expected; a program is a mapping with `name:` and `ops:`, several are a list under `cases:`";
    check(
        "[]",
        &format!("not a document: line 1, column 1: a list {found}"),
    );
    check(
        "hello",
        &format!("not a document: line 1, column 1: `hello` {found}"),
    );
    check(
        "name: x\nops: []\n---\nname: y\nops: []\n",
        "not a document: line 3, column 1: a second YAML document starts here; a file holds one: list several programs under `cases:`, or split the file",
    );
    check(
        "name: x\nops: [!gpu {do: kernel, s: s1}]\n",
        "not a document: line 2, column 7: the tag `!gpu` has no meaning in a stream program; remove it",
    );
    check(
        "a: &a [*a]",
        "not a document: line 1, column 8: an alias is inside the node that it refers to; write that node out",
    );
    // The first part of the message comes from the YAML parser; the remedy is ours.
    for (text, says) in [
        (
            "name: x\nops:\n\t- {do: kernel}\n",
            "indent with spaces, not tabs",
        ),
        (
            "name: x\nops:\n- {do: memset, to: A[0:4]}\n",
            "write a range in quotes: \"A[0:64]\"",
        ),
        (
            "name: x\nops: [{do: kernel\n",
            "see that quotes, brackets and indentation match",
        ),
        ("name: x\nops: [*no]\n", "not YAML: "),
    ] {
        let said = said(text);
        assert!(
            said.starts_with("not a document: line ") && said.contains(says),
            "{said}"
        );
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn line_ends_and_byte_order_marks_change_nothing() {
    let text = "name: x\nops:\n- {do: kernel, s: s1}\n- {do: fly}\n";
    let says = "line 4, op 1 (`fly`), field `do`: `fly` is not an op; docs/reference/stream-programs.md lists the ops";
    check(text, says);
    check(&text.replace('\n', "\r\n"), says);
    check(&format!("\u{feff}{text}"), says);

    let bytes = |bytes: &[u8]| parse_bytes(bytes, &Limits::default());
    assert_eq!(bytes(text.as_bytes()), parse(text, &Limits::default()));
    let error = bytes(b"name: x\nnote: \xc3\xa4 \xff\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2, column 9: the text is not UTF-8; save the file as UTF-8"
    );
}

#[test]
fn messages_stay_one_short_line() {
    let long = "z".repeat(100_000);
    for text in [
        format!("{{name: \"{long}\", ops: []}}"),
        format!("{{name: \"a\\nb\", {long}: 1, ops: []}}"),
        format!("{{name: x, ops: [{{do: \"{long}\\n\\t\\u202e\"}}]}}"),
        format!("{{name: x, ops: [{{do: kernel, s: \"{long}\"}}]}}"),
        "{name: x, ops: [], \"a\\nb\": 1}".to_owned(),
    ] {
        let said = said(&text);
        assert!(
            said.len() < 400 && !said.contains('\n') && said != "ok",
            "{said}"
        );
    }
}

#[test]
fn nothing_makes_the_reader_use_more_than_its_limits() {
    // Nine levels of nine aliases each would be half a billion nodes.
    let mut bomb = String::from("name: x\na0: &a0 [b, b, b, b, b, b, b, b, b]\n");
    for level in 1..10 {
        let alias = format!("*a{}", level - 1);
        let aliases = [alias.as_str(); 9].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let said_of_bomb = said(&bomb);
    assert!(
        said_of_bomb.contains("the document has more than 4194304 nodes, with aliases expanded"),
        "{said_of_bomb}"
    );
    let deep = ["[", "{a: ", "- "];
    for open in deep {
        let said = said(&format!("{}x", open.repeat(50_000)));
        assert!(
            said.contains("nested more than 32 deep") || said.contains("not YAML"),
            "{said}"
        );
    }
    let small = Limits {
        input_bytes: 100,
        ops: 2,
        nodes: 20,
        ..Limits::default()
    };
    let error = parse(&"#".repeat(101), &small).unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 1, column 1: the text is 101 bytes long and may be 100; split it"
    );
    let error = parse(&format!("[{}]", "x,".repeat(20)), &small).unwrap_err();
    assert!(error.message.contains("more than 20 nodes"), "{error}");
    let document = parse("{name: x, ops: [{}, {}, {}]}", &small).unwrap();
    let bad = document.programs[0].as_ref().unwrap_err();
    assert_eq!(
        bad.to_string(),
        "line 1, key `ops`: 3 ops are more than the 2 allowed"
    );
}

#[test]
fn the_page_about_the_format_is_right() {
    let page = include_str!("../../../docs/reference/stream-programs.md");
    // The kinds and the remarks are described with the checker.
    let checking = include_str!("../../../docs/guide/check.md");
    let samples: Vec<_> = page.split("```yaml\n").skip(1).collect();
    assert!(!samples.is_empty());
    for sample in samples {
        check(sample.split("```").next().unwrap(), "ok");
    }
    let limits = Limits::default();
    assert_eq!(
        (limits.input_bytes, limits.depth, limits.device),
        (32 << 20, 32, 63)
    );
    let answers = [
        ("{v: race, must: [[slip, A, 0, 1]]}", 9),
        ("{v: clean, lint: [slip]}", 6),
        ("{v: error, at: 0, code: slip}", 10),
    ];
    for (expect, words) in answers {
        let said = said(&format!("{{name: x, ops: [], expect: {expect}}}"));
        let (_, listed) = said.split_once("; use ").expect("the words are listed");
        let listed: Vec<_> = listed.split('`').skip(1).step_by(2).collect();
        assert_eq!(listed.len(), words, "{said}");
        for word in listed {
            let word = format!("`{word}`");
            let is_there = page.contains(&word) || checking.contains(&word);
            assert!(is_there, "the pages lack {word}");
        }
    }
}

/// Not a measurement: quadratic reading would take minutes here.
#[test]
fn long_programs_are_read_in_time() {
    let mut text = String::from("name: x\nbuffers: {");
    for n in 0..20_000 {
        text.push_str(&format!("b{n}: dev, "));
    }
    text.push_str("}\nstreams: {");
    for n in 0..20_000 {
        text.push_str(&format!("q{n}: nb, "));
    }
    text.push_str("}\nops:\n");
    for n in 0..20_000 {
        text.push_str(&format!(
            "- {{do: kernel, s: s{}, r: [b{n}], w: [\"A[0:64]\"]}}\n",
            n % 100
        ));
    }
    assert!(text.len() > 1 << 20);
    assert_eq!(program(&text).ops.len(), 20_000);
}
