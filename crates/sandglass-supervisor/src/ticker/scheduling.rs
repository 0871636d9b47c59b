//! Requests to the operating system to wake the calling thread on time. Each one is optional.

use crate::kernel::KernelFeatures;

/// Requests the smallest timer slack and a short scheduler slice, if they are `wanted`, so that the
/// thread wakes when its timer fires, even if all cores are busy. Returns what was granted.
pub(super) fn prefer_punctuality(wanted: KernelFeatures) -> KernelFeatures {
    #[cfg(target_os = "linux")]
    return KernelFeatures {
        timer_slack: wanted.timer_slack && linux::set_timer_slack(),
        scheduler_slice: wanted.scheduler_slice && linux::set_slice(),
        ..KernelFeatures::NONE
    };
    #[cfg(not(target_os = "linux"))]
    KernelFeatures::NONE
}

#[cfg(target_os = "linux")]
mod linux {
    /// Slack that the kernel may add to this thread's timers, in nanoseconds
    /// (the default is 50,000).
    const TIMER_SLACK_NS: libc::c_ulong = 1;

    /// Slice of the fair scheduler, in nanoseconds: a thread with a short one runs sooner after it
    /// wakes (`sched(7)`, Linux 6.12 and newer; older ones accept the call and ignore the number).
    const SLICE_NS: u64 = 100_000;

    /// The fields of `struct sched_attr` (`sched_setattr(2)`), first version.
    #[repr(C)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }

    #[allow(unsafe_code, reason = "the standard library does not have this system call")]
    pub(super) fn set_timer_slack() -> bool {
        // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory of ours.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) == 0 }
    }

    #[allow(unsafe_code, reason = "the standard library does not have this system call")]
    pub(super) fn set_slice() -> bool {
        let attr = SchedAttr {
            size: 48,
            policy: libc::SCHED_OTHER.unsigned_abs(),
            flags: 0,
            nice: 0,
            priority: 0,
            runtime: SLICE_NS,
            deadline: 0,
            period: 0,
        };
        // SAFETY: the pointer is to a `sched_attr` of the size that it names, which
        // lives across the call; the kernel only reads it. Thread 0 is the caller.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) == 0 }
    }
}
