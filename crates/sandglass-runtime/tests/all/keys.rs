//! Idempotency keys: a request that is sent again gets the first answer, wherever and whenever that was
//! given.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::{Journal, MemoryJournal};
use sandglass_liveness::entity::KEYS_MAX;
use sandglass_liveness::{Refusal, Replay, Retention, Spec};
use sandglass_model::{Event, Object, Position, Sequence, WallTime};
use sandglass_runtime::{
    ActorError, ErrorClass, NewEntity, Request, Runtime, SNAPSHOT_EVERY, SimClock,
};
use serde_json::json;

use crate::world::{Act, SESSION, World, completed, one, settle, two};

fn keyed(action: &str, key: &str) -> Request {
    Request::new(action).idempotency_key(key.parse().expect("a valid key"))
}

fn reused(sequence: u64) -> Result<sandglass_runtime::Accepted, ActorError> {
    let refusal = Refusal::KeyReused { sequence: Sequence(sequence) };
    Err(ActorError::Refused { entity: one(), refusal })
}

/// A runtime over `journal` whose entities sleep at once.
async fn drowsy(journal: &Arc<MemoryJournal>) -> Runtime {
    let clock = SimClock::starting_at(WallTime::from_millis(1_700_000_000_000));
    let spec = Spec::parse(SESSION).spec.expect("sound");
    let builder = Runtime::builder(Arc::clone(journal) as _).specs([spec]);
    let builder = builder.clock(Arc::new(clock)).linger(Duration::ZERO);
    builder.build().await.expect("a sound journal")
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_sent_again_gets_the_first_answer_and_starts_nothing() {
    let world = World::of(&[Act::Answer(100, completed())]).await;
    let request = || keyed("ProcessToolCalls", "a").expecting(Sequence(1));
    world.send("Touch").await.expect("taken");
    let first = world.runtime.request(&one(), request()).await.expect("taken");
    assert_eq!((first.sequence, &*first.state), (Sequence(2), "Executing"));
    assert_eq!(first.dispatches.len(), 1);
    // While its handler is in flight, and after the entity has ended.
    assert_eq!(world.runtime.request(&one(), request()).await, Ok(first.clone()));
    world.runtime.settled(&one()).await.expect("it lives");
    assert_eq!(world.state().await, "Done");
    let kinds = world.kinds().await;
    assert_eq!(world.runtime.request(&one(), request()).await, Ok(first.clone()));
    let traced = request().params(Object::new());
    assert_eq!(world.runtime.request(&one(), traced).await, Ok(first), "the trace is another one");
    assert_eq!(world.kinds().await, kinds);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn another_request_with_the_key_is_refused_and_a_refused_one_uses_none() {
    let world = World::of(&[]).await;
    let error = world.runtime.request(&one(), keyed("Finish", "a")).await.expect_err("not in Idle");
    assert_eq!(error.to_string(), "Session/one refuses: state `Idle` doesn't take `Finish`");
    let late = keyed("Touch", "a").expecting(Sequence(7));
    let late = world.runtime.request(&one(), late).await;
    assert_eq!(late, Err(ActorError::Conflict { entity: one(), expected: Sequence(7) }));
    world.runtime.request(&one(), keyed("Touch", "a")).await.expect("the key is free");
    let other = world.runtime.request(&one(), keyed("Wait", "a")).await;
    assert_eq!(other, reused(1));
    let error = other.expect_err("refused");
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("sequence 1; send each request"), "{error}");
    let params = Object::from([("n".to_owned(), json!(1))]);
    let other = world.runtime.request(&one(), keyed("Touch", "a").params(params)).await;
    assert_eq!(other, reused(1));
    let other = keyed("Touch", "a").expecting(Sequence(1));
    assert_eq!(world.runtime.request(&one(), other).await, reused(1));
    // The keys of other entities are other keys.
    world.runtime.create(two()).await.expect("new");
    world.runtime.request(&two(), keyed("Wait", "a")).await.expect("taken");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn many_callers_with_one_key_get_one_answer_of_one_transition() {
    let world = World::of(&[]).await;
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let runtime = world.runtime.clone();
            tokio::spawn(async move { runtime.request(&one(), keyed("Touch", "a")).await })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.expect("no panic").expect("taken"));
    }
    answers.dedup();
    assert_eq!((answers.len(), answers[0].sequence), (1, Sequence(1)));
    assert_eq!(world.actions().await, ["Touch"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_found_among_many_records_after_sleep_snapshots_and_a_restart() {
    let journal = Arc::new(MemoryJournal::new());
    let runtime = drowsy(&journal).await;
    runtime.create(one()).await.expect("new");
    runtime.create(two()).await.expect("new");
    let mut first = Vec::new();
    let many = KEYS_MAX as u64 + 3;
    for number in 0..many {
        let request = keyed("Touch", &format!("key-{number}"));
        first.push(runtime.request(&one(), request).await.expect("taken"));
        // Records of others, and without keys, are in between.
        for name in [one(), two()] {
            runtime.send(&name, "Touch", Object::new()).await.expect("taken");
            let signal = sandglass_runtime::Signal {
                name: "note".to_owned(),
                from: None,
                payload: json!(number),
            };
            runtime.signal(&name, signal).await.expect("recorded");
        }
        settle().await;
    }
    for number in 0..2 * SNAPSHOT_EVERY {
        runtime.send(&one(), "Touch", Object::new()).await.expect("taken");
        if number % 10 == 0 {
            settle().await;
        }
    }
    settle().await;
    assert!(journal.snapshot(one()).await.expect("readable").is_some());
    drop(runtime);
    settle().await;
    // As on another host that reads the same journal.
    let again = drowsy(&journal).await;
    let last = again.entity(&one()).await.expect("there").sequence;
    for (number, first) in first.iter().enumerate().skip(3) {
        let request = keyed("Touch", &format!("key-{number}"));
        assert_eq!(again.request(&one(), request).await.as_ref(), Ok(first));
        let other = keyed("Wait", &format!("key-{number}"));
        assert_eq!(again.request(&one(), other).await, reused(first.sequence.0));
        settle().await;
    }
    assert_eq!(again.entity(&one()).await.expect("there").sequence, last);
    let forgotten = again.request(&one(), keyed("Touch", "key-2")).await.expect("taken");
    assert_eq!(forgotten.sequence, last.next(), "64 later keys were used");
    let mut replay = Replay::new();
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = journal.read(start, 1_000).await.expect("readable");
        from = page.next;
        page.into_records().expect("whole").iter().for_each(|record| replay.feed(record));
    }
    let kept = journal.snapshot(one()).await.expect("readable").expect("there is one");
    assert!(kept.body.contains("\"keys\""));
    assert_eq!(replay.finish().divergences, []);
}

#[tokio::test(start_paused = true)]
async fn the_answer_names_the_handlers_of_its_transition_and_no_later_attempts() {
    let rerun = SESSION.replace("on_cancelled", "on_crash = \"rerun\"\non_cancelled");
    let world = World::with(&rerun, &[Act::Hang, Act::Answer(10, completed())]).await;
    let request = || keyed("ProcessToolCalls", "a");
    let first = world.runtime.request(&one(), request()).await.expect("taken");
    settle().await;
    let world = world.restart_after(1).await;
    world.runtime.settled(&one()).await.expect("it lives");
    let dispatched = world.kinds().await.iter().filter(|kind| **kind == "dispatched").count();
    assert_eq!((dispatched, first.dispatches.len()), (2, 1));
    assert_eq!(world.runtime.request(&one(), request()).await, Ok(first));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_action_of_a_new_entity_may_have_a_key() {
    let world = World::of(&[]).await;
    let first = || Some(keyed("Touch", "born"));
    let new = NewEntity { first: first(), ..NewEntity::default() };
    world.runtime.create_as(two(), new.clone()).await.expect("new");
    let again = world.runtime.create_as(two(), new).await;
    assert_eq!(again, Err(ActorError::EntityExists(two())));
    let accepted = world.runtime.request(&two(), keyed("Touch", "born")).await.expect("known");
    assert_eq!((accepted.sequence, &*accepted.state), (Sequence(1), "Idle"));
    let record = world.records().await.into_iter().find(|one| one.position == accepted.position);
    let Some(Event::Transition { idempotency: Some(one), .. }) = record.map(|one| one.event) else {
        panic!("the record of its first action, with the key");
    };
    assert_eq!((one.key.as_str(), one.expected), ("born", None));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_is_not_used_if_the_journal_does_not_take_its_record() {
    let world = World::of(&[]).await;
    world.journal.set_failing(crate::world::disk_full());
    let failed = world.runtime.request(&one(), keyed("Touch", "a")).await;
    assert!(matches!(failed, Err(ActorError::JournalUnavailable { .. })), "{failed:?}");
    world.journal.set_failing(None);
    crate::world::pass(60).await;
    let taken = world.runtime.request(&one(), keyed("Touch", "a")).await.expect("taken");
    assert_eq!(taken.sequence, Sequence(1));
    assert_eq!(world.runtime.request(&one(), keyed("Touch", "a")).await, Ok(taken));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_life_of_a_pruned_entity_knows_no_keys() {
    let journal = Arc::new(MemoryJournal::new());
    let runtime = drowsy(&journal).await;
    runtime.create(one()).await.expect("new");
    runtime.create(two()).await.expect("new");
    // Without a host for guests its handler fails.
    runtime.request(&one(), keyed("ProcessToolCalls", "a")).await.expect("taken");
    runtime.settled(&one()).await.expect("there");
    settle().await;
    let pruned = runtime.prune(Retention::Keep(0)).await.expect("writable");
    assert_eq!(pruned.entities, 1);
    let gone = runtime.request(&one(), keyed("ProcessToolCalls", "a")).await;
    assert_eq!(gone, Err(ActorError::UnknownEntity(one())));
    runtime.create(one()).await.expect("another life");
    let taken = runtime.request(&one(), keyed("Touch", "a")).await.expect("a new key");
    assert_eq!(taken.sequence, Sequence(1));
    assert_eq!(runtime.request(&one(), keyed("Touch", "a")).await, Ok(taken));
}
