//! Writes the log of a simulated world into a journal file, so that `sandglass log`, `why` and
//! `replay` can read it.

use std::path::Path;

use anyhow::Context as _;
use sandglass_journal::{Batch, Expected, Journal as _, Settings, SqliteJournal};
use sandglass_model::{Event, Position, Record};

/// Writes `records`, which must be a whole log, to the new file `path`.
///
/// # Errors
/// The file exists or cannot be written.
pub fn write_journal(path: &Path, records: &[Record]) -> anyhow::Result<()> {
    anyhow::ensure!(!path.exists(), "`{}` exists; name a new file", path.display());
    let opened = SqliteJournal::open(path, Settings::default())
        .with_context(|| format!("cannot create the journal `{}`", path.display()))?;
    let threads = tokio::runtime::Builder::new_current_thread().build()?;
    threads.block_on(async {
        let mut positions = std::collections::BTreeMap::<_, Position>::new();
        for record in records {
            let expected = match (&record.entity, &record.event) {
                (None, _) => Expected::Any,
                (Some(_), Event::Created { .. }) => Expected::None,
                (Some(entity), _) => {
                    Expected::At(positions.get(entity).copied().unwrap_or_default())
                }
            };
            let events = vec![(record.sequence, record.event.clone())];
            let batch = Batch::new(record.entity.clone(), expected, record.at, events);
            let placed = opened.journal.append(batch).await?;
            anyhow::ensure!(placed.first == record.position, "record {} moved", record.position);
            if let Some(entity) = &record.entity {
                positions.insert(entity.clone(), record.position);
            }
        }
        opened.journal.close().await;
        Ok(())
    })
}
