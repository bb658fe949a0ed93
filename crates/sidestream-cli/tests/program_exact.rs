//! Tests what is reported of kernels whose accesses were heard to the byte, from the words that a program would write.

use sidestream_inject::calls::CALLS;
use sidestream_inject::wire::{Head, MAX_WORDS, Tag};

/// The first address of memory of 64 KiB.
const MEMORY: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 1 << 16;
/// Streams that wait for nothing by themselves.
const STREAMS: [u64; 2] = [0x5001, 0x5002];
const KERNELS: [u64; 2] = [0xa0, 0xb0];

const READ: u64 = 0;
const WRITE: u64 = 1 << 60;
const ATOMIC: u64 = 2 << 60;
const EARLY: u64 = 4 << 60;
const MORE: u64 = 1 << 63;
const INCOMPLETE: u64 = 1 << 62;
const STORES: u64 = 1 << 60;
const LOADS: u64 = 1 << 59;
const EARLIER: u64 = 1 << 58;

/// What a process writes into its ring.
struct RingWords(Vec<u64>);

impl RingWords {
    /// A process with memory and two streams.
    fn new() -> RingWords {
        let mut words = RingWords(Vec::new());
        for (kernel, name) in KERNELS.into_iter().zip(["first", "second"]) {
            let mut bytes = [0; 8];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            let rest = [kernel, u64::from_le_bytes(bytes)];
            words.record(Tag::Kernel, name.len() as u16, &rest);
        }
        words.alloc(MEMORY);
        for stream in STREAMS {
            words.call("cuStreamCreate", &[0, 1, stream]);
        }
        words
    }

    fn record(&mut self, tag: Tag, index: u16, rest: &[u64]) {
        let words = rest.len() as u16 + 1;
        let head = Head {
            words,
            tag,
            index,
            per_thread: false,
        };
        self.0.push(head.word());
        self.0.extend(rest);
    }

    fn call(&mut self, name: &str, arguments: &[u64]) {
        let row = CALLS.iter().position(|call| call.name == name).expect(name);
        // The thread, the context, and the call site.
        self.record(Tag::Call, row as u16, &[&[1, 0, 0], arguments].concat());
    }

    fn alloc(&mut self, at: u64) {
        self.call("cuMemAlloc_v2", &[0, BYTES, at]);
    }

    /// Says which nodes and launches belong to the next call.
    fn launches(&mut self, pairs: &[[u64; 2]]) {
        self.record(Tag::Launches, 0, &[&[1], pairs.as_flattened()].concat());
    }

    /// Launches a kernel in a stream.
    fn launch(&mut self, which: usize, number: u64) {
        self.launches(&[[0, number]]);
        self.plain_launch(which);
    }

    fn plain_launch(&mut self, which: usize) {
        let (kernel, stream) = (KERNELS[which], STREAMS[which]);
        self.call("cuLaunchKernel", &[kernel, 0, 0, 0, 0, stream, 0, 0, 0]);
    }

    /// Launches a kernel that may start before the one before it ends.
    fn dependent_launch(&mut self, which: usize, stream: u64, number: u64) {
        self.launches(&[[0, number]]);
        let mut words = vec![0, KERNELS[which], 0, 0];
        // A `CUlaunchConfig`, then one attribute: programmatic stream serialization.
        words.extend([0, 0, 0, 0, stream, 0, 1]);
        words.extend([9, 6, 1, 0, 0, 0, 0, 0, 0, 0]);
        self.call("cuLaunchKernelEx", &[&words[..], &[0]].concat());
    }

    /// Says what a launch touched, by offsets in memory.
    fn touched(&mut self, number: u64, ranges: &[(u64, u64, u64)]) {
        let ranges = ranges.iter();
        let pairs = ranges.flat_map(|(class, start, end)| [class | (MEMORY + start), MEMORY + end]);
        let words: Vec<u64> = [number].into_iter().chain(pairs).collect();
        self.record(Tag::Touched, 0, &words);
    }
}

/// Checks what was written; the report has these parts.
#[track_caller]
fn check(words: &RingWords, parts: &[&str]) -> String {
    let (_, report) = sidestream_cli::program::take_words(&words.0);
    for part in parts {
        assert!(report.contains(part), "{part}: {report}");
    }
    report
}

