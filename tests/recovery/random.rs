//! Numbers that a seed decides.

/// SplitMix64, as its authors published it.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One that goes its own way.
    pub(crate) const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("it fits");
        usize::try_from(self.next() % end).expect("it is below a usize")
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
