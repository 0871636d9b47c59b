//! The exit codes, by name: a contract with scripts.

use std::process::ExitCode;

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All is well.
    Ok = 0,
    /// What was asked about doesn't hold: a spec has errors, an expectation of a
    /// scenario failed, a guest answered failure.
    Failed = 1,
    /// What was given can't be used: arguments, a scenario, a journal.
    Unusable = 2,
    /// The journal diverges from what is decided now, or holds damaged records.
    Diverged = 3,
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
    /// How a command ends that read so many records of a journal, and met so many gaps.
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
