//! Both stores pass the same suite.

use std::sync::Arc;

use sandglass_journal::{Journal, MemoryJournal, Settings, SqliteJournal, conformance_tests};

use crate::scratch::Scratch;

fn sqlite(scratch: &Scratch) -> Arc<dyn Journal> {
    let opened = SqliteJournal::open(scratch.journal(), Settings::default()).expect("a new file");
    Arc::new(opened.journal)
}

conformance_tests!(in_memory, || -> Arc<dyn Journal> { Arc::new(MemoryJournal::new()) });
conformance_tests!(in_sqlite, {
    let scratch = Scratch::new();
    move || sqlite(&scratch)
});
