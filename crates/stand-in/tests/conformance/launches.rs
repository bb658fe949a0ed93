//! Kernels: their arguments, and the errors of invalid launches.

use sidestream::error::Error;
use sidestream::kernel::library::FillPattern;
use sidestream::kernel::{Grid, Kernel, Read, Value, Write};
use sidestream::ptx::PATTERN;

use crate::kernels::{
    ADD, FILL, HOLD_NS, STEP, check, expect_pattern, fill, filled, pattern, spin, stepped, values,
};
use crate::target::{Scenario, Target, one};

pub fn scenarios() -> Vec<Scenario> {
    vec![
        one(views_lengths_and_numbers_arrive),
        one(results_are_the_same_bit_for_bit),
        one(values_of_every_size_arrive),
        one(grids_have_three_dimensions),
        one(blocks_have_shared_memory),
        one(a_grid_too_large_or_empty_is_refused_and_nothing_breaks),
        one(a_wrong_entry_is_refused_by_its_name),
        one(a_kernel_in_invalid_ptx_is_refused_with_the_compilers_message),
        one(a_kernel_in_cuda_runs_where_there_is_a_compiler),
        one(a_kernel_without_a_form_for_the_device_is_refused_by_its_name),
        one(a_kernel_that_was_made_ready_is_launched),
        one(a_kernel_that_cannot_be_launched_cannot_be_made_ready),
        one(a_kernel_is_loaded_on_many_machines_and_threads_at_once),
    ]
}

const LEN: usize = 4096;

fn views_lengths_and_numbers_arrive(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    for (len, threads) in [
        (1, 32),
        (31, 32),
        (LEN, 64),
        (100_003, 256),
        (100_003, 1024),
    ] {
        let mut x = stream.alloc_zeroed::<u32>(len + 2).unwrap();
        let view = x.slice_mut(1..len + 1);
        let grid = Grid::cover(len, threads);
        stream.launch(&FILL, grid, (view, len as u64, 77)).unwrap();
        let found = values(&stream, x.view());
        assert_eq!((found[0], found[len + 1]), (0, 0), "outside of the view");
        expect_pattern(&found[1..len + 1], 77);
        // The kernel that searches for wrong values finds exactly the wrong ones.
        let mut errors = stream.alloc_zeroed::<u32>(1).unwrap();
        check(&stream, x.slice(1..len + 1), 77, &mut errors);
        assert_eq!(values(&stream, errors.view()), [0]);
        stream
            .fill_with(x.slice_mut(1..2), !pattern(0, 77))
            .unwrap();
        check(&stream, x.slice(1..len + 1), 77, &mut errors);
        assert_eq!(values(&stream, errors.view()), [1]);
    }
}

fn results_are_the_same_bit_for_bit(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let host: Vec<f32> = (0..LEN).map(|at| at as f32 / 7.0 - 200.0).collect();
    let [mut a, mut b] = [(); 2].map(|()| stream.alloc::<f32>(LEN).unwrap());
    stream.memcpy_h2d(&host, a.view_mut()).unwrap();
    for work in [0, 1, 16, 256] {
        let args = (a.view(), b.view_mut(), LEN as u64, work);
        stream.launch(&STEP, Grid::cover(LEN, 256), args).unwrap();
        let mut found = [0.0; LEN];
        stream.memcpy_d2h(b.view(), &mut found).unwrap();
        let expected = host.iter().map(|&value| stepped(value, work).to_bits());
        assert!(
            found.iter().map(|value| value.to_bits()).eq(expected),
            "work {work}"
        );
    }
    let mut sum = stream.alloc::<f32>(LEN).unwrap();
    // One view twice, for reading.
    let args = (a.view(), a.view(), sum.view_mut(), LEN as u64);
    stream.launch(&ADD, Grid::cover(LEN, 256), args).unwrap();
    let mut found = [0.0; LEN];
    stream.memcpy_d2h(sum.view(), &mut found).unwrap();
    assert!(
        found
            .iter()
            .zip(&host)
            .all(|(sum, value)| *sum == 2.0 * value)
    );
}

/// Entries that the library does not have: one takes a number of every size, one writes which thread of which block
/// it is, one reverses the values of each block in shared memory.
const PTX: &str = include_str!("entries.ptx");

type Sizes = (
    Write<u64>,
    Value<u8>,
    Value<i16>,
    Value<f32>,
    Value<f64>,
    Value<i64>,
);

