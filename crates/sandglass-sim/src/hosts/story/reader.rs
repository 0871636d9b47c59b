//! A reader of the feed of all partitions. It connects to one host after the other, and continues at its
//! cursor.

use std::sync::Arc;

use sandglass_model::{Cursor, Partition};

use crate::fault::Fault;
use crate::hosts::sim::Sim;
use crate::hosts::timeline::MS;

/// How many records it reads at once.
const PAGE: usize = 64;

/// The reader.
pub(super) struct Reader {
    cursor: Cursor,
    /// Distinguishes connections: what an earlier one returns is not read any more.
    connection: u64,
}

impl Default for Reader {
    fn default() -> Self {
        Self { cursor: Cursor::start(usize::from(Partition::COUNT)), connection: 0 }
    }
}

/// Reads one page from any host, and the next one later.
pub(super) fn read(sim: &Arc<Sim>) {
    let (cursor, connection) = {
        let mut story = sim.story();
        story.reader.connection += 1;
        (story.reader.cursor.clone(), story.reader.connection)
    };
    let hosts = sim.hosts();
    if !hosts.is_empty() {
        let host = Arc::clone(sim.clients.pick(&hosts));
        sim.after(0, Some(host.life), move |_| {
            let threads = host.threads.clone();
            drop(threads.spawn(async move {
                let Some(runtime) = host.runtime() else { return };
                let Ok(page) = runtime.records(cursor, PAGE).await else { return };
                let sim = &host.sim;
                if sim.story().reader.connection != connection {
                    return;
                }
                let mut next = page.next;
                for (index, entry) in &page.entries {
                    let partition = u8::try_from(*index).ok().and_then(Partition::new);
                    let Some(partition) = partition else { continue };
                    sim.ledger().note_fed((partition, entry.position()));
                }
                if sim.has(Fault::SkippingReader) {
                    // What was written meanwhile counts as read.
                    host.pause(5 * MS).await;
                    let ends =
                        sim.database().partitions.iter().map(|row| row.last()).collect::<Vec<_>>();
                    if page.is_end {
                        next = Cursor::new(ends);
                    }
                }
                sim.story().reader.cursor = next;
            }));
        });
    }
    let pause = sim.clients.within(50..=1_500) * MS;
    sim.after(pause, None, read);
}
