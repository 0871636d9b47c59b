//! The random bytes of one invocation, which only its seed decides.

use sha2::{Digest, Sha256};

/// Most bytes that one call gets, as in browsers. Nothing interrupts hashing, and this much takes a
/// millisecond or two.
pub(crate) const CALL_MAX_BYTES: usize = 64 << 10;

/// A stream of bytes: block `n` is the SHA-256 of the seed and of `n`, in little-endian.
#[derive(Debug)]
pub(crate) struct RandomStream {
    seed: [u8; 32],
    next: u64,
    /// The block before, whose last `unused` bytes come next.
    block: [u8; 32],
    unused: usize,
}

impl RandomStream {
    pub(crate) const fn new(seed: [u8; 32]) -> Self {
        Self { seed, next: 0, block: [0; 32], unused: 0 }
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            if self.unused == 0 {
                let mut hash = Sha256::new();
                hash.update(self.seed);
                hash.update(self.next.to_le_bytes());
                self.block = hash.finalize().into();
                self.next = self.next.wrapping_add(1);
                self.unused = self.block.len();
            }
            let rest = &self.block[self.block.len() - self.unused..];
            let taken = rest.len().min(count - bytes.len());
            bytes.extend_from_slice(&rest[..taken]);
            self.unused -= taken;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_alone_decides_the_bytes_whatever_pieces_they_are_taken_in() {
        let whole = RandomStream::new([7; 32]).take(100);
        let mut parts = RandomStream::new([7; 32]);
        let taken: Vec<u8> = [0, 1, 31, 40, 28].into_iter().flat_map(|n| parts.take(n)).collect();
        assert_eq!(taken, whole);
        assert_ne!(RandomStream::new([8; 32]).take(100), whole);

        let mut first = Sha256::new();
        first.update([7; 32]);
        first.update(0_u64.to_le_bytes());
        assert_eq!(whole[..32], first.finalize()[..], "as its page says");
    }
}
