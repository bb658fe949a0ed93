//! The entries of a clock for all chains but the first few.
//!
//! With thousands of chains, clocks that list all of them would take too much memory. A clock gets most of its entries from
//! another, so clocks share them in an immutable tree: a clock with a changed entry copies the nodes on the path to it and
//! shares the rest. A join walks only where two clocks differ; a subtree in which one of them is ahead throughout
//! is taken from it unchanged.

use std::sync::Arc;

/// The number of chains in a leaf, and of children of a node.
const WIDTH: usize = 16;
const BITS: u32 = WIDTH.trailing_zeros();

/// A number of steps for each chain, which is zero for most chains.
#[derive(Clone, Debug, Default)]
pub(super) struct Far {
    root: Option<Arc<Node>>,
    /// The number of levels above a leaf.
    height: u32,
}

#[derive(Debug)]
enum Node {
    Leaf([u32; WIDTH]),
    Inner([Option<Arc<Node>>; WIDTH]),
}

/// The result of joining two subtrees.
enum Joined {
    /// Both are equal to the result.
    Both,
    /// Only the first is equal to the result.
    Mine,
    Theirs,
    Neither(Arc<Node>),
}

impl Far {
    pub(super) fn get(&self, chain: u32) -> u32 {
        match &self.root {
            None => 0,
            Some(root) => find(root, self.height, chain),
        }
    }

    /// Raises the entry of a chain to at least this number of steps.
    pub(super) fn reach(&mut self, chain: u32, tick: u32) {
        if self.get(chain) < tick {
            self.rise(heights(chain));
            self.root = Some(with(self.root.take(), self.height, chain, tick));
        }
    }

    /// Replaces all entries with those of another one.
    #[inline]
    pub(super) fn set(&mut self, other: &Far) {
        if self.root.is_some() || other.root.is_some() {
            self.clone_from(other);
        }
    }

    /// Raises each entry to at least that of another one.
    #[inline]
    pub(super) fn join(&mut self, theirs: &Far) {
        if let Some(other) = &theirs.root {
            self.join_tree(theirs, other);
        }
    }

    #[inline(never)]
    fn join_tree(&mut self, theirs: &Far, other: &Arc<Node>) {
        let Some(mine) = &self.root else {
            self.clone_from(theirs);
            return;
        };
        if Arc::ptr_eq(mine, other) {
            return;
        }
        let mut theirs = theirs.clone();
        let height = self.height.max(theirs.height);
        self.rise(height);
        theirs.rise(height);
        if let (Some(mine), Some(other)) = (&self.root, theirs.root) {
            match join(mine, &other) {
                Joined::Both | Joined::Mine => {}
                Joined::Theirs => self.root = Some(other),
                Joined::Neither(both) => self.root = Some(both),
            }
        }
    }

    /// Lowers each entry to at most that of another one.
    pub(super) fn meet(&mut self, theirs: &Far) {
        let mut theirs = theirs.clone();
        let height = self.height.max(theirs.height);
        self.rise(height);
        theirs.rise(height);
        self.root = meet(self.root.as_ref(), theirs.root.as_ref());
    }

    fn rise(&mut self, height: u32) {
        while self.height < height {
            self.height += 1;
            self.root = self.root.take().map(|root| {
                let mut nodes = [const { None }; WIDTH];
                nodes[0] = Some(root);
                Arc::new(Node::Inner(nodes))
            });
        }
    }
}

/// Returns the minimum height of a tree with an entry for a chain.
fn heights(chain: u32) -> u32 {
    let digits = (u32::BITS - chain.leading_zeros()).div_ceil(BITS);
    digits.max(1) - 1
}

fn place(chain: u32, height: u32) -> usize {
    (chain >> (height * BITS)) as usize % WIDTH
}

fn find(root: &Node, height: u32, chain: u32) -> u32 {
    if heights(chain) > height {
        return 0;
    }
    let mut node = root;
    for height in (0..=height).rev() {
        match node {
            Node::Leaf(ticks) => return ticks[place(chain, 0)],
            Node::Inner(nodes) => match &nodes[place(chain, height)] {
                Some(below) => node = below,
                None => return 0,
            },
        }
    }
    0
}

/// Returns a node with one entry changed. A node that is not shared is changed in place.
fn with(node: Option<Arc<Node>>, height: u32, chain: u32, tick: u32) -> Arc<Node> {
    let mut node = node.unwrap_or_else(|| {
        Arc::new(match height {
            0 => Node::Leaf([0; WIDTH]),
            _ => Node::Inner([const { None }; WIDTH]),
        })
    });
    if Arc::get_mut(&mut node).is_none() {
        node = Arc::new(match &*node {
            Node::Leaf(ticks) => Node::Leaf(*ticks),
            Node::Inner(nodes) => Node::Inner(nodes.clone()),
        });
    }
    match Arc::get_mut(&mut node).expect("the node is not shared") {
        Node::Leaf(ticks) => ticks[place(chain, 0)] = tick,
        Node::Inner(nodes) => {
            let below = &mut nodes[place(chain, height)];
            *below = Some(with(below.take(), height - 1, chain, tick));
        }
    }
    node
}

