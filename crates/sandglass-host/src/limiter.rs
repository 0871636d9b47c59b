//! Holds a guest to its memory and tables, and remembers what was refused, so
//! that the trap which follows a refusal is told from an ordinary one.

use sandglass_model::{GuestLimits, LimitBreach, LimitKind};
use wasmtime::{ResourceLimiter, Result};

/// How many tables of the largest size a guest may have, together: more than a slot of
/// the pool has, so it bounds those alone that run on demand.
const TABLES_IN_FULL: u64 = 10;

/// The memory and tables of one run.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_limit: u64,
    table_limit: u64,
    /// Elements of all tables.
    table_elements: u64,
    memory_bytes: u64,
    peak_memory_bytes: u64,
    denied: Option<LimitBreach>,
}

impl Limiter {
    pub(crate) fn new(limits: &GuestLimits) -> Self {
        Self {
            memory_limit: limits.memory_bytes,
            table_limit: limits.table_elements,
            table_elements: 0,
            memory_bytes: 0,
            peak_memory_bytes: 0,
            denied: None,
        }
    }

    /// The last growth that was refused.
    pub(crate) fn denied(&self) -> Option<&LimitBreach> {
        self.denied.as_ref()
    }

    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        self.peak_memory_bytes
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        let total = self.memory_bytes.saturating_add(desired.saturating_sub(current) as u64);
        if total > self.memory_limit {
            self.denied = Some(LimitBreach {
                kind: LimitKind::WasmMemory,
                limit: self.memory_limit,
                observed: total,
            });
            return Ok(false);
        }
        if maximum.is_none_or(|maximum| desired <= maximum) {
            self.memory_bytes = total;
            self.peak_memory_bytes = self.peak_memory_bytes.max(total);
        }
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        let (desired, total) = (desired as u64, self.table_elements.saturating_add(more));
        let of_all = self.table_limit.saturating_mul(TABLES_IN_FULL);
        let breach = |limit, observed| LimitBreach { kind: LimitKind::WasmTable, limit, observed };
        if desired > self.table_limit {
            self.denied = Some(breach(self.table_limit, desired));
            return Ok(false);
        }
        if total > of_all {
            self.denied = Some(breach(of_all, total));
            return Ok(false);
        }
        if maximum.is_none_or(|maximum| desired <= maximum as u64) {
            self.table_elements = total;
        }
        Ok(true)
    }
}
