//! How much each tenant's handlers may write to the host's log, all together: a flood must neither
//! fill a disk nor drown what others log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{Clock, Monotonic};

/// Bytes that a tenant may write at once, after it was quiet.
const BURST_BYTES: u64 = 8 << 20;

/// Bytes per second that a tenant may write for ever.
const BYTES_PER_SECOND: u64 = 1 << 20;

/// Tenants that are remembered before those are forgotten that have all of their burst again.
const TENANTS_KEPT: usize = 1_000;

/// What the tenants of a host may write: a token bucket for each.
pub(crate) struct LogRates {
    clock: Arc<dyn Clock>,
    tenants: Mutex<BTreeMap<Arc<str>, Bucket>>,
}

/// What one tenant may write at a moment.
struct Bucket {
    bytes: u64,
    at: Monotonic,
}

impl Bucket {
    fn refill(&mut self, now: Monotonic) {
        let millis = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        let earned = millis.saturating_mul(BYTES_PER_SECOND / 1_000);
        // Less than a millisecond earns nothing, so it must not be forgotten either.
        if earned > 0 {
            self.bytes = self.bytes.saturating_add(earned).min(BURST_BYTES);
            self.at = now;
        }
    }
}

impl LogRates {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, tenants: Mutex::default() }
    }

    /// Whether `tenant` may write so many bytes now; they are taken if it may.
    pub(crate) fn take(&self, tenant: &Arc<str>, bytes: usize) -> bool {
        self.take_at(self.clock.now(), tenant, bytes as u64)
    }

    fn take_at(&self, now: Monotonic, tenant: &Arc<str>, bytes: u64) -> bool {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if tenants.len() >= TENANTS_KEPT && !tenants.contains_key(tenant) {
            tenants.retain(|_, bucket| {
                bucket.refill(now);
                bucket.bytes < BURST_BYTES
            });
        }
        let full = || Bucket { bytes: BURST_BYTES, at: now };
        let bucket = tenants.entry(Arc::clone(tenant)).or_insert_with(full);
        bucket.refill(now);
        let left = bucket.bytes.checked_sub(bytes);
        bucket.bytes = left.unwrap_or(bucket.bytes);
        left.is_some()
    }
}

impl fmt::Debug for LogRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogRates").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::SystemClock;

    use super::*;

    fn rates() -> LogRates {
        LogRates::new(Arc::new(SystemClock::new()))
    }

    const fn at(micros: u64) -> Monotonic {
        Monotonic::from_nanos(1 + micros * 1_000)
    }

    #[test]
    fn a_tenant_writes_a_burst_and_then_as_much_as_time_gives() {
        const LINE: u64 = 8 << 10;
        const SECOND: u64 = 1_000_000;
        let rates = rates();
        let (flood, calm): (Arc<str>, Arc<str>) = ("flood".into(), "calm".into());
        let write = |now| (0..100_000).take_while(|_| rates.take_at(now, &flood, LINE)).count();
        assert_eq!(write(at(0)), 1024, "8 MiB");
        assert!(rates.take_at(at(0), &calm, LINE), "others are not affected");
        let after = write(at(2 * SECOND));
        assert!((250..=256).contains(&after), "2 MiB, less what rounding takes: {after}");
        // Each is too soon to earn anything by itself.
        let soon = (1..=1_000).filter(|n| rates.take_at(at(2 * SECOND + n * 10), &flood, LINE));
        assert!((1..=2).contains(&soon.count()), "parts of a millisecond add up");
        assert_eq!(write(at(3_600 * SECOND)), 1024);
    }

    #[test]
    fn tenants_that_are_quiet_are_forgotten() {
        let rates = rates();
        for nth in 0..3 * TENANTS_KEPT as u64 {
            assert!(rates.take_at(at(nth * 10_000), &nth.to_string().into(), 100));
        }
        let tenants = rates.tenants.lock().expect("no panic");
        assert!(tenants.len() <= TENANTS_KEPT, "{}", tenants.len());
    }
}