/// Checks launches in two streams that touch these bytes. What the first touched is heard last.
#[track_caller]
fn check_pair(first: (u64, u64, u64), second: (u64, u64, u64), parts: &[&str]) {
    let mut words = RingWords::new();
    words.launch(0, 1);
    words.launch(1, 2);
    words.call("cuStreamDestroy_v2", &[STREAMS[0]]);
    words.touched(2, &[second]);
    words.touched(1, &[first]);
    let report = check(&words, parts);
    assert!(!report.contains("may write"), "{report}");
}

#[test]
fn launches_race_by_the_bytes_that_arrive_late_and_in_any_order() {
    let race = [
        "6 CUDA calls, 1 race\n",
        "RAW on 0x7f0000000000",
        "at first\n",
        "at second\n",
    ];
    check_pair((WRITE, 0, 96), (READ, 95, 128), &race);
    check_pair(
        (WRITE, 0, 96),
        (READ, 95, 128),
        &["op 3 and op 4 both touch byte 95\n"],
    );
    check_pair(
        (WRITE, 0, 96),
        (WRITE, 16, 32),
        &["op 3 and op 4 both touch bytes 16 to 31\n"],
    );
    check_pair(
        (WRITE, 0, 96),
        (READ, 96, 128),
        &["6 CUDA calls, no race\n"],
    );
    check_pair((READ, 0, 96), (READ, 0, 96), &["no race\n"]);
    check_pair((ATOMIC, 0, 8), (READ, 0, 8), &["1 race\n", "RAW on"]);
    check_pair((ATOMIC, 0, 8), (READ, 8, 16), &["no race\n"]);
}

#[test]
fn launches_that_touch_more_ranges_than_an_operation_may_name_interleave() {
    const RANGES: u64 = 20_000;
    let mut words = RingWords::new();
    words.launch(0, 1);
    words.launch(1, 2);
    for (number, offset) in [(1, 0), (2, 1)] {
        let bytes = |at: u64| (WRITE, 3 * at + offset, 3 * at + offset + 1);
        let ranges: Vec<_> = (0..RANGES).map(bytes).collect();
        for part in ranges.chunks(8000) {
            words.touched(number | MORE, part);
        }
    }
    words.touched(1, &[]);
    let silent = words.0.clone();
    words.touched(2, &[]);
    let report = check(&words, &["no race\n"]);
    assert!(!report.contains("exact:"), "{report}");
    words.0 = silent;
    words.touched(2, &[(WRITE, 3 * (RANGES - 1), 3 * RANGES)]);
    check(&words, &["1 race\n", "both touch byte 59997\n"]);
}

#[test]
fn bytes_belong_to_the_memory_that_was_there_at_the_launch() {
    let mut words = RingWords::new();
    words.launch(0, 1);
    words.call("cuCtxSynchronize", &[]);
    words.call("cuMemFree_v2", &[MEMORY]);
    words.alloc(MEMORY + BYTES);
    words.launch(1, 2);
    words.touched(2, &[(READ, 8, BYTES + 8)]);
    words.touched(1, &[(WRITE, 0, BYTES)]);
    check(
        &words,
        &[
            "no race\n",
            "exact: 65528 bytes that kernels touched lie outside",
        ],
    );
}

#[test]
fn a_variable_is_one_however_often_its_place_is_asked_for() {
    let mut words = RingWords::new();
    let variable = [0, 0, 0, 0, MEMORY + BYTES, 64];
    words.call("cuModuleGetGlobal_v2", &variable);
    words.launch(0, 1);
    words.call("cuModuleGetGlobal_v2", &variable);
    words.launch(1, 2);
    words.touched(1, &[(WRITE, BYTES, BYTES + 8)]);
    words.touched(2, &[(READ, BYTES + 7, BYTES + 8)]);
    check(&words, &["1 race\n", "both touch byte 7\n"]);
}

#[test]
fn a_call_of_several_launches_touches_what_all_of_them_do() {
    let mut words = RingWords::new();
    words.launches(&[[0, 1]]);
    words.launches(&[[0, 2]]);
    words.plain_launch(0);
    words.launch(1, 3);
    for (number, start) in [(1, 0), (2, 512), (3, 600)] {
        words.touched(number | MORE, &[(WRITE, start, start + 8)]);
        words.touched(number, &[(WRITE, start + 64, start + 128)]);
    }
    check(&words, &["1 race\n", "WAW on"]);
}

