//! Updates of a graph by another description.

use sidestream::device::Device;
use sidestream::error::Error;
use sidestream::kernel::Grid;

use super::{mix, mixed, on_each, slow, values, zeroed};

#[test]
fn an_update_changes_the_next_launch_and_none_before_it() {
    on_each(|device| {
        let stream = device.stream("s").unwrap();
        let slow = slow(0.5);
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &stream, 64);
        let y = zeroed(&mut nodes, &stream, 64);
        let args = (x.view_mut(), 1);
        nodes.launch(&slow, Grid::new(1, 64), args).unwrap();
        nodes.memcpy_d2d(x.view(), y.view_mut()).unwrap();
        let mut graph = nodes.build().unwrap();
        graph.launch(&stream).unwrap();

        // The first launch is pending. Other numbers, other bytes, another kernel, one more buffer.
        let mut nodes = graph.edit().unwrap();
        let z = zeroed(&mut nodes, &stream, 64);
        let args = (x.view(), y.slice_mut(..), 3);
        nodes.launch(&mix(), Grid::new(2, 32), args).unwrap();
        nodes.memcpy_d2d(y.slice(..32), z.slice_mut(32..)).unwrap();
        assert!(matches!(graph.launch(&stream), Err(Error::Invalid { .. })));
        assert!(matches!(graph.edit(), Err(Error::Invalid { .. })));
        let mut left = graph.update(nodes).unwrap();
        graph.launch(&stream).unwrap();
        // Another stream is ordered after the new accesses of the nodes.
        let other = device.stream("other").unwrap();
        let mixed = mixed(1, 1, 3);
        let [zeros, copied] = [0, mixed].map(|value| [value; 32]);
        assert_eq!(values(&graph, &other, z), [zeros, copied].concat());
        assert_eq!(values(&graph, &other, y), [mixed; 64]);
        assert_eq!(values(&graph, &other, x), [1; 64]);
        let taken = std::panic::AssertUnwindSafe(|| left.take(x));
        assert!(
            std::panic::catch_unwind(taken).is_err(),
            "it is the graph's"
        );
    });
}

#[test]
fn an_update_with_memory_of_its_own_gives_the_old_memory_back() {
    on_each(|device| {
        let streams = ["a", "b"].map(|name| device.stream(name).unwrap());
        let slow = slow(0.5);
        let described = |n: u32| {
            let mut nodes = device.graph();
            let x = zeroed(&mut nodes, &streams[0], 64);
            let back = nodes.own_pinned(device.pinned::<u32>(64).unwrap()).unwrap();
            let args = (x.view_mut(), n);
            nodes.launch(&slow, Grid::new(1, 64), args).unwrap();
            nodes.download(x.view(), back).unwrap();
            (nodes, x, back)
        };
        let (nodes, first, first_back) = described(1);
        let mut graph = nodes.build().unwrap();
        graph.launch(&streams[0]).unwrap();
        let (nodes, second, second_back) = described(20);
        let mut old = graph.update(nodes).unwrap();
        graph.launch(&streams[1]).unwrap();
        // The first launch's use of the pinned memory is pending, and is waited for.
        let old_back = old.synchronize_pinned(first_back).unwrap();
        assert_eq!(old_back[..], [1; 64]);
        let mut old = old.take(first);
        streams[1].memset(old.view_mut(), 0).unwrap();
        assert_eq!(graph.synchronize_pinned(second_back).unwrap(), [20; 64]);
        assert_eq!(values(&graph, &streams[0], second), [20; 64]);
    });
}

#[test]
fn a_description_of_another_shape_is_refused_and_comes_back() {
    on_each(|device| {
        let stream = device.stream("s").unwrap();
        let slow = slow(0.5);
        let mut nodes = device.graph();
        let x = zeroed(&mut nodes, &stream, 64);
        let y = zeroed(&mut nodes, &stream, 64);
        nodes
            .launch(&slow, Grid::new(1, 64), (x.view_mut(), 1))
            .unwrap();
        nodes
            .launch(&slow, Grid::new(1, 64), (y.view_mut(), 2))
            .unwrap();
        let mut graph = nodes.build().unwrap();
        // Fewer nodes; a node with another dependency; a node of another kind.
        for wrong in 0..3 {
            let mut nodes = device.graph();
            let z = zeroed(&mut nodes, &stream, 64);
            nodes
                .launch(&slow, Grid::new(1, 64), (z.slice_mut(..8), 4))
                .unwrap();
            match wrong {
                0 => {}
                1 => {
                    _ = nodes
                        .launch(&slow, Grid::new(1, 64), (z.view_mut(), 4))
                        .unwrap()
                }
                _ => _ = nodes.fill_with(z.slice_mut(8..), 9).unwrap(),
            }
            let refused = graph.update(nodes).unwrap_err();
            let code = matches!(refused.error, Error::Refused { code: 910, .. });
            assert!(code, "{refused}");
            // The description can be built as a graph of its own.
            let mut other = refused.value.unwrap().build().unwrap();
            other.launch(&stream).unwrap();
            assert!(values(&other, &stream, z)[0] >= 4);
        }
        graph.launch(&stream).unwrap();
        assert_eq!(values(&graph, &stream, x), [1; 64]);
        assert_eq!(values(&graph, &stream, y), [2; 64]);
    });
}

#[test]
fn a_description_for_another_device_is_refused() {
    let [one, other] = [(); 2].map(|()| Device::open("sim:h200").unwrap());
    let mut graph = one.graph().build().unwrap();
    let refused = graph.update(other.graph()).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid { .. }), "{refused}");
    assert!(refused.value.is_some());
}
