//! The lease of a host: until when it may begin effects outside of this process.
//!
//! A host of a cluster owns what it executes until another host takes over, and that happens only
//! after the lease has run out. So a host call with effects outside begins only under a valid lease;
//! [`Supervision::park`](crate::supervision::Supervision::park) holds it back until then. Guests go on
//! in their own code, and nothing is ended, because most leases that run out are renewed: the database
//! restarts, or the machine was suspended for a moment.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sandglass_model::{Clock, Monotonic, SystemClock, WallTime};
use tokio::sync::Notify;

/// The lease of a host. Clones are the same lease. The default has no end and is never extended: that
/// of a host that shares its work with no other.
#[derive(Clone)]
pub struct Lease(Arc<Shared>);

struct Shared {
    /// When it runs out, in nanoseconds of `clock`; [`Monotonic::NEVER`] if it has no end.
    until: AtomicU64,
    clock: Arc<dyn Clock>,
    /// How many host calls wait for it.
    parked: AtomicUsize,
    extended: Notify,
}

impl Lease {
    /// A lease that has run out until it is extended. Its clock also counts while the machine is
    /// suspended, because other hosts do not wait for a suspended one.
    #[must_use]
    pub fn expired() -> Self {
        Self::expired_on(Arc::new(BootClock(SystemClock::new())))
    }

    /// As [`Lease::expired`], on another clock: that of a test or of a simulation.
    #[must_use]
    pub fn expired_on(clock: Arc<dyn Clock>) -> Self {
        Self::until(Monotonic::default(), clock)
    }

    fn until(until: Monotonic, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared {
            until: AtomicU64::new(until.as_nanos()),
            clock,
            parked: AtomicUsize::new(0),
            extended: Notify::new(),
        }))
    }

    /// The present moment on the clock of the lease. Its origin differs from that of the host's clock.
    #[must_use]
    pub fn now(&self) -> Monotonic {
        self.0.clock.now()
    }

    /// Extends the lease until `until`, a moment on its own clock, and lets the host calls begin that
    /// wait for it. An earlier moment than before changes nothing.
    pub fn extend(&self, until: Monotonic) {
        self.0.until.fetch_max(until.as_nanos(), Ordering::AcqRel);
        self.0.extended.notify_waiters();
    }

    /// Ends the lease at once, until it is extended again: the host was declared dead. A lease without
    /// an end ends, too.
    pub fn expire(&self) {
        self.0.until.store(0, Ordering::Release);
    }

    /// Whether a host call may begin. It reads the clock only if the lease has an end.
    #[must_use]
    #[inline]
    pub fn is_valid(&self) -> bool {
        let until = self.0.until.load(Ordering::Acquire);
        until == Monotonic::NEVER.as_nanos() || self.0.clock.now().as_nanos() < until
    }

    /// How many host calls wait for the lease now.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.0.parked.load(Ordering::Acquire)
    }

    /// Waits until the lease is valid.
    pub async fn valid(&self) {
        loop {
            // Made before the lease is checked, so that no extension is missed in between.
            let extended = self.0.extended.notified();
            if self.is_valid() {
                return;
            }
            extended.await;
        }
    }

    /// Waits until the lease is valid, and counts as a host call that waits for it meanwhile.
    pub(crate) async fn park(&self) {
        if !self.is_valid() {
            let _parked = self.count_parked();
            self.valid().await;
        }
    }

    /// Counts a host call as parked until the guard is dropped.
    pub(crate) fn count_parked(&self) -> ParkedCall {
        self.0.parked.fetch_add(1, Ordering::AcqRel);
        ParkedCall(self.clone())
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self::until(Monotonic::NEVER, Arc::new(BootClock(SystemClock::new())))
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("is_valid", &self.is_valid())
            .field("parked", &self.parked())
            .finish_non_exhaustive()
    }
}

/// A host call that waits for its host's lease.
pub(crate) struct ParkedCall(Lease);

impl Drop for ParkedCall {
    fn drop(&mut self) {
        self.0.0.parked.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The clock of the operating system that also counts while the machine is suspended
/// (`CLOCK_BOOTTIME`; elsewhere than on Linux, the usual one).
#[derive(Debug)]
struct BootClock(SystemClock);

impl Clock for BootClock {
    #[cfg(target_os = "linux")]
    fn now(&self) -> Monotonic {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Monotonic::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    #[cfg(not(target_os = "linux"))]
    fn now(&self) -> Monotonic {
        self.0.now()
    }

    fn wall(&self) -> WallTime {
        self.0.wall()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;
    use crate::testing::SetClock;

    fn at(nanos: u64) -> Monotonic {
        Monotonic::from_nanos(nanos)
    }

    #[test]
    fn a_lease_is_valid_until_its_end_on_its_own_clock() {
        let clock = Arc::new(SetClock::at(5));
        let lease = Lease::expired_on(clock.clone());
        assert!(!lease.is_valid(), "none yet");
        assert_eq!(lease.now(), at(5));
        lease.extend(at(10));
        assert!(lease.is_valid());
        clock.set(at(9));
        assert!(lease.is_valid());
        clock.set(at(10));
        assert!(!lease.is_valid(), "the end itself is not part of it");
        lease.extend(at(11));
        lease.extend(at(7));
        assert!(lease.is_valid(), "an earlier moment changes nothing");
        lease.expire();
        assert!(!lease.is_valid());
        lease.extend(at(11));
        assert!(lease.is_valid());
    }

    #[test]
    fn the_default_has_no_end_and_reads_no_clock() {
        #[derive(Debug)]
        struct Unread;
        impl Clock for Unread {
            fn now(&self) -> Monotonic {
                panic!("the clock is read")
            }

            fn wall(&self) -> WallTime {
                WallTime::default()
            }
        }
        let lease = Lease::until(Monotonic::NEVER, Arc::new(Unread));
        assert!(lease.is_valid());
        lease.extend(at(1));
        assert!(lease.is_valid());
        assert!(Lease::default().is_valid());
    }

    #[test]
    fn the_clock_of_the_system_goes_on() {
        let lease = Lease::expired();
        let before = lease.now();
        assert!(before > Monotonic::default());
        lease.extend(before.after(Duration::from_secs(60)));
        assert!(lease.is_valid());
        assert!(lease.now() >= before);
    }

    #[test]
    fn an_extension_wakes_every_waiter_and_one_that_is_too_short_none() {
        let clock = Arc::new(SetClock::at(100));
        let lease = Lease::expired_on(clock);
        let mut waiting = [pin!(lease.valid()), pin!(lease.valid())];
        let mut context = Context::from_waker(Waker::noop());
        let mut ready = || waiting.each_mut().map(|one| one.as_mut().poll(&mut context).is_ready());
        assert_eq!(ready(), [false, false]);
        lease.extend(at(100));
        assert_eq!(ready(), [false, false], "it has run out already");
        lease.extend(at(101));
        assert_eq!(ready(), [true, true]);
    }

    #[test]
    fn parked_calls_are_counted_while_they_wait() {
        let lease = Lease::expired();
        let one = lease.count_parked();
        let other = lease.clone().count_parked();
        assert_eq!(lease.parked(), 2);
        drop(one);
        assert_eq!(lease.parked(), 1);
        drop(other);
        assert_eq!(lease.parked(), 0);
    }
}
