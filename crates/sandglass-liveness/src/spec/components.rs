//! Strongly connected components of a graph (Tarjan's algorithm). It visits each node once, and has a stack of
//! its own, because a file may chain all its actions.

/// The number of each node of a complete component. It is larger than all others, so that `min` ignores it.
const COMPLETE: usize = usize::MAX;

struct Search {
    /// By node: when it was reached, from 1, and the earliest node in its component that is known.
    reached: Vec<(usize, usize)>,
    count: usize,
    /// The reached nodes whose components are not complete.
    open: Vec<usize>,
    /// By node of a complete component: the first of its nodes that was reached.
    components: Vec<usize>,
}

/// The component of each of `nodes` nodes, by the number of one of its nodes; `next` returns the nodes that
/// follow one.
pub(super) fn components<N>(nodes: usize, next: impl Fn(usize) -> N) -> Vec<usize>
where
    N: Iterator<Item = usize>,
{
    let (reached, components) = (vec![(0, 0); nodes], vec![0; nodes]);
    let mut search = Search { reached, count: 0, open: Vec::new(), components };
    (0..nodes).for_each(|node| search.visit(node, &next));
    search.components
}

impl Search {
    fn visit<N: Iterator<Item = usize>>(&mut self, start: usize, next: &impl Fn(usize) -> N) {
        if self.reached[start].0 != 0 {
            return;
        }
        self.reach(start);
        let mut path = vec![(start, next(start))];
        while let Some((node, following)) = path.last_mut() {
            let node = *node;
            if let Some(to) = following.next() {
                if self.reached[to].0 == 0 {
                    self.reach(to);
                    path.push((to, next(to)));
                } else {
                    self.reached[node].1 = self.reached[node].1.min(self.reached[to].0);
                }
                continue;
            }
            path.pop();
            if let Some((before, _)) = path.last() {
                self.reached[*before].1 = self.reached[*before].1.min(self.reached[node].1);
            }
            if self.reached[node].0 == self.reached[node].1 {
                self.complete(node);
            }
        }
    }

    fn reach(&mut self, node: usize) {
        self.count += 1;
        self.reached[node] = (self.count, self.count);
        self.open.push(node);
    }

    /// Completes the component whose first node is `node`.
    fn complete(&mut self, node: usize) {
        let first = self.open.iter().rposition(|open| *open == node).unwrap_or_default();
        for member in self.open.drain(first..) {
            self.reached[member] = (COMPLETE, COMPLETE);
            self.components[member] = node;
        }
    }
}
