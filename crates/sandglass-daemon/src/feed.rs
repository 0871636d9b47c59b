//! The records as they come, for any number of readers: each reads them from the
//! journal at its own pace and holds one at a time, so that a slow one misses nothing and
//! costs no more memory than a record and its text.

use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream::unfold;
use sandglass_http::timer::within;
use sandglass_journal::{Entry, Journal};
use sandglass_model::Position;
use sandglass_runtime::{Event, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::live::Kills;
use crate::settings::Settings;

/// Entries that a reader holds. Each may have [`sandglass_journal::RECORD_MAX_BYTES`],
/// and there are many readers.
const HELD_ENTRIES: usize = 1;

/// Wakes readers when something was recorded.
#[derive(Debug)]
pub(crate) struct Feed {
    recorded: watch::Receiver<()>,
    waking: JoinHandle<()>,
}

impl Feed {
    /// Of what `runtime` records; what was killed is noted in `kills`.
    pub(crate) fn of(runtime: &Runtime, kills: Arc<Kills>) -> Self {
        let (wake, recorded) = watch::channel(());
        let mut events = runtime.subscribe();
        let waking = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Ok(Event::Recorded(record)) = &event {
                    kills.note(record);
                }
                // What was missed may have been a record.
                if matches!(event, Ok(Event::Recorded(_)) | Err(_)) {
                    wake.send_replace(());
                }
            }
        });
        Self { recorded, waking }
    }

    /// Changes when something was recorded.
    pub(crate) fn recorded(&self) -> watch::Receiver<()> {
        self.recorded.clone()
    }

    /// All entries after `position`, also those to come; ends when `closing`, or when
    /// the journal can't be read: whoever comes again goes on where it ended.
    pub(crate) fn after(
        &self,
        position: Position,
        journal: Arc<dyn Journal>,
        closing: watch::Receiver<bool>,
        settings: &Settings,
    ) -> impl Stream<Item = Entry> + use<> {
        let reader = Reader {
            journal,
            next: Position(position.0.saturating_add(1)),
            recorded: self.recorded.clone(),
            closing,
            look_again: settings.keep_alive,
        };
        unfold(reader, async |mut reader| Some((reader.entry().await?, reader)))
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
    look_again: std::time::Duration,
}

impl Reader {
    async fn entry(&mut self) -> Option<Entry> {
        loop {
            if *self.closing.borrow() {
                return None;
            }
            // Before the journal is read, so that no record falls between.
            self.recorded.mark_unchanged();
            let page = match self.journal.read(self.next, HELD_ENTRIES).await {
                Ok(page) => page,
                Err(error) => {
                    tracing::warn!(%error, "events can't be read on");
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
            self.more().await;
        }
    }

    /// Waits until there may be more, or it is closing.
    async fn more(&mut self) {
        let Self { recorded, closing, look_again, .. } = self;
        let woken = async {
            tokio::select! {
                _ = recorded.changed() => {}
                _ = closing.changed() => {}
            }
        };
        // A record that nobody told of is found all the same.
        let _ = within(*look_again, woken).await;
    }
}