fn values_of_every_size_arrive(target: Target) {
    // SAFETY: the entry writes five numbers of eight bytes to its pointer.
    let kernel = unsafe { Kernel::<Sizes>::from_ptx(PTX, "sizes") };
    let kernel = kernel.and_on_host(|_, (out, a, b, c, d, e)| {
        let all = [
            a.into(),
            b as u64,
            c.to_bits().into(),
            d.to_bits(),
            e as u64,
        ];
        out.copy_from_slice(&all);
    });
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut out = stream.alloc::<u64>(5).unwrap();
    let args = (out.view_mut(), 200, -300, 1.5, -2.5e300, i64::MIN + 1);
    stream.launch(&kernel, Grid::new(1, 1), args).unwrap();
    let mut found = [0; 5];
    stream.memcpy_d2h(out.view(), &mut found).unwrap();
    let expected = [
        200,
        -300i64 as u64,
        1.5f32.to_bits().into(),
        (-2.5e300f64).to_bits(),
        (i64::MIN + 1) as u64,
    ];
    assert_eq!(found, expected);
}

/// Memory with a value for each thread, and the number of threads.
type Threads = (Write<u32>, Value<u64>);

/// Returns the indices of a block and of a thread in it, in six times four bits.
fn place(block: [u32; 3], thread: [u32; 3]) -> u32 {
    let parts = block.into_iter().chain(thread).enumerate();
    parts.map(|(at, part)| part << (4 * at)).sum()
}

/// Returns the places of all threads of a grid, block by block, with x as the fastest index.
fn places(grid: Grid) -> Vec<u32> {
    let all = |[x, y, z]: [u32; 3]| {
        let each = (0..z).flat_map(move |z| (0..y).map(move |y| (y, z)));
        each.flat_map(move |(y, z)| (0..x).map(move |x| [x, y, z]))
    };
    let blocks = all(grid.blocks);
    let threads = |block| all(grid.threads).map(move |thread| place(block, thread));
    blocks.flat_map(threads).collect()
}

fn grids_have_three_dimensions(target: Target) {
    // SAFETY: the entry writes one number for each thread of the grid.
    let kernel = unsafe { Kernel::<Threads>::from_ptx(PTX, "places") };
    let kernel = kernel.and_on_host(|grid, (out, _)| out.copy_from_slice(&places(grid)));
    let device = target.open();
    let stream = device.stream("s").unwrap();
    for (blocks, threads) in [
        ([2, 3, 4], [4, 2, 5]),
        ([7, 1, 1], [1, 1, 9]),
        ([1, 5, 1], [8, 1, 2]),
    ] {
        let grid = Grid {
            blocks,
            threads,
            shared_bytes: 0,
        };
        let expected = places(grid);
        let mut out = stream.alloc_zeroed::<u32>(expected.len()).unwrap();
        let n = expected.len() as u64;
        stream.launch(&kernel, grid, (out.view_mut(), n)).unwrap();
        assert_eq!(values(&stream, out.view()), expected);
    }
}

fn blocks_have_shared_memory(target: Target) {
    // SAFETY: the entry reads and writes one value for each thread, given four bytes of shared
    // memory for each thread of a block.
    let kernel = unsafe { Kernel::<Threads>::from_ptx(PTX, "turned") };
    let kernel = kernel.and_on_host(|grid, (values, _)| {
        assert!(grid.shared_bytes >= 4 * grid.threads[0]);
        values
            .chunks_mut(grid.threads[0] as usize)
            .for_each(<[u32]>::reverse);
    });
    let device = target.open();
    let stream = device.stream("s").unwrap();
    for (threads, shared_bytes) in [(64, 256), (256, 1024), (1024, 4096), (32, 40 << 10)] {
        let len = 4 * threads as usize;
        let mut x = filled(&stream, len, 5);
        let grid = Grid::new(4, threads).shared(shared_bytes);
        let args = (x.view_mut(), len as u64);
        stream.launch(&kernel, grid, args).unwrap();
        let found = values(&stream, x.view());
        let mut expected: Vec<u32> = (0..len).map(|at| pattern(at, 5)).collect();
        expected
            .chunks_mut(threads as usize)
            .for_each(<[u32]>::reverse);
        assert_eq!(found, expected);
    }
}

