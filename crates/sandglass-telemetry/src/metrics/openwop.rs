//! Metrics about the clients of an OpenWOP host. Its runs are sessions, and counted as such.

use super::{Metrics, OpenwopRefusal};

impl Metrics {
    /// The number of clients that read the events of runs.
    pub fn openwop_readers(&self, readers: usize) {
        self.report(|families| families.openwop_readers.report([], readers as f64));
    }

    /// A reader of events was disconnected because it read nothing for too long.
    pub fn openwop_reader_dropped(&self) {
        self.report(|families| families.openwop_readers_dropped.count([]));
    }

    /// A client was refused because there were too many.
    pub fn openwop_refused(&self, of: OpenwopRefusal) {
        self.report(|families| families.openwop_refused.count([of.as_str()]));
    }
}
