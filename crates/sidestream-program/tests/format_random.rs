//! Generated texts: random programs and damaged ones.

use std::path::Path;

use sidestream::sim::split_mix;
use sidestream_program::{Document, Limits, Program, parse, parse_bytes, write};

/// A random number generator; every choice of a run follows from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        (split_mix(&mut self.0) % sides as u64) as usize
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.roll(of.len())]
    }
}

/// Writing and reading again changes only the lines.
fn survives_writing(document: &Document) {
    let good = document
        .programs
        .iter()
        .filter_map(|program| program.as_ref().ok());
    let good: Vec<&Program> = good.collect();
    let text = write(&good);
    let back = parse(&text, &Limits::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(back.programs.len(), good.len(), "{text}");
    for (back, program) in back.programs.into_iter().zip(good) {
        let mut back = back.unwrap_or_else(|bad| panic!("{bad}\n{text}"));
        let mut program = program.clone();
        back.forget_lines();
        program.forget_lines();
        assert_eq!(back, program, "{text}");
    }
}

/// Returns a field of the format with a valid value.
fn field(dice: &mut Dice, key: &str) -> String {
    let device = [
        "A",
        "\"A[0:64]\"",
        "\"B7[8:8]\"",
        "H",
        "P2",
        "M",
        "big",
        "\"big[1024:4096]\"",
    ];
    let host = ["H", "\"H[0:1]\"", "P2", "M3", "\"M[100:1024]\""];
    let value = match key {
        "s" | "st" | "src" | "first" | "last" => dice.pick(&["s0", "s7", "s99", "y", "on1"]),
        "from" | "to" => dice.pick(&device),
        // A buffer that has room for every other one.
        "over" => dice.pick(&["big", "\"big[0:4096]\""]),
        "r" | "w" | "may_write" | "atomic" => {
            let lists = ["[]", "[A]", "[A, \"A[0:64]\", big]", "[M, H, B7]"];
            dice.pick(&lists)
        }
        "hr" | "hw" => return format!("{}: [{}]", &key[1..], dice.pick(&host)),
        "hbuf" => return format!("buf: {}", dice.pick(&host)),
        "buf" | "must_alias" | "must_not_alias" => dice.pick(&["A", "B7", "H", "big", "M3"]),
        "ev" | "a" | "b" => dice.pick(&["e", "timed", "off", "null"]),
        "flag" | "sets" | "at" => dice.pick(&["f", "g"]),
        "g" | "t" | "site" => dice.pick(&["t0", "u", "loop_1"]),
        "source" => dice.pick(&["stream", "during_call", "any"]),
        "when" => dice.pick(&["geq", "eq", "and", "nor"]),
        "ready" | "programmatic" | "unfenced" | "after_events" => dice.pick(&["true", "false"]),
        "dev" | "peer" => dice.pick(&["0", "1", "63"]),
        "blocks" | "count" | "repeat" | "value" => dice.pick(&["1", "2", "34"]),
        other => panic!("no value for {other}"),
    };
    format!("{key}: {value}")
}

/// Every op of the format; `hr`, `hw` and `hbuf` are host accesses.
const OPS: [&str; 45] = [
    "kernel s r? w? may_write? atomic? repeat? programmatic?",
    "copy_async s from to",
    "copy_batch s from to source?",
    "copy_peer s from to peer",
    "memset_async s to",
    "copy from to",
    "memset to",
    "host_func s hr? hw? sets?",
    "graph_launch s g r? w? may_write? atomic?",
    "record ev s",
    "wait s ev",
    "write_value s at value unfenced?",
    "wait_value s at value when?",
    "wait_outside s?",
    "wait_stream s src",
    "sync_stream st",
    "sync_event ev",
    "sync_device dev?",
    "query_stream st ready?",
    "query_event ev ready?",
    "set_flag flag",
    "wait_flag flag",
    "host_read hbuf",
    "host_write hbuf",
    "alloc buf s? over? after_events? must_alias? must_not_alias?",
    "free buf",
    "record_stream buf st",
    "malloc_async buf s",
    "free_async buf s",
    "cuda_malloc buf",
    "cuda_free buf",
    "free_pinned buf",
    "unregister buf",
    "elapsed a b",
    "create_event ev",
    "destroy_event ev",
    "create_stream st",
    "destroy_stream st",
    "set_device dev",
    "begin_capture s",
    "end_capture s",
    "sim_hold st",
    "sim_release st",
    "set_capacity blocks",
    "pool_get count first last",
];

fn random_program(dice: &mut Dice, name: usize) -> String {
    let mut text =
        format!("{{name: p{name}, streams: {{y: {{kind: nb@2, priority: -7}}, on1: nb}}, ");
    text.push_str(
        "buffers: {big: {kind: managed, bytes: 4096}}, events: {off: no_timing, timed: dev1}, ",
    );
    if dice.roll(2) == 0 {
        text.push_str(
            "level: runtime, rules: [R8, 31], note: \"a \\\" b\\n\\u2028 é # {\", from: , ",
        );
    }
    let expects = [
        "",
        "expect: {v: clean, lint: [SYNC_IN_LOOP]}, ",
        "expect: {v: race, severity: warn, must: [[RAW, A, 0, 1], [TIMING, null, 0, 1]], distinct: 4}, ",
        "expect: {v: error, at: 1, code: CapturedEvent}, ",
        "expect: {v: error, at: null, code: BadProgram}, ",
    ];
    text.push_str(dice.pick(&expects));
    text.push_str("ops: [{do: set_flag, flag: f}, {do: set_flag, flag: g}");
    for _ in 0..dice.roll(40) {
        let mut words = OPS[dice.roll(OPS.len())].split(' ');
        text.push_str(", {do: ");
        text.push_str(words.next().unwrap());
        for word in words.chain(["t?", "site?"]) {
            let key = word.trim_end_matches('?');
            if key == word || dice.roll(2) == 0 {
                text.push_str(", ");
                text.push_str(&field(dice, key));
            }
        }
        text.push('}');
    }
    text.push_str("]}");
    text
}

#[test]
fn random_programs_survive_writing() {
    for seed in 0..2_000 {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let count = 1 + dice.roll(3);
        let cases: Vec<_> = (0..count)
            .map(|name| random_program(&mut dice, name))
            .collect();
        let text = format!("cases: [{}]", cases.join(",\n"));
        let document = parse(&text, &Limits::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for program in &document.programs {
            if let Err(bad) = program {
                panic!("{bad}\n{text}");
            }
        }
        assert_eq!(document.programs.len(), count);
        survives_writing(&document);
    }
}

#[test]
fn every_op_is_read_and_written() {
    for op in OPS {
        println!("{op}");
        let page = include_str!("../../../docs/reference/stream-programs.md");
        assert!(page.contains(&format!("`{}`", op.split(' ').next().unwrap())));
        let mut dice = Dice(0);
        let mut words = op.split(' ');
        let verb = words.next().unwrap();
        let fields: Vec<_> = words
            .map(|key| field(&mut dice, key.trim_end_matches('?')))
            .collect();
        let text = format!(
            "{{name: x, streams: {{y: nb, on1: nb}}, buffers: {{big: {{kind: dev, bytes: 4096}}}}, \
             ops: [{{do: set_flag, flag: f}}, {{do: set_flag, flag: g}}, {{do: {verb}{}{}}}]}}",
            if fields.is_empty() { "" } else { ", " },
            fields.join(", ")
        );
        let document = parse(&text, &Limits::default()).unwrap();
        let program = document.programs[0]
            .as_ref()
            .unwrap_or_else(|bad| panic!("{bad}\n{text}"));
        assert_eq!(program.ops[2].verb.name(), verb);
        survives_writing(&document);
    }
}

#[test]
fn damaged_programs_are_refused_with_a_message() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/litmus");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    let texts: Vec<Vec<u8>> = files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect();
    let pieces: [&[u8]; 20] = [
        b"[",
        b"]",
        b"{",
        b"}",
        b"- ",
        b": ",
        b"&a ",
        b"*a",
        b"\n",
        b"\t",
        b"\"",
        b"'",
        b"|\n",
        b"#",
        b"\xff",
        b"---\n",
        b"!!str ",
        b"? ",
        b"99999999999999999999",
        b"null",
    ];
    let seed = 0x5eed;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let (mut refused, mut bad, mut good) = (0, 0, 0);
    for round in 0..20_000 {
        let mut text = texts[dice.roll(texts.len())].clone();
        for _ in 0..=dice.roll(4) {
            let from = dice.roll(text.len() + 1);
            let to = (from + dice.roll(6)).min(text.len());
            let other = &texts[dice.roll(texts.len())];
            let start = dice.roll(other.len());
            let end = (start + dice.roll(40)).min(other.len());
            let piece = match dice.roll(4) {
                0 => Vec::new(),
                1 => other[start..end].to_vec(),
                _ => pieces[dice.roll(pieces.len())].to_vec(),
            };
            text.splice(from..to, piece);
        }
        let read = std::panic::catch_unwind(|| parse_bytes(&text, &Limits::default()));
        let Ok(read) = read else {
            panic!(
                "round {round} panicked on\n{}",
                String::from_utf8_lossy(&text)
            );
        };
        match read {
            Err(error) => {
                refused += 1;
                assert!(error.line > 0 && error.column > 0 && !error.message.is_empty());
            }
            Ok(document) => {
                for program in &document.programs {
                    match program {
                        Ok(_) => good += 1,
                        Err(fault) => {
                            bad += 1;
                            assert!(
                                fault.line > 0 && !fault.to_string().contains('\n'),
                                "{fault}"
                            );
                        }
                    }
                }
                survives_writing(&document);
            }
        }
    }
    println!("{refused} no documents, {bad} bad programs, {good} programs");
    // Otherwise the damage does not test anything.
    assert!(
        refused > 2_000 && bad > 2_000 && good > 1_900,
        "{refused} {bad} {good}"
    );
}