#[test]
fn what_a_dependent_launch_touches_before_its_wait_may_come_early() {
    for (class, parts) in [
        (
            EARLY,
            [
                "calls, 1 race\n",
                "RAW on",
                "or: call `cudaGridDependencySynchronize()`",
            ],
        ),
        (0, ["no race", "", ""]),
    ] {
        let mut words = RingWords::new();
        words.launch(0, 1);
        words.dependent_launch(1, STREAMS[0], 2);
        words.launch(1, 3);
        words.touched(1, &[(WRITE, 0, 96)]);
        words.touched(2, &[(READ | class, 0, 8), (READ, 8, 16), (WRITE, 128, 136)]);
        words.touched(3, &[(READ, 256, 264)]);
        check(&words, &parts);
    }
    // What comes after the wait is ordered like any kernel, also for those in other streams.
    let mut words = RingWords::new();
    words.dependent_launch(1, STREAMS[0], 2);
    words.launch(1, 3);
    words.touched(2, &[(READ | EARLY, 0, 8), (WRITE, 128, 136)]);
    words.touched(3, &[(READ, 128, 132)]);
    check(
        &words,
        &["1 race\n", "op 4 on stream 0", "op 5 on stream 1"],
    );
}

/// A graph of two branches, captured, and launches of it: what its nodes and a launch after it in the second stream touch.
#[track_caller]
fn check_graph(nodes: [(u64, u64, u64); 2], after: (u64, u64, u64), parts: &[&str]) {
    const EVENTS: [u64; 2] = [0xe1, 0xe2];
    let mut words = RingWords::new();
    for event in EVENTS {
        words.call("cuEventCreate", &[0, 2, event]);
    }
    words.call("cuStreamBeginCapture_v2", &[STREAMS[0], 0]);
    words.call("cuEventRecord", &[EVENTS[0], STREAMS[0]]);
    words.call("cuStreamWaitEvent", &[STREAMS[1], EVENTS[0], 0]);
    for which in [0, 1] {
        words.launches(&[[0xd0 + which, 0]]);
        words.plain_launch(which as usize);
    }
    words.call("cuEventRecord", &[EVENTS[1], STREAMS[1]]);
    words.call("cuStreamWaitEvent", &[STREAMS[0], EVENTS[1], 0]);
    words.call("cuStreamEndCapture", &[STREAMS[0], 0, 0x9a]);
    words.call("cuGraphInstantiateWithFlags", &[0, 0x9a, 0, 0x9e]);
    for first in [1, 3] {
        words.launches(&[[0xd1, first + 1], [0xd0, first], [0xff, first + 10]]);
        words.call("cuGraphLaunch", &[0x9e, STREAMS[0]]);
    }
    words.launch(1, 5);
    words.touched(5, &[after]);
    for first in [3, 1] {
        words.touched(first, &nodes[..1]);
        words.touched(first + 1, &nodes[1..]);
        // Of a node that is not known, inside another one.
        words.touched(first + 10, &[(READ, 4096, 4104)]);
    }
    check(&words, parts);
}

#[test]
fn nodes_race_with_each_other_and_a_graph_with_what_is_beside_it() {
    let none = (READ, 0, 0);
    check_graph([(WRITE, 0, 64), (READ, 64, 128)], none, &["no race\n"]);
    let branches = "make another branch of the graph wait for one branch of a graph";
    let inside = [
        "1 race\n",
        "RAW on",
        "at first\n",
        "at second\n",
        branches,
        "both touch byte 64\n",
    ];
    check_graph([(WRITE, 0, 65), (READ, 64, 128)], none, &inside);
    let beside = ["1 race\n", "WAR on", "at cuGraphLaunch", "at second\n"];
    check_graph(
        [(WRITE, 0, 64), (READ, 64, 128)],
        (WRITE, 127, 128),
        &beside,
    );
    check_graph([none, none], (WRITE, 4096, 4097), &beside);
}

