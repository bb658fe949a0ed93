//! Nodes as they are passed to the builder, and on the plain vectors.

use sidestream::error::{Error, Result};
use sidestream::graph::{GraphBuilder, NodeId};

use super::super::graph_act::{Node, Work};
use super::super::reference;
use super::holds::{Holds, Step, Values};
use super::values::{fits, scatter};
use super::{GRID, World};

impl World {
    pub(super) fn node(&self, nodes: &mut GraphBuilder, holds: &mut Holds, node: Node) {
        let (Some(x), Some(z), Some(y)) =
            (holds.part(node.x), holds.part(node.z), holds.part(node.y))
        else {
            return;
        };
        let pinned = holds.pinned_part(node.pinned);
        let Some(added) = self.added(nodes, holds, node, [&x, &z, &y], pinned) else {
            return;
        };
        let is_refused = added.is_refused;
        match added.node {
            Ok((id, step)) if !is_refused => {
                holds.nodes.push(id);
                holds.steps.push(step);
            }
            Err(Error::Invalid { .. }) if is_refused => {}
            Ok(_) => self.wrong(format!("{node:?} was taken")),
            Err(error) => self.wrong(format!("{node:?}: {error}")),
        }
    }

    /// Checks whether the builder accepted the node, and whether it should have refused it.
    fn added(
        &self,
        nodes: &mut GraphBuilder,
        holds: &Holds,
        node: Node,
        [x, z, y]: [&Values; 3],
        pinned: Option<Values>,
    ) -> Option<Added> {
        let kernels = &self.kernels;
        let read = |part: &Values| holds.view(part).view().slice(holds.bounds(part));
        let write = |part: &Values| holds.view(part).view_mut().slice(holds.bounds(part));
        let is_far = |parts: &[&Values]| {
            let mut devices = parts.iter().map(|part| holds.buffers[part.at].device);
            devices.any(|device| device != holds.device)
        };
        let value = node.value;
        let (at_x, at_z, at_y) = (x.clone(), z.clone(), y.clone());
        let (id, is_refused, step): (_, _, Step) = match node.work {
            Work::One => (
                nodes.launch(&kernels.one, GRID, (write(y),)),
                is_far(&[y]),
                Box::new(move |holds| reference::one(holds.at(&at_y))),
            ),
            Work::Trap => (
                nodes.launch(&kernels.trap, GRID, (write(y),)),
                is_far(&[y]),
                Box::new(|_| ()),
            ),
            Work::Two => (
                nodes.launch(&kernels.two, GRID, (read(x), write(y))),
                is_far(&[x, y]) || x.overlaps(y),
                Box::new(move |holds| {
                    let x = holds.at(&at_x).to_vec();
                    reference::two(&x, holds.at(&at_y));
                }),
            ),
            Work::Three => (
                nodes.launch(&kernels.three, GRID, (read(x), read(z), write(y))),
                is_far(&[x, z, y]) || x.overlaps(y) || z.overlaps(y),
                Box::new(move |holds| {
                    let (x, z) = (holds.at(&at_x).to_vec(), holds.at(&at_z).to_vec());
                    reference::three(&x, &z, holds.at(&at_y));
                }),
            ),
            Work::Four => (
                nodes.launch(&kernels.four, GRID, (read(x), write(y), write(z), value)),
                is_far(&[x, z, y]) || x.overlaps(y) || x.overlaps(z) || z.overlaps(y),
                Box::new(move |holds| {
                    let x = holds.at(&at_x).to_vec();
                    let mut z = holds.at(&at_z).to_vec();
                    reference::four(&x, holds.at(&at_y), &mut z, value);
                    holds.at(&at_z).copy_from_slice(&z);
                }),
            ),
            Work::Copy => {
                let n = x.range.len().min(y.range.len());
                let (x, y) = (x.first(n), y.first(n));
                let copied = nodes.memcpy_d2d(read(&x), write(&y));
                let is_refused = x.overlaps(&y);
                let step = move |holds: &mut Holds| {
                    let from = holds.at(&x).to_vec();
                    holds.at(&y).copy_from_slice(&from);
                };
                (copied, is_refused, Box::new(step))
            }
            Work::CopyRows(table) => {
                let (from, to) = table.rows();
                let copied = nodes.memcpy_d2d_rows(read(x), from, write(y), to);
                let is_refused =
                    !fits(from, x.range.len()) || !fits(to, y.range.len()) || x.overlaps(y);
                let step = move |holds: &mut Holds| {
                    let values = holds.at(&at_x).to_vec();
                    scatter(&values, from, holds.at(&at_y), to);
                };
                (copied, is_refused, Box::new(step))
            }
            Work::Fill => (
                nodes.fill_with(write(y), value),
                false,
                Box::new(move |holds| holds.at(&at_y).fill(value)),
            ),
            Work::Memset => (
                nodes.memset(write(y), value as u8),
                false,
                Box::new(move |holds| {
                    let value = u32::from_ne_bytes([value as u8; 4]);
                    holds.at(&at_y).fill(value);
                }),
            ),
            _ => return self.with_pinned(nodes, holds, node.work, [x, y], pinned?),
        };
        let node = id.map(|id| (id, step));
        Some(Added { node, is_refused })
    }

