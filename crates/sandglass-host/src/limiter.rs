//! Limits a guest's memory and tables, and remembers what was refused, so that a trap that follows a
//! refusal is reported as the limit and not as an ordinary trap.

use std::sync::Arc;

use sandglass_model::{Clock, GuestLimits, LimitBreach, LimitKind};
use wasmtime::{ResourceLimiter, Result};

use crate::structure::InstanceState;
use sandglass_supervisor::boundary::Stopped;
use sandglass_supervisor::covered;
use sandglass_supervisor::run::Run;

/// How many tables of the largest size a guest may have together: more than a slot of the pool has, so
/// this bounds only guests that are executed on demand.
const TABLES_IN_FULL: u64 = 10;

/// The memory and tables of one handler run.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_limit: u64,
    table_limit: u64,
    /// Elements of all tables.
    table_elements: u64,
    /// What its instances occupy in addition to memories and tables, whether they exist yet or not.
    instance_bytes: u64,
    /// Linear memories only.
    memory_bytes: u64,
    /// The most that has counted against the memory limit so far.
    pub(crate) peak_memory_bytes: u64,
    /// The last growth that was refused.
    pub(crate) denied: Option<LimitBreach>,
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

    /// For instances of a module with this `state`. Ends `run` when it is due between two of them,
    /// because no guest code that could be interrupted is executed there.
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

    /// What memories and tables of this size count against the memory limit.
    fn charged(&self, memory_bytes: u64, table_elements: u64) -> u64 {
        let other_bytes = self.instance_bytes;
        InstanceState { memory_bytes, table_elements, other_bytes }.charged_bytes()
    }

    /// Whether memories and tables of this size are within the memory limit. If `is_made`, Wasmtime
    /// will make them, and they are the sizes from now on.
    fn grow(&mut self, memory_bytes: u64, table_elements: u64, is_made: bool) -> bool {
        let observed = self.charged(memory_bytes, table_elements);
        if observed > self.memory_limit {
            return self.refuse(LimitKind::WasmMemory, self.memory_limit, observed);
        }
        if is_made {
            self.peak_memory_bytes = self.peak_memory_bytes.max(observed);
            (self.memory_bytes, self.table_elements) = (memory_bytes, table_elements);
        }
        true
    }

    fn refuse(&mut self, kind: LimitKind, limit: u64, observed: u64) -> bool {
        self.denied = Some(LimitBreach { kind, limit, observed });
        false
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
        let is_made = maximum.is_none_or(|maximum| desired <= maximum);
        Ok(self.grow(total, self.table_elements, is_made))
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
        let total = self.table_elements.saturating_add(desired.saturating_sub(current) as u64);
        let total_limit = self.table_limit.saturating_mul(TABLES_IN_FULL);
        if desired as u64 > self.table_limit {
            return Ok(self.refuse(LimitKind::WasmTable, self.table_limit, desired as u64));
        }
        if total > total_limit {
            return Ok(self.refuse(LimitKind::WasmTable, total_limit, total));
        }
        let is_made = maximum.is_none_or(|maximum| desired <= maximum);
        Ok(self.grow(self.memory_bytes, total, is_made))
    }
}