/// The name of a map by which kernels copy, in place of its hash.
const MAP: u64 = 0x9e37;
/// The address of the maps that a driver encoded.
const ENCODED: u64 = 0x7faa_3600_0000;

/// The halves of the words of a map of 32 rows of 64 floats, 256 bytes apart, with boxes of 8 rows of 16 floats.
fn map(steps: [u32; 2]) -> [u32; 16] {
    let memory = MEMORY as u32;
    let (side, steps) = (15 << 24, (steps[0] - 1) | (steps[1] - 1) << 3);
    [
        memory,
        0x7f00,
        0x390,
        16,
        0,
        0,
        0,
        0,
        63,
        31,
        0,
        0,
        0,
        side | steps,
        7,
        0,
    ]
}

/// The 16 words of a map.
fn words_of(halves: [u32; 16]) -> [u64; 16] {
    let half = |at: usize| halves.get(at).map_or(0, |half| u64::from(*half));
    std::array::from_fn(|at| half(2 * at) | half(2 * at + 1) << 32)
}

impl RingWords {
    fn map(&mut self, halves: [u32; 16]) {
        self.record(Tag::Map, 0, &[&[MAP], &words_of(halves)[..]].concat());
    }

    fn boxes(&mut self, number: u64, hash: u64, what: u64, at: &[i32]) {
        let mut each = [0; 6];
        for (word, at) in each.iter_mut().zip(at) {
            *word = u64::from(*at as u32);
        }
        let [a, b, c, d, e, f] = each;
        let what = what | (at.len() as u64) << 16;
        let one = [number, hash, what, a | b << 32, c | d << 32, e | f << 32];
        self.record(Tag::Boxes, 0, &one);
    }

    /// A launch that copies boxes in one stream, beside one in another that reads some bytes. The map is told last.
    fn box_beside(&mut self, map: [u32; 16], what: u64, boxes: &[&[i32]], start: u64, bytes: u64) {
        self.launch(0, 1);
        self.launch(1, 2);
        self.map(map);
        for at in boxes {
            self.boxes(1, MAP, what, at);
        }
        self.record(Tag::Touched, 0, &[1]);
        self.record(Tag::Touched, 0, &[2, start, start + bytes]);
    }
}

/// Checks boxes, and an element in another stream that is inside one or not.
#[track_caller]
fn check_box(boxes: &[&[i32]], steps: [u32; 2], (column, row): (u64, u64), is_inside: bool) {
    let mut words = RingWords::new();
    words.box_beside(map(steps), 1, boxes, MEMORY + 256 * row + 4 * column, 4);
    let report = check(&words, &[if is_inside { "1 race\n" } else { "no race\n" }]);
    assert!(!report.contains("exact:"), "{report}");
}

#[test]
fn boxes_of_tensor_maps_touch_their_rows() {
    let box_at = |at: [i32; 2], (column, row), is_inside| {
        check_box(&[&at], [1, 1], (column, row), is_inside)
    };
    // The corners, and their neighbours.
    for (place, is_inside) in [
        ((16, 8), true),
        ((31, 15), true),
        ((15, 8), false),
        ((32, 8), false),
        ((16, 7), false),
        ((31, 16), false),
    ] {
        box_at([16, 8], place, is_inside);
    }
    // Outside the tensor, nothing is touched: not the end of the row before, nor the next row.
    box_at([-8, 28], (7, 28), true);
    box_at([-8, 28], (8, 28), false);
    box_at([-8, 28], (60, 27), false);
    box_at([-8, 28], (0, 32), false);
    box_at([60, -2], (63, 5), true);
    box_at([60, -2], (0, 1), false);
    box_at([60, -2], (63, 6), false);
    // Side by side, with and without a gap.
    check_box(
        &[&[32, 0], &[0, 0], &[16, 0], &[16, 0]],
        [1, 1],
        (47, 7),
        true,
    );
    check_box(&[&[32, 0], &[0, 0]], [1, 1], (16, 7), false);
    // Each third column, and each second row.
    check_box(&[&[0, 0]], [3, 2], (15, 6), true);
    check_box(&[&[0, 0]], [3, 2], (14, 6), false);
    check_box(&[&[0, 0]], [3, 2], (15, 5), false);
    check_box(&[&[-2, 0]], [3, 2], (1, 0), true);
    check_box(&[&[-2, 0]], [3, 2], (0, 0), false);
}

