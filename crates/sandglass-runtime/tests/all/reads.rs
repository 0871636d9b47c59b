//! What can be read of a runtime beside its entities: records, histories, what runs.

use sandglass_model::{DispatchId, Event, Object, Position};
use sandglass_runtime::ActorError;

use crate::world::{AGAIN, Act, SESSION, World, completed, one, pass, two};

#[tokio::test(start_paused = true)]
async fn histories_are_read_in_pages_and_the_journal_too() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    world.runtime.create(two()).await.expect("new");
    world.send("ProcessToolCalls").await.expect("taken");
    world.until("Done").await;
    let all = world.records().await;
    let (mut from, mut found) = (Some(Position(0)), Vec::new());
    while let Some(start) = from {
        let page = world.runtime.history(&one(), start, 2).await.expect("readable");
        from = page.next;
        found.extend(page.into_records().expect("whole"));
    }
    let own: Vec<_> = all.iter().filter(|record| record.entity == Some(one())).cloned().collect();
    assert_eq!(found, own);
    let page = world.runtime.records(Position(1).into(), 3).await.expect("readable");
    assert_eq!(page.next, Position(4).into());
    assert_eq!(page.into_records(), Ok(all[1..4].to_vec()));
    let nobody = "Session/nobody".parse().expect("a valid name");
    let absent = world.runtime.history(&nobody, Position(0), 1).await;
    assert_eq!(absent, Err(ActorError::UnknownEntity(nobody)));
}

#[tokio::test(start_paused = true)]
async fn handlers_are_listed_in_flight_and_found_after_their_end() {
    let source = format!("{SESSION}{AGAIN}");
    let world = World::with(&source, &[Act::Answer(5, completed()), Act::Hang]).await;
    let accepted = world.runtime.send(&one(), "ProcessToolCalls", Object::new()).await;
    let first = accepted.expect("taken").dispatches[0];
    let accepted = world.runtime.send(&one(), "Again", Object::new()).await;
    let second = accepted.expect("taken").dispatches[0];
    let running: Vec<_> = world.runtime.in_flight();
    assert!(running.iter().all(|(entity, _)| *entity == one()));
    let running: Vec<DispatchId> = running.into_iter().map(|(_, run)| run.dispatch).collect();
    assert_eq!(running, [first, second]);
    world.until("Done").await;
    pass(1).await;
    assert_eq!(world.runtime.in_flight(), []);
    for dispatch in [first, second] {
        let found = world.runtime.find_dispatch(dispatch).await.expect("it can be read");
        let (entity, at) = found.expect("it was asked for");
        assert_eq!(entity, one());
        let records = world.records().await;
        let first = records.iter().find(|record| match &record.event {
            Event::Dispatched(dispatched) => dispatched.dispatch == dispatch,
            _ => false,
        });
        assert_eq!(first.map(|record| record.position), Some(at));
    }
    let unknown = DispatchId::from_bytes([7; 16]);
    assert_eq!(world.runtime.find_dispatch(unknown).await, Ok(None));
    assert!(world.records().await.iter().any(|record| matches!(record.event, Event::Ended(_))));
}
