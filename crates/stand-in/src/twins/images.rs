//! The kernels of `sidestream-images`, which implements them in Rust.

use sidestream::backend::{Arg, Grid, HostArg};
use sidestream::bytemuck;
use sidestream::op::Mode;
use sidestream_images::augment::twin;

use super::{Twin, View, number, scalar, trap};

pub const TWINS: &[Twin] = &[
    Twin {
        name: "augment_render",
        params: &RENDER,
        args: render_args,
        host: render,
        cost: None,
    },
    Twin {
        name: "augment_plain",
        params: &RENDER,
        args: render_args,
        host: render,
        cost: None,
    },
    Twin {
        name: "augment_blurred",
        params: &RENDER,
        args: render_args,
        host: render,
        cost: None,
    },
    Twin {
        name: "augment_measure",
        params: &[8, 8, 8, 8, 8, 8, 4, 4],
        args: |values, view| {
            let (input, pictures) = (read(values, view, values[4], values[5]), values[6]);
            let words = 4 * twin::SIZES.1 * pictures;
            let [bytes, numbers] = input;
            vec![
                bytes,
                numbers,
                view.bytes(values[2], twin::SIZES.0 * pictures, Mode::Read),
                view.bytes(values[3], words, Mode::Write),
            ]
        },
        host: measure,
        cost: None,
    },
];

/// Five addresses, four sizes in bytes; the number of pictures, the form, and a number that divides the work.
const RENDER: [u64; 12] = [8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4];

fn read(values: &[u64], view: &View<'_>, bytes: u64, numbers: u64) -> [Arg; 2] {
    [(0, bytes), (1, numbers)].map(|(at, bytes)| view.bytes(values[at], bytes, Mode::Read))
}

fn render_args(values: &[u64], view: &View<'_>) -> Vec<Arg> {
    let [bytes, numbers] = read(values, view, values[5], values[6]);
    vec![
        bytes,
        numbers,
        view.bytes(values[2], twin::SIZES.0 * values[9], Mode::Read),
        view.bytes(values[3], values[7], Mode::Read),
        view.bytes(values[4], values[8], Mode::Write),
        number(values[10], 4),
    ]
}

fn render(_: Grid, args: &mut [HostArg]) {
    let [
        HostArg::Memory(bytes),
        HostArg::Memory(numbers),
        HostArg::Memory(records),
        HostArg::Memory(words),
        HostArg::Memory(output),
        form,
    ] = args
    else {
        return;
    };
    let Ok(records) = bytemuck::try_cast_slice(records.bytes()) else {
        trap("the records of `augment_render` have another size")
    };
    let words = bytemuck::try_cast_slice(words.bytes()).unwrap_or_default();
    let form = scalar(form) as u32;
    twin::render(
        bytes.bytes(),
        numbers.bytes(),
        records,
        words,
        output.bytes_mut(),
        form,
    );
}

fn measure(_: Grid, args: &mut [HostArg]) {
    let [
        HostArg::Memory(bytes),
        HostArg::Memory(numbers),
        HostArg::Memory(records),
        HostArg::Memory(words),
    ] = args
    else {
        return;
    };
    let (Ok(records), Ok(words)) = (
        bytemuck::try_cast_slice(records.bytes()),
        bytemuck::try_cast_slice_mut(words.bytes_mut()),
    ) else {
        trap("the records or the words of `augment_measure` have another size")
    };
    twin::measure(bytes.bytes(), numbers.bytes(), records, words);
}