fn a_grid_too_large_or_empty_is_refused_and_nothing_breaks(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    for grid in [Grid::new(0, 32), Grid::new(1, 0)] {
        let refused = stream.launch(&FILL, grid, (x.view_mut(), LEN as u64, 2));
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    // Only a driver knows the limits of a block.
    if target != Target::Sim {
        for grid in [Grid::new(1, 2048), Grid::new(1, 32).shared(1 << 30)] {
            let launched = stream.launch(&FILL, grid, (x.view_mut(), LEN as u64, 2));
            let mut nodes = device.graph();
            let y = nodes.own(stream.alloc(LEN).unwrap()).unwrap();
            let args = (y.view_mut(), LEN as u64, 2);
            let built = nodes.launch(&FILL, grid, args).and_then(|_| nodes.build());
            for (refused, in_graph) in [(launched.unwrap_err(), false), (built.unwrap_err(), true)]
            {
                let text = refused.to_string();
                assert!(matches!(refused, Error::Refused { .. }), "{text}");
                let size = format!("{} x 1 x 1 threads", grid.threads[0]);
                let is_named = text.contains("`fill_pattern`") && text.contains(&size);
                // A driver may check a node only when its whole graph is complete.
                assert!(is_named || (in_graph && target == Target::Cuda), "{text}");
            }
        }
    }
    expect_pattern(&values(&stream, x.view()), 1);
    fill(&stream, x.view_mut(), 3);
    expect_pattern(&values(&stream, x.view()), 3);
}

/// Launches an invalid kernel twice, and checks that the stream stays usable. Returns the error's text.
fn refused(target: Target, kernel: &Kernel<FillPattern>) -> String {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    let errors = [(); 2].map(|()| {
        let args = (x.view_mut(), LEN as u64, 2);
        let refused = stream.launch(kernel, Grid::new(1, 32), args);
        refused.unwrap_err()
    });
    assert_eq!(errors[0], errors[1]);
    expect_pattern(&values(&stream, x.view()), 1);
    fill(&stream, x.view_mut(), 3);
    expect_pattern(&values(&stream, x.view()), 3);
    let lost = matches!(errors[0], Error::DeviceLost(_));
    assert!(!lost, "{}", errors[0]);
    // The simulated GPU runs no PTX at all.
    let has_no_form = matches!(errors[0], Error::NoForm { .. });
    assert_eq!(has_no_form, target == Target::Sim, "{}", errors[0]);
    errors[0].to_string()
}

fn a_wrong_entry_is_refused_by_its_name(target: Target) {
    // SAFETY: the entry does not exist.
    let kernel = unsafe { Kernel::<FillPattern>::from_ptx(&PATTERN, "fill_patern") };
    let text = refused(target, &kernel);
    assert!(text.contains("fill_patern"), "{text}");
}

fn a_kernel_in_invalid_ptx_is_refused_with_the_compilers_message(target: Target) {
    let ptx =
        ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry broken() { nonsense; }\n";
    // SAFETY: the kernel cannot be compiled.
    let kernel = unsafe { Kernel::<FillPattern>::from_ptx(ptx, "broken") };
    let text = refused(target, &kernel);
    assert!(text.contains("broken"), "{text}");
    if target == Target::Cuda {
        assert!(text.contains("218") && text.contains("line 4"), "{text}");
    }
}

fn a_kernel_in_cuda_runs_where_there_is_a_compiler(target: Target) {
    let source = "extern \"C\" __global__ void fill_pattern(unsigned* to, unsigned long long n, unsigned seed) {
        for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            unsigned x = (unsigned)i * 0x9E3779B1u + (unsigned)(i >> 32) + seed;
            x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
            x = (x ^ (x >> 13)) * 0xC2B2AE35u;
            to[i] = x ^ (x >> 16);
        }
    }";
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    // SAFETY: the kernel writes `n` values, on every grid.
    let kernel = unsafe { Kernel::<FillPattern>::from_cuda(source, "fill_pattern") };
    let ready = device.prepare(&kernel);
    let args = (x.view_mut(), LEN as u64, 2);
    let launched = stream.launch(&kernel, Grid::new(4, 64), args);
    assert_eq!(launched, ready);
    match launched {
        Ok(()) => expect_pattern(&values(&stream, x.view()), 2),
        Err(error) => {
            let text = error.to_string().to_lowercase();
            let is_sim = target == Target::Sim;
            assert_eq!(matches!(error, Error::NoForm { .. }), is_sim, "{text}");
            assert!(is_sim || text.contains("nvrtc"), "{text}");
            expect_pattern(&values(&stream, x.view()), 1);
        }
    }
}

