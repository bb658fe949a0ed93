//! The graph: points of the ops, edges between them, and whether a path connects two points.

use super::{Point, Rule};

/// The nodes (one per op and point), the edges with their rules, and the transitive closure.
pub struct Graph {
    pub nodes: Vec<(usize, Point)>,
    pub edges: Vec<(usize, usize, Rule)>,
    /// Each entry is a list of nodes, and a node that comes after one of them; which one is unknown. So this node comes
    /// after everything that comes before all of them.
    pub(super) choices: Vec<(Vec<(usize, Rule)>, usize)>,
    /// `before[n]` has bit `m` set if there is a path from `m` to `n`.
    pub(super) before: Vec<Vec<u64>>,
    pub(super) has_late_edges: bool,
    /// Edges with this rule are dropped, which shows what depends on the rule.
    pub(super) drop: Option<Rule>,
}

impl Graph {
    pub(super) fn add_node(&mut self, op: usize, point: Point) -> usize {
        self.nodes.push((op, point));
        self.nodes.len() - 1
    }

    pub(super) fn add_edge(&mut self, from: usize, to: usize, rule: Rule) {
        // Whatever must come first was called first, so edges only point forward.
        assert!(from < to, "an edge has to point forward");
        if self.drop != Some(rule) {
            self.edges.push((from, to, rule));
        }
    }

    /// Adds an edge to a node that waits for what is called only now.
    pub(super) fn add_late_edge(&mut self, from: usize, to: usize, rule: Rule) {
        self.has_late_edges = true;
        if self.drop != Some(rule) {
            self.edges.push((from, to, rule));
        }
    }

    pub(super) fn add_choice(&mut self, from: Vec<(usize, Rule)>, to: usize) {
        assert!(from.iter().all(|&(from, _)| from < to));
        self.choices.push((from, to));
    }

    pub(super) fn close(&mut self) {
        let words = self.nodes.len().div_ceil(64);
        let mut before = vec![vec![0u64; words]; self.nodes.len()];
        // Edges that point backward need as many rounds as there are of them on a path.
        let late = self.edges.iter().filter(|(from, to, _)| from > to).count();
        let rounds = if self.has_late_edges { late + 1 } else { 1 };
        for node in (0..rounds).flat_map(|_| 0..self.nodes.len()) {
            for &(from, to, _) in &self.edges {
                if to == node {
                    let earlier = before[from].clone();
                    for (mine, theirs) in before[node].iter_mut().zip(earlier) {
                        *mine |= theirs;
                    }
                    before[node][from / 64] |= 1 << (from % 64);
                }
            }
            for (from, _) in self.choices.iter().filter(|(_, to)| *to == node) {
                let mut common = vec![!0u64; words];
                for &(from, rule) in from {
                    let mut up_to = before[from].clone();
                    up_to[from / 64] |= 1 << (from % 64);
                    for (common, one) in common.iter_mut().zip(up_to) {
                        *common &= if self.drop == Some(rule) { 0 } else { one };
                    }
                }
                for (mine, common) in before[node].iter_mut().zip(common) {
                    *mine |= common;
                }
            }
        }
        self.before = before;
    }

    /// Returns whether there is a path from node `a` to node `b`.
    pub fn reaches(&self, a: usize, b: usize) -> bool {
        self.before[b][a / 64] >> (a % 64) & 1 == 1
    }

    /// Returns the node of an op at a point.
    pub fn node(&self, op: usize, point: Point) -> Option<usize> {
        self.nodes.iter().position(|&n| n == (op, point))
    }

    /// Returns whether the first point must be complete before the second begins, in every execution that the rules
    /// allow. False if one of the two points does not exist.
    pub fn ordered(&self, first: (usize, Point), second: (usize, Point)) -> bool {
        match (self.node(first.0, first.1), self.node(second.0, second.1)) {
            (Some(a), Some(b)) => self.reaches(a, b),
            _ => false,
        }
    }
}