    /// Copies between pinned memory and a buffer.
    fn with_pinned(
        &self,
        nodes: &mut GraphBuilder,
        holds: &Holds,
        work: Work,
        [x, y]: [&Values; 2],
        pinned: Values,
    ) -> Option<Added> {
        let (key, _) = holds.pinned[pinned.at];
        let read = |part: &Values| holds.view(part).view().slice(holds.bounds(part));
        let write = |part: &Values| holds.view(part).view_mut().slice(holds.bounds(part));
        let (at_x, at_y) = (x.clone(), y.clone());
        let (id, is_refused, step): (_, _, Step) = match work {
            Work::Upload => {
                let n = pinned.range.len().min(y.range.len());
                let (pinned, y) = (pinned.first(n), y.first(n));
                let copied = nodes.upload(key.slice(pinned.range.clone()), write(&y));
                let step = move |holds: &mut Holds| {
                    let from = holds.pinned_at(&pinned).to_vec();
                    holds.at(&y).copy_from_slice(&from);
                };
                (copied, false, Box::new(step))
            }
            Work::UploadRows(table) => {
                let (from, to) = table.rows();
                let part = key.slice(pinned.range.clone());
                let copied = nodes.upload_rows(part, from, write(y), to);
                let is_refused = !fits(from, pinned.range.len()) || !fits(to, y.range.len());
                let step = move |holds: &mut Holds| {
                    let values = holds.pinned_at(&pinned).to_vec();
                    scatter(&values, from, holds.at(&at_y), to);
                };
                (copied, is_refused, Box::new(step))
            }
            Work::Download => {
                let n = pinned.range.len().min(x.range.len());
                let (pinned, x) = (pinned.first(n), x.first(n));
                let copied = nodes.download(read(&x), key.slice(pinned.range.clone()));
                let step = move |holds: &mut Holds| {
                    let from = holds.at(&x).to_vec();
                    holds.pinned_at(&pinned).copy_from_slice(&from);
                };
                (copied, false, Box::new(step))
            }
            Work::DownloadRows(table) => {
                let (to, from) = table.rows();
                let part = key.slice(pinned.range.clone());
                let copied = nodes.download_rows(read(x), from, part, to);
                let is_refused = !fits(to, pinned.range.len()) || !fits(from, x.range.len());
                let step = move |holds: &mut Holds| {
                    let values = holds.at(&at_x).to_vec();
                    scatter(&values, from, holds.pinned_at(&pinned), to);
                };
                (copied, is_refused, Box::new(step))
            }
            other => {
                self.wrong(format!("{other:?} is not carried out"));
                return None;
            }
        };
        let node = id.map(|id| (id, step));
        Some(Added { node, is_refused })
    }
}

struct Added {
    node: Result<(NodeId, Step)>,
    is_refused: bool,
}