fn join(mine: &Arc<Node>, theirs: &Arc<Node>) -> Joined {
    if Arc::ptr_eq(mine, theirs) {
        return Joined::Both;
    }
    match (&**mine, &**theirs) {
        (Node::Leaf(a), Node::Leaf(b)) => {
            let pairs = || a.iter().zip(b);
            let (more, less) = (pairs().any(|(a, b)| a > b), pairs().any(|(a, b)| a < b));
            joined(more, less, || {
                Node::Leaf(std::array::from_fn(|at| a[at].max(b[at])))
            })
        }
        (Node::Inner(a), Node::Inner(b)) => {
            let (mut more, mut less) = (false, false);
            let mut both = [const { None }; WIDTH];
            for at in 0..WIDTH {
                both[at] = match (&a[at], &b[at]) {
                    (None, None) => None,
                    (Some(a), None) => {
                        more = true;
                        Some(Arc::clone(a))
                    }
                    (None, Some(b)) => {
                        less = true;
                        Some(Arc::clone(b))
                    }
                    (Some(a), Some(b)) => Some(match join(a, b) {
                        Joined::Both => Arc::clone(a),
                        Joined::Mine => {
                            more = true;
                            Arc::clone(a)
                        }
                        Joined::Theirs => {
                            less = true;
                            Arc::clone(b)
                        }
                        Joined::Neither(both) => {
                            (more, less) = (true, true);
                            both
                        }
                    }),
                };
            }
            joined(more, less, || Node::Inner(both))
        }
        _ => unreachable!("both are of one height"),
    }
}

fn joined(more: bool, less: bool, both: impl FnOnce() -> Node) -> Joined {
    match (more, less) {
        (false, false) => Joined::Both,
        (true, false) => Joined::Mine,
        (false, true) => Joined::Theirs,
        (true, true) => Joined::Neither(Arc::new(both())),
    }
}

fn meet(mine: Option<&Arc<Node>>, theirs: Option<&Arc<Node>>) -> Option<Arc<Node>> {
    let (mine, theirs) = (mine?, theirs?);
    if Arc::ptr_eq(mine, theirs) {
        return Some(Arc::clone(mine));
    }
    let both = match (&**mine, &**theirs) {
        (Node::Leaf(a), Node::Leaf(b)) => Node::Leaf(std::array::from_fn(|at| a[at].min(b[at]))),
        (Node::Inner(a), Node::Inner(b)) => Node::Inner(std::array::from_fn(|at| {
            meet(a[at].as_ref(), b[at].as_ref())
        })),
        _ => unreachable!("both are of one height"),
    };
    Some(Arc::new(both))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies equal operations to trees and plain vectors, and compares their content.
    #[test]
    fn a_tree_holds_what_a_vector_holds() {
        const CHAINS: u32 = 5_000;
        let mut state = 3_u64;
        let mut draw = move |below: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            ((state >> 33) % u64::from(below)) as u32
        };
        let mut trees = vec![Far::default(); 8];
        let mut plain = vec![vec![0_u32; CHAINS as usize]; 8];
        for _ in 0..4_000 {
            let (a, b) = (draw(8) as usize, draw(8) as usize);
            match draw(8) {
                0 => {
                    let theirs = trees[b].clone();
                    trees[a].join(&theirs);
                    let theirs = plain[b].clone();
                    let pairs = plain[a].iter_mut().zip(theirs);
                    pairs.for_each(|(mine, theirs)| *mine = theirs.max(*mine));
                }
                1 if draw(4) == 0 => {
                    let theirs = trees[b].clone();
                    trees[a].meet(&theirs);
                    let theirs = plain[b].clone();
                    let pairs = plain[a].iter_mut().zip(theirs);
                    pairs.for_each(|(mine, theirs)| *mine = theirs.min(*mine));
                }
                _ => {
                    // Small trees and large ones.
                    let below = [16, 300, CHAINS][a % 3];
                    let (chain, tick) = (draw(below), draw(50));
                    trees[a].reach(chain, tick);
                    let entry = &mut plain[a][chain as usize];
                    *entry = tick.max(*entry);
                }
            }
            let (tree, plain) = (&trees[a], &plain[a]);
            let asked = [draw(CHAINS), draw(300), draw(16)];
            for chain in asked {
                assert_eq!(tree.get(chain), plain[chain as usize]);
            }
            assert_eq!(tree.get(CHAINS * 1_000), 0);
        }
        for (tree, plain) in trees.iter().zip(&plain) {
            let all: Vec<u32> = (0..CHAINS).map(|chain| tree.get(chain)).collect();
            assert_eq!(all, *plain);
        }
    }
}
