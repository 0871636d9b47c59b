//! How much one module's debug information may cost. Its author chooses every size and count in
//! it, so each loop over it spends from here.

/// Work for one module, in units of about 50 ns on the machines that this was measured on: about
/// a second. The debug information of a 10 MB Rust module takes a fifth of that.
const WORK_MAX: u64 = 20_000_000;

/// Bytes that the parsed tables of one module may occupy.
const TABLE_MAX_BYTES: usize = 32 << 20;

/// Text that one unit of work can scan, in bytes.
const TEXT_BYTES_PER_UNIT: usize = 256;

/// The debug information costs more than one module may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exceeded;

/// What parsing one module may still cost. Counts instead of a clock, so that a module is always
/// resolved in the same way.
#[derive(Debug)]
pub(super) struct Budget {
    work: u64,
    table_bytes: usize,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { work: WORK_MAX, table_bytes: TABLE_MAX_BYTES }
    }

    /// Spends `units` of work.
    pub(super) fn work(&mut self, units: usize) -> Result<(), Exceeded> {
        self.work = self.work.checked_sub(units as u64).ok_or(Exceeded)?;
        Ok(())
    }

    /// Spends the work of scanning `bytes` of text.
    pub(super) fn scan(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.work(1 + bytes / TEXT_BYTES_PER_UNIT)
    }

    /// Spends `bytes` of the table, which stay occupied.
    pub(super) fn keep(&mut self, bytes: usize) -> Result<(), Exceeded> {
        self.table_bytes = self.table_bytes.checked_sub(bytes).ok_or(Exceeded)?;
        Ok(())
    }

    #[cfg(test)]
    pub(super) const fn of(work: u64, table_bytes: usize) -> Self {
        Self { work, table_bytes }
    }

    /// The part of the work that has been spent, in percent.
    #[cfg(test)]
    pub(super) const fn spent_percent(&self) -> u64 {
        (WORK_MAX - self.work) * 100 / WORK_MAX
    }
}