fn a_kernel_without_a_form_for_the_device_is_refused_by_its_name(target: Target) {
    type Copies = Kernel<(Read<u32>, Write<u32>)>;
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let (x, mut y) = (filled(&stream, LEN, 1), filled(&stream, LEN, 2));
    let kernel = match target {
        // SAFETY: the kernel is never run.
        Target::Sim => unsafe { Copies::from_ptx(PTX, "half a kernel") },
        _ => Copies::on_host("half a kernel", |_, (x, y)| y.copy_from_slice(x)),
    };
    let refused = stream.launch(&kernel, Grid::new(1, 32), (x.view(), y.view_mut()));
    let error = refused.unwrap_err();
    let Error::NoForm { kernel, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(kernel, "half a kernel");
    expect_pattern(&values(&stream, y.view()), 2);
}

fn a_kernel_is_loaded_on_many_machines_and_threads_at_once(target: Target) {
    let kernel = fresh();
    let machines = [target.open(), target.open()];
    std::thread::scope(|scope| {
        for (at, device) in machines.iter().cycle().take(6).enumerate() {
            let (kernel, seed) = (&kernel, at as u32);
            scope.spawn(move || {
                let stream = device.stream("s").unwrap();
                let mut x = stream.alloc::<u32>(LEN).unwrap();
                let args = (x.view_mut(), LEN as u64, seed);
                stream.launch(kernel, Grid::cover(LEN, 256), args).unwrap();
                expect_pattern(&values(&stream, x.view()), seed);
            });
        }
    });
}

/// Returns a kernel in PTX and in Rust that was never launched.
fn fresh() -> Kernel<FillPattern> {
    // SAFETY: as `FILL`, which it equals.
    let kernel = unsafe { Kernel::<FillPattern>::from_ptx(&PATTERN, "fill_pattern") };
    kernel.and_on_host(|_, (to, _, seed)| {
        let values = to.iter_mut().enumerate();
        values.for_each(|(at, value)| *value = pattern(at, seed));
    })
}

fn a_kernel_that_was_made_ready_is_launched(target: Target) {
    let device = target.open();
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    for seed in 2..5 {
        let kernel = fresh();
        device.prepare(&kernel).unwrap();
        device.prepare(&kernel.clone()).unwrap();
        expect_pattern(&values(&stream, x.view()), seed - 1);
        let args = (x.view_mut(), LEN as u64, seed);
        stream.launch(&kernel, Grid::cover(LEN, 256), args).unwrap();
        expect_pattern(&values(&stream, x.view()), seed);
    }
    // While the stream is busy.
    let kernel = fresh();
    spin(HOLD_NS).hold(&stream);
    fill(&stream, x.view_mut(), 6);
    device.prepare(&kernel).unwrap();
    expect_pattern(&values(&stream, x.view()), 6);
}

fn a_kernel_that_cannot_be_launched_cannot_be_made_ready(target: Target) {
    let device = target.open();
    let half: Kernel<FillPattern> = match target {
        // SAFETY: the kernel is never run.
        Target::Sim => unsafe { Kernel::from_ptx(&PATTERN, "fill_pattern") },
        Target::StandIn | Target::Cuda => {
            Kernel::<FillPattern>::on_host("fill_pattern", |_, (to, _, seed)| to.fill(seed))
        }
    };
    let refused = device.prepare(&half).unwrap_err();
    let Error::NoForm { kernel, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(kernel, "fill_pattern");
    // SAFETY: the entry does not exist.
    let wrong = unsafe { Kernel::<FillPattern>::from_ptx(&PATTERN, "fill_patern") };
    let refused = device.prepare(&wrong).unwrap_err();
    assert!(refused.to_string().contains("fill_patern"), "{refused}");
    let has_no_form = matches!(refused, Error::NoForm { .. });
    assert_eq!(has_no_form, target == Target::Sim, "{refused}");
    // The device is still usable.
    let stream = device.stream("s").unwrap();
    let mut x = filled(&stream, LEN, 1);
    fill(&stream, x.view_mut(), 2);
    expect_pattern(&values(&stream, x.view()), 2);
}
