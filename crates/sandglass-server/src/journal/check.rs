//! Checks all of a journal file in the background if it was not checked when it was opened: reading
//! the whole file takes as long as the file is large, and nothing depends on it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_journal::{
    CheckProgress, Error as JournalError, Health, Journal as _, SqliteJournal,
};
use sandglass_model::Clock;
use sandglass_telemetry::Metrics;

use crate::error::Result;

/// Longest wait between two pieces of the check.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Checks the journal in a thread of its own, which works at most half of the time, until it is done
/// or the journal is closed.
pub(super) fn check_later(
    journal: &Arc<SqliteJournal>,
    path: &Path,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<()> {
    metrics.journal_checked(0);
    let (journal, path) = (Arc::clone(journal), path.to_owned());
    let (clock, metrics) = (Arc::clone(clock), metrics.clone());
    let begun = clock.now();
    let continued_at = Mutex::new(begun);
    let progress: CheckProgress = {
        let (journal, clock, metrics) = (Arc::clone(&journal), Arc::clone(&clock), metrics.clone());
        Arc::new(move |position| {
            if journal.health() == Health::Closed {
                return ControlFlow::Break(());
            }
            metrics.journal_checked(position.0);
            let mut continued_at = continued_at.lock().unwrap_or_else(PoisonError::into_inner);
            let worked = clock.now().since(*continued_at);
            #[expect(clippy::disallowed_methods, reason = "it paces a thread of its own")]
            std::thread::sleep(worked.min(PAUSE_MAX));
            *continued_at = clock.now();
            ControlFlow::Continue(())
        })
    };
    let check = move || {
        let checked = journal.check(&progress);
        let took = clock.now().since(begun);
        let journal = path.display();
        match checked {
            Ok(Some(last)) => {
                metrics.journal_checked(last.0);
                tracing::info!(%journal, %last, ?took, "checked the journal completely");
            }
            Ok(None) | Err(JournalError::Closed) => {}
            Err(error @ JournalError::Damaged { .. }) => {
                tracing::error!(
                    %journal,
                    %error,
                    ?took,
                    "the journal is damaged: stop the process, keep a copy, and restore a backup, or \
                     save what can be read by `sandglass journal export`"
                );
            }
            Err(error) => {
                tracing::warn!(%journal, %error, "the journal could not be checked completely");
            }
        }
    };
    std::thread::Builder::new().name("sandglass-journal-check".to_owned()).spawn(check)?;
    Ok(())
}
