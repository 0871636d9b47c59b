//! What the host holds in memory on behalf of one handler run: one account, charged by the byte.
//!
//! Everything that outlives a call and that a guest or an upstream server can make larger holds a
//! [`Charge`], which gives its bytes back when it is dropped. A new host function is covered without
//! doing anything, because the boundary measures all that a call can leave behind
//! ([`mod@crate::measured`]): the state of the run, and the resources that the call took or returned.
//! Two places charge earlier, because one call can need much at once:
//!
//! - `abi::guest_memory` charges the bytes that it copies out of a core module's memory;
//! - `capability::outside` charges open requests and the responses that are read.
//!
//! What a component passes to one call is bounded by Wasmtime's host-call fuel before it is copied
//! ([`HostMemory::call_bytes`]). Recordings, logs, metrics and cached entries have bounds of
//! their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use sandglass_model::{LimitBreach, LimitKind};

/// Most bytes that one host call may copy from a guest, unless its result may be larger: copying
/// and checking this much takes a few milliseconds, and nothing interrupts it.
const CALL_BYTES: u64 = 4 << 20;

/// The account of one run. Clones share it.
#[derive(Clone, Debug)]
pub struct HostMemory(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: u64,
    held: AtomicU64,
    peak: AtomicU64,
}

/// The account has no room. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host would hold {observed} bytes for this handler run, whose limit is {limit} \
     (`limits.host_memory`); drop what is no longer needed"
)]
pub struct OutOfHostMemory {
    /// The limit, in bytes.
    pub limit: u64,
    /// What the host would hold, in bytes.
    pub observed: u64,
}

impl OutOfHostMemory {
    /// The breach as reports carry it.
    pub fn breach(self) -> LimitBreach {
        let Self { limit, observed } = self;
        LimitBreach { kind: LimitKind::HostMemory, limit, observed }
    }
}

/// Bytes that the host holds for a run. Dropping it gives them back.
#[derive(Debug)]
pub struct Charge {
    memory: HostMemory,
    bytes: u64,
}

impl HostMemory {
    /// The account of a run for which the host may hold `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Account { limit, held: AtomicU64::new(0), peak: AtomicU64::new(0) }))
    }

    /// Charges `bytes`.
    ///
    /// # Errors
    /// They do not fit.
    pub fn charge(&self, bytes: u64) -> Result<Charge, OutOfHostMemory> {
        let mut charge = self.nothing();
        charge.resize(bytes)?;
        Ok(charge)
    }

    /// A charge of nothing yet.
    pub fn nothing(&self) -> Charge {
        Charge { memory: self.clone(), bytes: 0 }
    }

    /// Checks that `bytes` fit now, before something as large is copied.
    ///
    /// # Errors
    /// They do not fit.
    pub fn check(&self, bytes: u64) -> Result<(), OutOfHostMemory> {
        self.after(self.0.held.load(Ordering::Relaxed), bytes).map(drop)
    }

    /// Returns `bytes`, charged until the last clone is dropped.
    ///
    /// # Errors
    /// They do not fit.
    pub fn bytes(&self, bytes: Vec<u8>) -> Result<Bytes, OutOfHostMemory> {
        struct Held {
            bytes: Vec<u8>,
            _charge: Charge,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        if bytes.is_empty() {
            return Ok(Bytes::new());
        }
        let charge = self.charge(bytes.capacity() as u64)?;
        Ok(Bytes::from_owner(Held { bytes, _charge: charge }))
    }

    /// Bytes that are charged now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Most bytes that may be charged.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Most bytes that were charged at any time.
    pub fn peak(&self) -> u64 {
        self.0.peak.load(Ordering::Relaxed)
    }

    /// Most bytes that one call may copy from the guest, if its result may have `response_bytes`.
    pub fn call_bytes(response_bytes: u64) -> usize {
        let bytes = CALL_BYTES.max(response_bytes.saturating_mul(2));
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn take(&self, bytes: u64) -> Result<(), OutOfHostMemory> {
        let Account { held, peak, .. } = &*self.0;
        let add = |held| self.after(held, bytes).ok();
        let (Ok(before) | Err(before)) =
            held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        peak.fetch_max(self.after(before, bytes)?, Ordering::Relaxed);
        Ok(())
    }

    fn after(&self, held: u64, bytes: u64) -> Result<u64, OutOfHostMemory> {
        let limit = self.0.limit;
        let observed = held.saturating_add(bytes);
        if bytes > 0 && observed > limit {
            return Err(OutOfHostMemory { limit, observed });
        }
        Ok(observed)
    }

    fn give_back(&self, bytes: u64) {
        self.0.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Charge {
    /// Whether it is charged to `memory`.
    pub fn is_of(&self, memory: &HostMemory) -> bool {
        Arc::ptr_eq(&self.memory.0, &memory.0)
    }

    /// Charges `bytes` in place of what is charged now.
    ///
    /// # Errors
    /// The account has no room for the difference; the charge stays as it was.
    #[inline]
    pub fn resize(&mut self, bytes: u64) -> Result<(), OutOfHostMemory> {
        if bytes == self.bytes {
            return Ok(());
        }
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.memory.take(more)?,
            None => self.memory.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_charged_until_the_last_clone_is_dropped() {
        let memory = HostMemory::new(100);
        let bytes = memory.bytes(vec![0; 60]).expect("room");
        assert_eq!(
            memory.bytes(vec![0; 60]).err(),
            Some(OutOfHostMemory { limit: 100, observed: 120 })
        );
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!(memory.held(), 60);
        drop(part);
        assert_eq!((memory.held(), memory.peak()), (0, 60));
    }

    #[test]
    fn a_charge_that_does_not_fit_changes_nothing() {
        let memory = HostMemory::new(100);
        let mut charge = memory.charge(90).expect("room");
        assert!(charge.resize(101).is_err() && memory.check(11).is_err());
        assert_eq!(memory.held(), 90);
        charge.resize(100).expect("room");
        charge.resize(1).expect("less");
        assert_eq!((memory.held(), memory.check(99)), (1, Ok(())));
    }

    proptest! {
        /// Whatever is charged, resized and dropped: the account holds the sum of what is alive,
        /// within its limit, and nothing in the end.
        #[test]
        fn what_is_charged_returns_to_zero(
            limit in 0_u64..10_000,
            steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>(), 0_u64..4_000), 0..200),
        ) {
            let memory = HostMemory::new(limit);
            let mut alive: Vec<(Charge, u64)> = Vec::new();
            let mut peak = 0;
            for (step, at, bytes) in steps {
                match step {
                    0 | 1 => alive.extend(memory.charge(bytes).ok().map(|charge| (charge, bytes))),
                    2 if !alive.is_empty() => {
                        let at = at.index(alive.len());
                        let (charge, held) = &mut alive[at];
                        if charge.resize(bytes).is_ok() {
                            *held = bytes;
                        }
                    }
                    _ if !alive.is_empty() => {
                        let at = at.index(alive.len());
                        drop(alive.swap_remove(at));
                    }
                    _ => {}
                }
                let sum: u64 = alive.iter().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(memory.held(), sum);
                prop_assert!(sum <= limit);
                peak = peak.max(sum);
            }
            alive.clear();
            prop_assert_eq!((memory.held(), memory.peak()), (0, peak));
        }
    }
}
