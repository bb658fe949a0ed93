//! Tests which launches are watched, and what the others count as touching.

use sidestream_inject::learned::{Expected, Learned};
use sidestream_inject::wire::{EARLIER, INCOMPLETE, LAUNCH, MORE, Tag};

const MODULE: u64 = 0x10;
const WRITE: u64 = 1 << 60;

/// A program whose launches touch what each test says.
#[derive(Default)]
struct Program {
    learned: Learned,
    launches: u64,
}

impl Program {
    /// Launches a kernel: returns what it counts as touching if it is not watched, else tells what it touches.
    fn launches(
        &mut self,
        kernel: u64,
        others: u64,
        addresses: &[u64],
        touched: &[[u64; 2]],
    ) -> Option<Vec<[u64; 2]>> {
        self.launches += 1;
        let number = self.launches;
        let places = addresses.iter().enumerate();
        let words: Vec<u64> = places.flat_map(|(at, of)| [at as u64, *of]).collect();
        let expected = Expected::new(&[&[others], &words[..]].concat());
        let mut earlier = None;
        let is_watched = self
            .learned
            .watches(MODULE, kernel, number, expected, |tag, words| {
                assert_eq!(tag, Tag::Touched);
                assert_eq!(words[0], number | EARLIER, "one record, of this launch");
                earlier = Some(words[1..].as_chunks().0.to_vec());
            });
        assert_ne!(is_watched, earlier.is_some());
        if is_watched {
            self.tells(number, touched);
        }
        earlier
    }

    fn tells(&mut self, number: u64, touched: &[[u64; 2]]) {
        let words = [&[number], touched.as_flattened()].concat();
        self.learned.takes(Tag::Touched, &words);
    }
}

/// What a kernel touches that reads 64 bytes of one address and writes 32 behind the first 16 of another.
fn copied(from: u64, to: u64) -> [[u64; 2]; 2] {
    [[from, from + 64], [WRITE | (to + 16), to + 48]]
}

#[test]
fn what_two_launches_touch_beside_their_addresses_the_third_does() {
    let mut program = Program::default();
    for [from, to] in [[0x1000, 0x9000], [0x5000, 0x2000]] {
        let watched = program.launches(1, 7, &[from, to], &copied(from, to));
        assert_eq!(watched, None);
    }
    let earlier = program.launches(1, 7, &[0x7000, 0x8000], &[]);
    assert_eq!(earlier, Some(copied(0x7000, 0x8000).to_vec()));
    // Not another kernel, nor other parameters, nor an address that both are, nor other alignment.
    for (kernel, others, addresses) in [
        (2, 7, [0x7000, 0x8000]),
        (1, 8, [0x7000, 0x8000]),
        (1, 7, [0x7000, 0x7000]),
        (1, 7, [0x7000, 0x8004]),
    ] {
        let touched = copied(addresses[0], addresses[1]);
        assert_eq!(program.launches(kernel, others, &addresses, &touched), None);
    }
}

#[test]
fn buffers_that_meet_are_told_apart() {
    let mut program = Program::default();
    for [from, to] in [[0x1000, 0x1040], [0x1000, 0x5000]] {
        let touched: Vec<_> = match to {
            0x1040 => vec![[from, to + 64]],
            _ => vec![[from, from + 64], [to, to + 64]],
        };
        assert_eq!(program.launches(1, 7, &[from, to], &touched), None);
    }
    let earlier = program.launches(1, 7, &[0x4000, 0x2000], &[]);
    let mut earlier = earlier.expect("both launches touched the same");
    earlier.sort_unstable();
    assert_eq!(earlier, [[0x2000, 0x2040], [0x4000, 0x4040]]);
}

#[test]
fn a_kernel_whose_bytes_vary_is_always_watched() {
    let mut program = Program::default();
    for row in 0..20 {
        let touched = [[0x1000 + 64 * (row % 3), 0x1040 + 64 * (row % 3)]];
        assert_eq!(program.launches(1, 7, &[0x1000], &touched), None, "{row}");
    }
    assert_eq!(program.learned.rest(8), []);
}

#[test]
fn other_parameters_need_not_be_known_if_four_made_no_difference() {
    let mut program = Program::default();
    for step in 0..4 {
        assert_eq!(
            program.launches(1, step, &[0x1000], &[[0x1000, 0x1040]]),
            None
        );
    }
    let earlier = program.launches(1, 4, &[0x3000], &[]);
    assert_eq!(earlier, Some(vec![[0x3000, 0x3040]]));
    // Where the length is a parameter, each is its own.
    for bytes in 1..20 {
        let touched = [[0x1000, 0x1000 + bytes]];
        assert_eq!(
            program.launches(2, bytes, &[0x1000], &touched),
            None,
            "{bytes}"
        );
    }
    assert_eq!(program.launches(2, 5, &[0x1000], &[[0x1000, 0x1005]]), None);
    let earlier = program.launches(2, 5, &[0x3000], &[]);
    assert_eq!(earlier, Some(vec![[0x3000, 0x3005]]));
}

#[test]
fn a_module_rests_when_all_that_was_launched_since_the_last_wait_is_known() {
    let mut program = Program::default();
    program.launches(1, 7, &[0x1000], &[[0x1000, 0x1040]]);
    assert_eq!(program.learned.rest(8), []);
    program.launches(1, 7, &[0x1000], &[[0x1000, 0x1040]]);
    program.launches(2, 7, &[0x1000], &[[0x1000, 0x1040]]);
    assert_eq!(program.learned.rest(8), [], "the second was launched once");
    assert!(program.launches(1, 7, &[0x1000], &[]).is_some());
    assert_eq!(program.learned.rest(8), [MODULE]);
    assert_eq!(program.learned.rest(8), [], "it rests");
    program.launches(2, 7, &[0x1000], &[[0x1000, 0x1040]]);
    assert_eq!(program.learned.rest(8), [MODULE], "it was woken");
    // What cannot be known keeps it awake.
    assert!(program.learned.watches(MODULE, 3_u64, 99, None, |_, _| ()));
    assert_eq!(program.learned.rest(8), []);
    // Handles may be given again.
    program.learned.forget();
    assert_eq!(program.launches(1, 7, &[0x1000], &[[0x1000, 0x1040]]), None);
}

#[test]
fn what_arrives_in_parts_is_one_and_what_was_lost_is_not_learned() {
    let mut program = Program::default();
    for flag in [INCOMPLETE, MORE, MORE] {
        program.launches += 1;
        let number = program.launches;
        let expected = || Expected::new(&[7, 0, 0x1000]);
        let learned = &mut program.learned;
        assert!(learned.watches(MODULE, 1_u64, number, expected(), |_, _| ()));
        program
            .learned
            .takes(Tag::Touched, &[number | flag, 0x1000, 0x1010]);
        if flag == MORE {
            program.tells(number & LAUNCH, &[[0x1100, 0x1110]]);
        }
    }
    let earlier = program.launches(1, 7, &[0x2000], &[]);
    assert_eq!(earlier, Some(vec![[0x2000, 0x2010], [0x2100, 0x2110]]));
}
