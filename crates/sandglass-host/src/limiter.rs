//! Holds a guest to its memory and tables, and remembers what was refused, so
//! that the trap which follows a refusal is told from an ordinary one.

use sandglass_model::{GuestLimits, LimitBreach, LimitKind};
use wasmtime::{ResourceLimiter, Result};

/// The memory and tables of one run.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_limit: u64,
    table_limit: u64,
    memory_bytes: u64,
    peak_memory_bytes: u64,
    denied: Option<LimitBreach>,
}

impl Limiter {
    pub(crate) fn new(limits: &GuestLimits) -> Self {
        Self {
            memory_limit: limits.memory_bytes,
            table_limit: limits.table_elements,
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
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool> {
        let desired = desired as u64;
        if desired > self.table_limit {
            self.denied = Some(LimitBreach {
                kind: LimitKind::WasmTable,
                limit: self.table_limit,
                observed: desired,
            });
        }
        Ok(desired <= self.table_limit)
    }
}
