//! The same over a real disk, real threads and the real clock: a few facts that
//! virtual time can't show.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::{Journal, Settings, SqliteJournal};
use sandglass_liveness::{Replay, Spec};
use sandglass_model::{EntityRef, Object, Position};
use sandglass_runtime::{Request, Runtime};

use crate::world::{SESSION, one};

async fn open(path: &std::path::Path) -> (Runtime, Arc<dyn Journal>) {
    let opened = SqliteJournal::open(path, Settings::default()).expect("a journal");
    let journal: Arc<dyn Journal> = Arc::new(opened.journal);
    let spec = Spec::parse(SESSION).spec.expect("sound");
    let runtime = Runtime::builder(Arc::clone(&journal)).specs([spec]).build().await;
    (runtime.expect("a sound journal"), journal)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_entities_on_many_threads_survive_in_one_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.db");
    let (runtime, _) = open(&path).await;
    let names: Vec<EntityRef> =
        (0..50).map(|number| format!("Session/{number}").parse().expect("valid")).collect();
    let living = names.iter().map(|name| {
        let (runtime, name) = (runtime.clone(), name.clone());
        tokio::spawn(async move {
            runtime.create(name.clone()).await.expect("new");
            for _ in 0..5 {
                runtime.send(&name, "Touch", Object::new()).await.expect("taken");
            }
            // Nothing runs handlers here, so this one is rejected at once.
            let request = Request::new("ProcessToolCalls");
            runtime.send_and_settle(&name, request).await.expect("taken").state.clone()
        })
    });
    for life in living.collect::<Vec<_>>() {
        assert_eq!(life.await.expect("no panic"), "Failed");
    }
    runtime.shutdown(Duration::from_secs(10)).await;
    let (runtime, journal) = open(&path).await;
    assert_eq!(runtime.entities(None, 1_000).await.expect("readable").len(), names.len());
    for name in &names {
        assert_eq!(runtime.entity(name).await.expect("there").sequence.0, 7);
    }
    assert!(runtime.entity(&one()).await.is_err());
    let mut replay = Replay::new();
    let mut next = Some(Position(0));
    while let Some(from) = next {
        let page = journal.read(from, 1_000).await.expect("readable");
        next = page.next;
        page.into_records().expect("whole").iter().for_each(|record| replay.feed(record));
    }
    let summary = replay.finish();
    assert_eq!((summary.divergence_count, summary.dispatches), (0, 50), "{summary:#?}");
}
