//! Features of the Linux kernel that make a host faster or more punctual, if the kernel has them.

/// Features of the kernel: those that a host may use ([`Settings`](crate::settings::Settings)), or
/// those that it uses (`Host::kernel_features`). A host works without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFeatures {
    /// `PAGEMAP_SCAN` of Linux 6.7 and newer: cleaning a slot of the pool resets only the pages that
    /// its guest has touched.
    pub pagemap_scan: bool,
    /// A slice of the fair scheduler for one thread (`sched_setattr`, Linux 6.12 and
    /// newer): the ticker runs soon after it wakes, even if every core is busy.
    pub scheduler_slice: bool,
    /// Timers without slack for one thread (`PR_SET_TIMERSLACK`): without it the ticker wakes up to 50
    /// microseconds late.
    pub timer_slack: bool,
}

impl KernelFeatures {
    /// All features.
    pub const ALL: Self = Self { pagemap_scan: true, scheduler_slice: true, timer_slack: true };

    /// No features.
    pub const NONE: Self = Self { pagemap_scan: false, scheduler_slice: false, timer_slack: false };
}

impl Default for KernelFeatures {
    fn default() -> Self {
        Self::ALL
    }
}