/// Checks a map of the driver's by a box, and by the byte at an offset, which another stream reads.
#[track_caller]
fn check_encoded(halves: [u32; 16], what: u64, at: &[i32], offset: u64, expected: &str) {
    let mut words = RingWords::new();
    words.call("cuMemAlloc_v2", &[0, 1 << 41, ENCODED]);
    words.box_beside(halves, what, &[at], ENCODED + offset, 1);
    check(&words, &[expected]);
}

#[test]
#[rustfmt::skip]
fn tensor_maps_are_read_as_the_driver_encodes_them() {
    const RACE: &str = "1 race\n";
    // 128 rows of 256 floats in boxes of 16 rows of 32.
    let floats = [0x3600_0000, 0x7faa, 0x390, 0x40, 0, 0, 0, 0, 0xff, 0x7f, 0, 0, 0, 0x1f00_0000, 0xf, 0];
    check_encoded(floats, 1, &[224, 112], 1024 * 127 + 1023, RACE);
    check_encoded(floats, 1, &[224, 112], 1024 * 127 + 895, "no race\n");
    check_encoded(floats, 1, &[224, 113], 1024 * 112 + 1023, "no race\n");
    // 256, 128, 5, 7, 9 floats in boxes of 32, 2, 3, 2, 4, of which each 1st, 2nd, 3rd, 4th, 5th is copied.
    let deep = [
        0x3600_0000, 0x7faa, 0x3c0, 0x40, 0x2000, 0x3_0000, 0x15_0000, 0, 0xff, 0x7f, 4, 6, 8, 0x1f00_4688, 0x0301_0201, 0,
    ];
    let last = 4 * 255 + 1024 * 127 + 0x2_0000 * 4 + 0x30_0000 * 6 + 0x150_0000 * 8;
    check_encoded(deep, 1, &[224, 127, 4, 6, 8], last, RACE);
    check_encoded(deep, 1, &[224, 126, 4, 6, 8], last, "no race\n");
    check_encoded(deep, 1, &[224, 127, 1, 6, 8], last, "no race\n");
    check_encoded(deep, 1, &[224, 127, 4, 3, 8], last, "no race\n");
    check_encoded(deep, 1, &[224, 127, 4, 6, 4], last, "no race\n");
    // The largest: 128 rows of 2^32 bytes, and strides of 2^36 to 2^39 bytes.
    let wide = [0x3600_0000, 0x7faa, 0x10, 0x1000_0000, 0, 0, 0, 0, u32::MAX, 0x7f, 0, 0, 0, 0x1f00_0000, 0xf, 0];
    check_encoded(wide, 1, &[i32::MAX, 112], (127 << 32) + (1 << 31) + 30, RACE);
    check_encoded(wide, 1, &[i32::MAX, 112], (127 << 32) + (1 << 31) + 31, "no race\n");
    let far = [0x3600_0000, 0x7faa, 0x40, 0, 0, 0, 0, 0x8421, 1, 1, 1, 1, 1, 0, 0, 0];
    check_encoded(far, 1, &[1, 1, 1, 1, 1], (0xf << 36) + 1, RACE);
    check_encoded(far, 1, &[1, 1, 0, 1, 1], (0xf << 36) + 1, "no race\n");
    // Not a tiled map, though a tiled copy: it may write all bytes of the tensor, here 8 * 4 * 4 * 4 float16.
    let columns = [0x3600_0000, 0x7faa, 0x6331, 1, 4, 16, 0, 0, 7, 3, 3, 3, 0, 0, 0, 0];
    check_encoded(columns, 1, &[0, 0, 0, 0], 1023, "1 race if its kernel writes");
    check_encoded(columns, 1, &[0, 0, 0, 0], 1024, "no race\n");
}

