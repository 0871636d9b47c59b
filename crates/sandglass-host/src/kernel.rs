//! What the operating system's kernel can do for a host that not every kernel does.

/// Features of the kernel: those that a host may use ([`Settings`](crate::Settings)), or
/// those that it does ([`Host::kernel_features`](crate::Host::kernel_features)). Each
/// makes it faster or more punctual, and nothing else; a host works without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// The `PAGEMAP_SCAN` request of Linux 6.7 and newer: a slot of the pool is cleaned
    /// by the pages that its guest has touched, and not as a whole.
    pub pagemap_scan: bool,
    /// A slice of the fair scheduler for one thread (`sched_setattr`, Linux 6.12 and
    /// newer): the ticker runs soon after it wakes, also where every core is busy.
    pub scheduler_slice: bool,
    /// Timers without slack for one thread (`PR_SET_TIMERSLACK`): the ticker wakes
    /// when it means to, and not up to 50 microseconds later.
    pub timer_slack: bool,
}

impl KernelFeatures {
    /// All that there are.
    pub const ALL: Self = Self { pagemap_scan: true, scheduler_slice: true, timer_slack: true };

    /// None: what a host falls back to.
    pub const NONE: Self = Self { pagemap_scan: false, scheduler_slice: false, timer_slack: false };
}

impl Default for KernelFeatures {
    fn default() -> Self {
        Self::ALL
    }
}
