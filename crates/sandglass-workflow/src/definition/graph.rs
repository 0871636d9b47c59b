//! The graph of a definition: which edges lead where, where a run begins, and which edges close
//! loops.

use std::collections::VecDeque;

/// The edges of a definition, by node. Nodes and edges are identified by their indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    incoming: Vec<Vec<usize>>,
    outgoing: Vec<Vec<usize>>,
    back: Vec<bool>,
    entries: Vec<usize>,
    order: Vec<usize>,
}

impl Graph {
    /// The graph of `nodes` nodes and the edges between them, each as source and target.
    ///
    /// Its back edges are found by a depth-first search in the order of definition. It starts at the nodes
    /// without incoming edges, and continues with the nodes that cannot be reached from them.
    ///
    /// # Panics
    /// An edge names a node that does not exist.
    #[must_use]
    pub fn new(nodes: usize, edges: &[(usize, usize)]) -> Self {
        let mut incoming = vec![Vec::new(); nodes];
        let mut outgoing = vec![Vec::new(); nodes];
        for (edge, (source, target)) in edges.iter().enumerate() {
            outgoing[*source].push(edge);
            incoming[*target].push(edge);
        }
        let back = back_edges(edges, &incoming, &outgoing);
        let waits = |node: &usize| incoming[*node].iter().filter(|edge| !back[**edge]).count();
        let entries: Vec<usize> = (0..nodes).filter(|node| waits(node) == 0).collect();
        let mut left: Vec<usize> = (0..nodes).map(|node| waits(&node)).collect();
        let mut order = Vec::with_capacity(nodes);
        let mut ready: VecDeque<usize> = entries.iter().copied().collect();
        while let Some(node) = ready.pop_front() {
            order.push(node);
            for edge in outgoing[node].iter().filter(|edge| !back[**edge]) {
                let target = edges[*edge].1;
                left[target] -= 1;
                if left[target] == 0 {
                    ready.push_back(target);
                }
            }
        }
        Self { incoming, outgoing, back, entries, order }
    }

    /// The edges that lead to a node, back edges included, in the order of definition.
    ///
    /// # Panics
    /// There is no such node.
    #[must_use]
    pub fn incoming(&self, node: usize) -> &[usize] {
        &self.incoming[node]
    }

    /// The edges that lead from a node, back edges included, in the order of definition.
    ///
    /// # Panics
    /// There is no such node.
    #[must_use]
    pub fn outgoing(&self, node: usize) -> &[usize] {
        &self.outgoing[node]
    }

    /// Whether an edge closes a loop: it leads back to a node on the way to it.
    ///
    /// # Panics
    /// There is no such edge.
    #[must_use]
    pub fn is_back(&self, edge: usize) -> bool {
        self.back[edge]
    }

    /// The nodes that a run begins with, in the order of definition: those that no edges, or only back
    /// edges, lead to. There is at least one if there are nodes.
    #[must_use]
    pub fn entries(&self) -> &[usize] {
        &self.entries
    }

    /// All nodes, each after those that lead to it by other edges than back edges.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Unseen,
    /// It is on the path from the start to the current node.
    OnTheWay,
    Done,
}

fn back_edges(
    edges: &[(usize, usize)],
    incoming: &[Vec<usize>],
    outgoing: &[Vec<usize>],
) -> Vec<bool> {
    let mut back = vec![false; edges.len()];
    let mut marks = vec![Mark::Unseen; outgoing.len()];
    let nodes = 0..outgoing.len();
    let first = nodes.clone().filter(|node| incoming[*node].is_empty());
    for start in first.chain(nodes) {
        if marks[start] != Mark::Unseen {
            continue;
        }
        marks[start] = Mark::OnTheWay;
        // The nodes on the path, and how many of their edges were followed.
        let mut way = vec![(start, 0)];
        while let Some((node, followed)) = way.last_mut() {
            let Some(edge) = outgoing[*node].get(*followed) else {
                marks[*node] = Mark::Done;
                way.pop();
                continue;
            };
            *followed += 1;
            let target = edges[*edge].1;
            match marks[target] {
                Mark::OnTheWay => back[*edge] = true,
                Mark::Done => {}
                Mark::Unseen => {
                    marks[target] = Mark::OnTheWay;
                    way.push((target, 0));
                }
            }
        }
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_have_entries_back_edges_and_an_order() {
        type Edges<'a> = &'a [(usize, usize)];
        for (nodes, edges, entries, back, order) in [
            (0, &[] as Edges<'_>, &[] as &[usize], &[] as &[usize], &[] as &[usize]),
            (2, &[], &[0, 1], &[], &[0, 1]),
            (3, &[(0, 1), (1, 2)], &[0], &[], &[0, 1, 2]),
            // The last node is the entry, because no edge leads to it.
            (3, &[(2, 1), (1, 0), (0, 1)], &[2], &[2], &[2, 1, 0]),
            // A loop without an edge into it begins at the node that is defined first.
            (2, &[(0, 1), (1, 0)], &[0], &[1], &[0, 1]),
            (1, &[(0, 0)], &[0], &[0], &[0]),
            // A diamond, and a loop around it.
            (4, &[(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)], &[0], &[4], &[0, 1, 2, 3]),
            // Two separate loops.
            (4, &[(1, 0), (0, 1), (3, 2), (2, 3)], &[0, 2], &[0, 2], &[0, 2, 1, 3]),
            // Two edges between the same nodes.
            (2, &[(0, 1), (0, 1)], &[0], &[], &[0, 1]),
        ] {
            let graph = Graph::new(nodes, edges);
            let found: Vec<_> = (0..edges.len()).filter(|edge| graph.is_back(*edge)).collect();
            assert_eq!(graph.entries(), entries, "{edges:?}");
            assert_eq!(found, back, "{edges:?}");
            assert_eq!(graph.order(), order, "{edges:?}");
        }
    }

    #[test]
    fn edges_are_listed_at_both_ends() {
        let graph = Graph::new(3, &[(0, 1), (2, 1), (1, 0)]);
        assert_eq!(graph.incoming(1), [0, 1]);
        assert_eq!(graph.outgoing(1), [2]);
        assert_eq!(graph.incoming(0), [2]);
        assert!(graph.is_back(0), "2 leads to 1, 1 to 0, and 0 back to 1");
        assert!(!graph.is_back(2));
    }

    #[test]
    fn a_long_chain_needs_no_stack() {
        let nodes = 200_000;
        let mut edges: Vec<_> = (1..nodes).map(|node| (node - 1, node)).collect();
        edges.push((nodes - 1, 0));
        let graph = Graph::new(nodes, &edges);
        assert_eq!(graph.entries(), [0]);
        assert!(graph.is_back(nodes - 1));
        assert!(graph.order().is_sorted());
        assert_eq!(graph.order().len(), nodes);
    }
}