#[test]
fn copies_by_other_tensor_maps_may_touch_all_of_them() {
    // Not a tiled copy: it may write all bytes of the tensor.
    for (what, offset, expected) in [
        (1 | 1 << 8, 0, "1 race if its kernel writes"),
        (1 | 1 << 8, 256 * 32, "no race\n"),
        (1 << 8, 0, "no race\n"),
    ] {
        let mut words = RingWords::new();
        words.box_beside(map([1, 1]), what, &[&[0, 0]], MEMORY + offset, 4);
        check(&words, &[expected]);
    }
    // Packed elements, and more dimensions than there are; then a map that was not told.
    let [mut packed, mut other] = [map([1, 1]); 2];
    (packed[2], other[2]) = (0x590, 0x3f0);
    for (halves, hash) in [(packed, MAP), (other, MAP), (map([1, 1]), MAP + 1)] {
        let mut words = RingWords::new();
        words.launch(0, 1);
        words.map(halves);
        words.boxes(1, hash, 1, &[0, 0]);
        words.touched(1, &[]);
        let unknown = "exact: 1 of 1 kernel were not seen to the byte: 1 with copies by a tensor map that is not known\n";
        check(&words, &["no race\n", unknown]);
    }
}

/// The hash of the words of `map([1, 1])`, which a device computes.
const HASH: u64 = 0xd441_c2eb_8b75_53f5;

impl RingWords {
    /// Says which maps are among the parameters of what a thread launches next.
    fn maps(&mut self, thread: u64, maps: &[[u64; 16]]) {
        self.record(Tag::Maps, 0, &[&[thread], maps.as_flattened()].concat());
    }
}

/// Checks a launch that has maps among its parameters and loads by one, beside a reader of a byte: whether it may race, and
/// whether it counts as not seen.
#[track_caller]
fn check_stores(
    flags: u64,
    maps: &[[u64; 16]],
    loads_by: u64,
    offset: u64,
    races: bool,
    unseen: bool,
) {
    let mut words = RingWords::new();
    // Of a call that launched something else, and of another thread.
    words.maps(1, &[words_of(map([1, 1]))]);
    words.launch(1, 3);
    words.maps(2, &[words_of(map([1, 1]))]);
    words.maps(1, maps);
    words.launch(0, 1);
    words.launch(1, 2);
    let told = words_of(map([1, 1]));
    words.record(Tag::Map, 0, &[&[loads_by], &told[..]].concat());
    words.boxes(1, loads_by, 0, &[0, 0]);
    words.touched(3, &[]);
    words.touched(1 | flags, &[]);
    words.touched(2, &[(READ, offset, offset + 1)]);
    let race = [
        "1 race unless its kernel stores elsewhere\n",
        "RAW on 0x7f0000000000",
        "in which part of the tensor is not seen",
        &format!("both touch byte {offset}\n"),
    ];
    let report = check(&words, if races { &race } else { &["no race\n"] });
    let counted = "not seen to the byte: 1 with";
    assert_eq!(report.contains(counted), unseen, "{report}");
}

#[test]
fn a_launch_may_store_by_the_maps_among_its_parameters_that_it_does_not_load_by() {
    const KNOWN: u64 = STORES | LOADS;
    let (one, mut far) = (words_of(map([1, 1])), words_of(map([1, 1])));
    far[0] += BYTES / 2;
    // The first and the last byte of the tensor, not the next.
    check_stores(KNOWN, &[one], MAP, 0, true, false);
    check_stores(KNOWN, &[one], MAP, 8191, true, false);
    check_stores(KNOWN, &[one], MAP, 8192, false, false);
    check_stores(KNOWN, &[one, far], HASH, 0, false, false);
    check_stores(KNOWN, &[one, far], HASH, BYTES / 2, true, false);
    check_stores(KNOWN, &[one], HASH, 0, false, true);
    check_stores(KNOWN, &[], MAP, 0, false, true);
    // It loads only; its loads are not told, or not all.
    check_stores(LOADS, &[one], MAP, 0, false, false);
    check_stores(STORES, &[one], MAP, 0, false, true);
    check_stores(KNOWN | INCOMPLETE, &[one], MAP, 0, false, true);
    // Not a map.
    check_stores(
        KNOWN,
        &[[MEMORY, u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]],
        MAP,
        0,
        false,
        true,
    );
}

