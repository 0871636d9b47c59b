//! Holds a guest to its memory and tables, and remembers what was refused, so
//! that the trap which follows a refusal is told from an ordinary one.

use std::sync::Arc;

use sandglass_model::{Clock, GuestLimits, LimitBreach, LimitKind};
use wasmtime::{ResourceLimiter, Result};

use crate::structure::{self, InstanceState};
use sandglass_supervisor::boundary::Stopped;
use sandglass_supervisor::covered;
use sandglass_supervisor::run::Run;

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
    /// What its instances occupy beside memories and tables, whether they exist yet or not.
    instance_bytes: u64,
    /// Linear memories only.
    memory_bytes: u64,
    /// What counts against the memory limit, at most so far.
    peak_memory_bytes: u64,
    denied: Option<LimitBreach>,
    /// The run and its clock; `None` in a store in which nothing runs.
    run: Option<(Arc<Run>, Arc<dyn Clock>)>,
}

// Numbers.
covered!(
    in crate::measured::Measured; Limiter: memory_limit, table_limit, table_elements, instance_bytes, memory_bytes,
    peak_memory_bytes, denied, run,
);

impl Limiter {
    pub(crate) fn new(limits: &GuestLimits) -> Self {
        Self {
            memory_limit: limits.memory_bytes,
            table_limit: limits.table_elements,
            table_elements: 0,
            instance_bytes: 0,
            memory_bytes: 0,
            peak_memory_bytes: 0,
            denied: None,
            run: None,
        }
    }

    /// Counts the instances of a module with this `state`, and ends `run` when it is due between
    /// two of them: no code of the guest runs there, in which it could be interrupted.
    pub(crate) fn of_run(
        limits: &GuestLimits,
        state: &InstanceState,
        run: Arc<Run>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut limiter = Self::new(limits);
        limiter.instance_bytes = state.other_bytes;
        limiter.run = Some((run, clock));
        limiter
    }

    /// The last growth that was refused.
    pub(crate) fn denied(&self) -> Option<&LimitBreach> {
        self.denied.as_ref()
    }

    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        self.peak_memory_bytes
    }

    /// What counts against the memory limit with memories and tables of this size.
    fn charged(&self, memory_bytes: u64, table_elements: u64) -> u64 {
        let tables = table_elements.saturating_mul(structure::ELEMENT_BYTES);
        let beside = self.instance_bytes.saturating_add(tables);
        memory_bytes.saturating_add(structure::charged_state_bytes(beside))
    }

    /// Whether memories and tables of this size are within the memory limit; a refusal is kept.
    fn allows(&mut self, memory_bytes: u64, table_elements: u64) -> bool {
        let observed = self.charged(memory_bytes, table_elements);
        if observed > self.memory_limit {
            let limit = self.memory_limit;
            self.denied = Some(LimitBreach { kind: LimitKind::WasmMemory, limit, observed });
            return false;
        }
        true
    }

    fn keep(&mut self, memory_bytes: u64, table_elements: u64) {
        let charged = self.charged(memory_bytes, table_elements);
        self.peak_memory_bytes = self.peak_memory_bytes.max(charged);
        (self.memory_bytes, self.table_elements) = (memory_bytes, table_elements);
    }

    /// Ends the run if it is due.
    fn check_deadline(&self) -> Result<()> {
        let Some((run, clock)) = &self.run else { return Ok(()) };
        match run.due(clock.now()) {
            Some(cause) => Err(Stopped(cause).into()),
            None => Ok(()),
        }
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        if current == 0 {
            self.check_deadline()?;
        }
        let total = self.memory_bytes.saturating_add(desired.saturating_sub(current) as u64);
        if !self.allows(total, self.table_elements) {
            return Ok(false);
        }
        if maximum.is_none_or(|maximum| desired <= maximum) {
            self.keep(total, self.table_elements);
        }
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool> {
        if current == 0 {
            self.check_deadline()?;
        }
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
        if !self.allows(self.memory_bytes, total) {
            return Ok(false);
        }
        if maximum.is_none_or(|maximum| desired <= maximum as u64) {
            self.keep(self.memory_bytes, total);
        }
        Ok(true)
    }
}
