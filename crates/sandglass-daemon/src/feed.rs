//! The stream of records for any number of readers. Each reads from the journal at its own pace and
//! holds one record at a time, so that a slow reader misses nothing and costs no more memory than a
//! record and its text.

use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use sandglass_http::timer::within;
use sandglass_journal::{Entry, Journal};
use sandglass_model::Position;
use sandglass_runtime::{Event, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::recent_kills::RecentKills;

/// Entries that a reader holds. Each may have [`sandglass_journal::RECORD_MAX_BYTES`], and there are
/// many readers.
const HELD_ENTRIES: usize = 1;

/// Wakes readers when something is recorded.
#[derive(Debug)]
pub(crate) struct Feed {
    recorded: watch::Receiver<()>,
    waking: JoinHandle<()>,
}

impl Feed {
    /// Follows the records of `runtime`, and notes those about kills in `kills`.
    pub(crate) fn new(runtime: &Runtime, kills: Arc<RecentKills>) -> Self {
        let (wake, recorded) = watch::channel(());
        let mut events = runtime.subscribe();
        let waking = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Ok(Event::Recorded(record)) = &event {
                    kills.note(record);
                }
                // If events were missed, a record may have been among them.
                if matches!(event, Ok(Event::Recorded(_)) | Err(_)) {
                    wake.send_replace(());
                }
            }
        });
        Self { recorded, waking }
    }

    /// A channel that changes when something is recorded.
    pub(crate) fn recorded(&self) -> watch::Receiver<()> {
        self.recorded.clone()
    }

    /// All present and future entries after `position`. Ends when `closing` becomes true or the
    /// journal cannot be read; a client that reconnects continues where the stream ended. The journal
    /// is also read every `poll_every`.
    pub(crate) fn after(
        &self,
        position: Position,
        journal: Arc<dyn Journal>,
        closing: watch::Receiver<bool>,
        poll_every: Duration,
    ) -> impl Stream<Item = Entry> + use<> {
        let next = Position(position.0.saturating_add(1));
        let recorded = self.recorded();
        let reader = Reader { journal, next, recorded, closing, poll_every };
        unfold(reader, async |mut reader| Some((reader.next_entry().await?, reader)))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.waking.abort();
    }
}

struct Reader {
    journal: Arc<dyn Journal>,
    next: Position,
    recorded: watch::Receiver<()>,
    closing: watch::Receiver<bool>,
    poll_every: Duration,
}

impl Reader {
    async fn next_entry(&mut self) -> Option<Entry> {
        loop {
            if *self.closing.borrow() {
                return None;
            }
            // Before the journal is read: a record that is appended meanwhile still wakes this.
            self.recorded.mark_unchanged();
            let page = match self.journal.read(self.next, HELD_ENTRIES).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "failed to read the journal; a stream of events ends");
                    return None;
                }
            };
            if let Some(entry) = page.entries.into_iter().next() {
                self.next = Position(entry.position().0.saturating_add(entry.places()));
                if matches!(entry, Entry::Pruned { .. }) {
                    continue;
                }
                return Some(entry);
            }
            // Records of which the runtime reports nothing are found by polling.
            let _ = within(self.poll_every, wake(&mut self.recorded, &mut self.closing)).await;
        }
    }
}

/// Waits until something is recorded, or the daemon is closing.
pub(crate) async fn wake(recorded: &mut watch::Receiver<()>, closing: &mut watch::Receiver<bool>) {
    tokio::select! {
        _ = recorded.changed() => {}
        _ = closing.changed() => {}
    }
}
