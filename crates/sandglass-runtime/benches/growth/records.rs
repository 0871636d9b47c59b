//! Starts, pages and replays of a journal in SQLite with more records.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_journal::{Checking, Journal as _, Settings, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Object, Position};
use sandglass_runtime::Runtime;

use crate::history::{RECORDS_OF_EACH, SPEC, name, write};
use crate::replaying::decide_again;
use crate::table::{Growth, repeat};

pub(crate) async fn run(folder: &Path) {
    let mut start = Growth::of("a start until requests are accepted, by records");
    let mut first = Growth::of("the first action of a sleeping entity, by records");
    let mut page = Growth::of("the page with the last records, by records");
    let mut history = Growth::of("the history of one entity (`why`, `log`), by records of all");
    let mut replay = Growth::of("a replay of all records");
    for entities in [10, 100, 1_000, 10_000] {
        let records = entities * RECORDS_OF_EACH;
        let path = folder.join(format!("{entities}.db"));
        write(&path, entities).await;
        let begun = Instant::now();
        decide_again(&path);
        replay.add(records, begun.elapsed());
        // The first start notes how entities rest; later ones read only that.
        started(&path, &name(entities / 2 + 1)).await;
        let (until_accepting, until_woken) = started(&path, &name(entities / 2 + 2)).await;
        start.add(records, until_accepting);
        first.add(records, until_woken);
        let opened = SqliteJournal::open(&path, Settings::default()).expect("a journal");
        let journal = opened.journal;
        let last = journal.last().await.expect("readable");
        let from = Position(last.0.saturating_sub(100));
        page.add(records, repeat(|| async { drop(journal.read(from, 100).await) }).await);
        let one = name(entities / 2 + 3);
        let read = || async { drop(journal.read_entity(one.clone(), Position(1), 1_000).await) };
        history.add(records, repeat(read).await);
        journal.close().await;
    }
    for growth in [start, first, page, history, replay] {
        growth.print();
    }
}

/// How long a start takes until requests are accepted, and then the first action of `sleeper`, which has no
/// handler in flight.
async fn started(path: &Path, sleeper: &EntityRef) -> (Duration, Duration) {
    let settings = Settings::default().checking(Checking::Later);
    let begun = Instant::now();
    let journal = Arc::new(SqliteJournal::open(path, settings).expect("a journal").journal);
    let spec = Spec::parse(SPEC).spec.expect("sound");
    let builder = Runtime::builder(Arc::clone(&journal) as _).specs([spec]);
    let runtime = builder.build().await.expect("sound");
    let until_accepting = begun.elapsed();
    let begun = Instant::now();
    runtime.send(sleeper, "Leave", Object::new()).await.expect("taken");
    let until_woken = begun.elapsed();
    runtime.shutdown(Duration::from_secs(5)).await;
    journal.close().await;
    (until_accepting, until_woken)
}
