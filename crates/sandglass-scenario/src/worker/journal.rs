//! The journal of a scenario: it tells how far it has come, and can be made to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandglass_journal::{Around, Batch, Error, Health, Journal, Pending, Positions};
use sandglass_model::Position;
use tokio::sync::watch;

/// A journal that tells how far it has come.
#[derive(Debug)]
pub(super) struct Noticing {
    pub(super) journal: Box<dyn Journal>,
    pub(super) noticed: watch::Sender<Position>,
    pub(super) works: Works,
}

/// Whether a journal takes anything. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Works(Arc<AtomicBool>);

impl Default for Works {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Works {
    /// Whether it does from now on.
    pub(super) fn set(&self, works: bool) {
        self.0.store(works, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::Unavailable { what: "the scenario has the journal fail".to_owned() })
    }
}

impl Around for Noticing {
    fn inner(&self) -> &dyn Journal {
        &*self.journal
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        if let Err(error) = self.works.check() {
            return Box::pin(std::future::ready(Err(error)));
        }
        let appending = self.journal.append(batch);
        Box::pin(async move {
            let positions = appending.await?;
            self.noticed.send_replace(positions.last);
            Ok(positions)
        })
    }

    fn health(&self) -> Health {
        match self.works.check() {
            Ok(()) => self.journal.health(),
            Err(error) => Health::Failing { what: error.to_string() },
        }
    }
}
