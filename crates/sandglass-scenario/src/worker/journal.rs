//! The journal of a scenario: it reports each append, and can be made to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandglass_journal::{Around, Batch, Error, Health, Journal, Pending, Positions};
use sandglass_model::Position;
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct ReportingJournal {
    pub(super) journal: Box<dyn Journal>,
    /// The last position that was appended.
    pub(super) appended: watch::Sender<Position>,
    pub(super) switch: JournalSwitch,
}

/// Whether the journal accepts records. Clones share the switch.
#[derive(Clone, Debug)]
pub(super) struct JournalSwitch(Arc<AtomicBool>);

impl Default for JournalSwitch {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl JournalSwitch {
    pub(super) fn set(&self, works: bool) {
        self.0.store(works, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Unavailable { what: "the scenario makes the journal fail".to_owned() })
    }
}

impl Around for ReportingJournal {
    fn inner(&self) -> &dyn Journal {
        &*self.journal
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        if let Err(error) = self.switch.check() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let appending = self.journal.append(batch);
        Box::pin(async move {
            let positions = appending.await?;
            self.appended.send_replace(positions.last);
            Ok(positions)
        })
    }

    fn health(&self) -> Health {
        match self.switch.check() {
            Ok(()) => self.journal.health(),
            Err(error) => Health::Failing { what: error.to_string() },
        }
    }
}
