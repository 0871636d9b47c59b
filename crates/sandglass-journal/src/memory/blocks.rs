//! A list that grows without moving its elements: a vector of a gigabyte is copied for a second when it
//! grows, and an append would wait for that.

/// Elements of one block.
const BLOCK: usize = 1024;

/// A list in blocks of equal size. Elements are added, and never removed.
#[derive(Debug)]
pub(super) struct Blocks<T> {
    /// All but the last one are full.
    blocks: Vec<Vec<T>>,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<T> Blocks<T> {
    pub(super) fn len(&self) -> usize {
        let last = self.blocks.last().map_or(BLOCK, Vec::len);
        self.blocks.len() * BLOCK + last - BLOCK
    }

    pub(super) fn push(&mut self, element: T) {
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(element),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(element);
                self.blocks.push(block);
            }
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.blocks.get(index / BLOCK)?.get(index % BLOCK)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.blocks.get_mut(index / BLOCK)?.get_mut(index % BLOCK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_where_they_were_added() {
        let mut blocks = Blocks::default();
        assert_eq!((blocks.len(), blocks.get(0)), (0, None));
        let all = 2 * BLOCK + 1;
        for element in 0..all {
            blocks.push(element);
            assert_eq!(blocks.len(), element + 1);
        }
        *blocks.get_mut(BLOCK).expect("there") += all;
        assert_eq!(blocks.get(BLOCK - 1), Some(&(BLOCK - 1)));
        assert_eq!(blocks.get(BLOCK), Some(&(BLOCK + all)));
        assert_eq!(blocks.get(all - 1), Some(&(all - 1)));
        assert_eq!(blocks.get(all), None);
        assert_eq!(blocks.get_mut(all), None);
    }
}
