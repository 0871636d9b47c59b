//! The rates at which the handlers of each tenant may write log lines and spans: a flood must not fill
//! a disk or hide the output of other tenants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sandglass_model::{Clock, Monotonic};

use crate::opaque::opaque;
use crate::sync::lock;

/// How much a tenant may write.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Bytes at once, after a quiet time.
    burst_bytes: u64,
    /// Bytes per second in the long run.
    bytes_per_second: u64,
}

const LOG: Rate = Rate { burst_bytes: 8 << 20, bytes_per_second: 1 << 20 };

/// For the spans of guests, with their events and attributes. They are exported in batches, not written
/// to a disk that the host shares, so they may have more.
const SPANS: Rate = Rate { burst_bytes: 32 << 20, bytes_per_second: 4 << 20 };

/// With more tenants than this, those with a full burst are removed.
const TENANTS_KEPT: usize = 1_000;

/// The rates of a host's tenants.
#[derive(Debug)]
pub struct Rates {
    pub(super) log: TenantRates,
    pub(super) spans: TenantRates,
}

impl Rates {
    /// Creates rates with full bursts.
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        let rates = |rate| TenantRates::new(Arc::clone(clock), rate);
        Self { log: rates(LOG), spans: rates(SPANS) }
    }
}

/// The token buckets of a host's tenants.
pub(super) struct TenantRates {
    clock: Arc<dyn Clock>,
    rate: Rate,
    tenants: Mutex<BTreeMap<Arc<str>, Bucket>>,
}

/// How much one tenant may write, at a moment.
struct Bucket {
    bytes: u64,
    at: Monotonic,
}

impl Bucket {
    fn refill(&mut self, now: Monotonic, rate: Rate) {
        let millis = u64::try_from(now.since(self.at).as_millis()).unwrap_or(u64::MAX);
        let earned = millis.saturating_mul(rate.bytes_per_second / 1_000);
        // Parts of a millisecond earn nothing, so the time is kept until they add up.
        if earned > 0 {
            self.bytes = self.bytes.saturating_add(earned).min(rate.burst_bytes);
            self.at = now;
        }
    }
}

impl TenantRates {
    fn new(clock: Arc<dyn Clock>, rate: Rate) -> Self {
        Self { clock, rate, tenants: Mutex::default() }
    }

    /// Takes `bytes` from the bucket of `tenant`. Returns false if it has too few.
    pub(super) fn take(&self, tenant: &Arc<str>, bytes: usize) -> bool {
        self.take_at(self.clock.now(), tenant, bytes as u64)
    }

    fn take_at(&self, now: Monotonic, tenant: &Arc<str>, bytes: u64) -> bool {
        let mut tenants = lock(&self.tenants);
        if tenants.len() >= TENANTS_KEPT && !tenants.contains_key(tenant) {
            tenants.retain(|_, bucket| {
                bucket.refill(now, self.rate);
                bucket.bytes < self.rate.burst_bytes
            });
        }
        let full = || Bucket { bytes: self.rate.burst_bytes, at: now };
        let bucket = tenants.entry(Arc::clone(tenant)).or_insert_with(full);
        bucket.refill(now, self.rate);
        let left = bucket.bytes.checked_sub(bytes);
        bucket.bytes = left.unwrap_or(bucket.bytes);
        left.is_some()
    }
}

opaque!(TenantRates as "TenantRates");

#[cfg(test)]
mod tests {
    use sandglass_model::SystemClock;

    use super::*;

    fn rates() -> TenantRates {
        TenantRates::new(Arc::new(SystemClock::new()), LOG)
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
