//! The exit codes by name. They are a contract with scripts.

use std::process::ExitCode;

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Success.
    Ok = 0,
    /// A negative result: a spec has errors, an expectation of a scenario failed, a guest returned a
    /// failure.
    Failed = 1,
    /// Unusable input: arguments, a scenario, a journal.
    Unusable = 2,
    /// The journal diverges from its replay, or contains damaged records.
    Diverged = 3,
    /// `up` and `openwop`: another process has taken the journal. A restart would take it back.
    Taken = 4,
    /// `run`: the handler's deadline passed.
    TimedOut = 124,
    /// `run`: the host could not run the guest, or was given bad arguments.
    Rejected = 125,
    /// `run`: the guest trapped, or hit a limit other than its deadline.
    Trapped = 126,
    /// Ctrl-C.
    Cancelled = 130,
}

impl Exit {
    /// The code of a command that has read `records` of a journal, with `gaps` between them.
    pub(crate) const fn of_reading(records: u64, gaps: u64) -> Self {
        match (records, gaps) {
            (_, 0) => Self::Ok,
            (0, _) => Self::Unusable,
            _ => Self::Diverged,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // The discriminants are the codes.
        Self::from(exit as u8)
    }
}
