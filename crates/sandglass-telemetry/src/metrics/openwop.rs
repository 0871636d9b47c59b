//! What an OpenWOP host tells of its clients. Its runs are sessions, and counted as those.

use super::Metrics;

/// What a client of an OpenWOP host was refused, since there were too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenwopRefusal {
    /// Another run under way.
    Runs,
    /// Another reader of events.
    Readers,
    /// Another poll for events.
    Polls,
    /// The log of another run.
    Logs,
}

impl OpenwopRefusal {
    pub(super) const ALL: [Self; 4] = [Self::Runs, Self::Readers, Self::Polls, Self::Logs];

    /// The value of the label `of`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Readers => "readers",
            Self::Polls => "polls",
            Self::Logs => "logs",
        }
    }
}

impl Metrics {
    /// So many clients read the events of runs.
    pub fn openwop_readers(&self, readers: usize) {
        let Some(families) = self.families() else { return };
        #[allow(clippy::cast_precision_loss, reason = "there are thousands at most")]
        families.openwop_readers.set([], readers as f64);
    }

    /// A reader of events took nothing for too long, and was let go.
    pub fn openwop_reader_dropped(&self) {
        let Some(families) = self.families() else { return };
        families.openwop_readers_dropped.count([]);
    }

    /// A client was refused, since there were too many.
    pub fn openwop_refused(&self, of: OpenwopRefusal) {
        let Some(families) = self.families() else { return };
        families.openwop_refused.count([of.as_str()]);
    }
}