#[test]
fn a_write_beside_what_may_be_stored_by_a_map_is_no_error() {
    for (class, kind) in [(READ, "RAW"), (WRITE, "WAR"), (ATOMIC, "WAR")] {
        let mut words = RingWords::new();
        words.maps(1, &[words_of(map([1, 1]))]);
        words.launch(0, 1);
        words.launch(1, 2);
        words.touched(1 | STORES | LOADS, &[(WRITE, 8192, 8200)]);
        words.touched(2, &[(class, 64, 65), (READ, 8199, 8200)]);
        // What it surely writes is still an error.
        let races = "1 race, 1 race unless its kernel stores elsewhere\n";
        check(&words, &[races, kind]);
    }
}

#[test]
fn a_dependent_launch_may_come_before_the_end_of_one_with_tensor_stores() {
    let mut words = RingWords::new();
    words.maps(1, &[words_of(map([1, 1]))]);
    words.launch(0, 1);
    words.dependent_launch(1, STREAMS[0], 2);
    words.touched(1 | STORES | LOADS, &[(WRITE, 8192, 8200)]);
    words.touched(2, &[(READ | EARLY, 8192, 8200)]);
    check(&words, &["1 race\n", "both touch bytes 8192 to 8199\n"]);
}

#[test]
fn what_may_be_stored_by_a_map_is_ordered_as_any_access() {
    let mut words = RingWords::new();
    words.maps(1, &[words_of(map([1, 1]))]);
    words.launch(0, 1);
    words.call("cuEventCreate", &[0, 2, 0xe1]);
    words.call("cuEventRecord", &[0xe1, STREAMS[0]]);
    words.call("cuStreamWaitEvent", &[STREAMS[1], 0xe1, 0]);
    words.launch(1, 2);
    words.touched(1 | STORES | LOADS, &[]);
    words.touched(2, &[(READ, 0, 8)]);
    let report = check(&words, &["no race\n"]);
    assert!(!report.contains("exact:"), "{report}");
}

#[test]
fn what_is_not_known_to_the_byte_is_no_race_and_is_counted() {
    let mut words = RingWords::new();
    words.launch(0, 1);
    words.plain_launch(1);
    words.launch(1, 2);
    words.launch(1, 3);
    words.launch(0, 4);
    words.touched(1, &[(WRITE, 0, 64)]);
    words.touched(2 | INCOMPLETE, &[(READ, 64, 128)]);
    words.touched(4, &[(READ, 0, 8)]);
    let missing = "exact: 3 of 5 kernels were not seen to the byte: 1 not watched (not named by --only, or of a module that launches kernels from the device), 1 not heard before the end, or too late, \
                   1 with more accesses than there is room for\n";
    check(&words, &["8 CUDA calls, no race\n", missing]);
    // What was taken from earlier launches races as what was heard does, and is counted.
    let mut words = RingWords::new();
    words.launch(0, 1);
    words.launch(1, 2);
    words.touched(1, &[(WRITE, 0, 64)]);
    words.touched(2 | EARLIER, &[(READ, 63, 64)]);
    let earlier = "exact: 1 of 2 kernels were not watched: they are taken to touch what earlier launches of the same kernel touched";
    check(&words, &["1 race\n", "both touch byte 63\n", earlier]);
    // What was heard beside tensor stores counts.
    let mut words = RingWords::new();
    words.launch(0, 1);
    words.launch(1, 2);
    words.touched(1 | STORES | MORE, &[(WRITE, 0, 64)]);
    words.touched(1, &[]);
    words.touched(2, &[(READ, 63, 64)]);
    let stores = "exact: 1 of 2 kernels were not seen to the byte: 1 with tensor stores, which NVIDIA's library does not tell\n";
    check(&words, &["1 race\n", stores]);
    // More ranges than an operation may have: the largest are kept.
    let mut words = RingWords::new();
    words.dependent_launch(0, STREAMS[0], 1);
    words.launch(1, 2);
    let ranges: Vec<_> = (0..1 << 15)
        .map(|at| (WRITE | EARLY, 2 * at, 2 * at + 1))
        .collect();
    for part in ranges.chunks(MAX_WORDS / 2 - 1) {
        words.touched(1 | MORE, part);
    }
    words.touched(1, &[(WRITE | EARLY, BYTES - 64, BYTES)]);
    words.touched(2, &[(READ, BYTES - 32, BYTES)]);
    check(
        &words,
        &["1 race\n", "bytes that kernels touched were not compared"],
    );
}
