//! Several runtimes over the journals of one store: each serves some partitions, which are adopted,
//! released and lost while it lives.

mod asks;
mod hosts;
mod losing;
mod random;
mod releasing;

use sandglass_liveness::Retention;
use sandglass_model::{Event, Object, Partition};
use sandglass_runtime::{ActorError, BuildError};
use serde_json::json;

use self::hosts::{Host, JOB, Store, elsewhere, job_in, params, spec};
use crate::partitions::{check, records};
use crate::world::{pass, settle};

#[tokio::test(start_paused = true)]
async fn what_was_in_flight_when_a_host_ended_is_recovered_by_the_one_that_adopts() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    for partition in Partition::all() {
        let host = if partition.number() % 2 == 0 { &first } else { &second };
        assert!(!host.runtime.serves(partition));
        host.adopt(partition).await;
        assert!(host.runtime.serves(partition));
        let job = job_in(partition, "a");
        host.runtime.create(job.clone()).await.expect("new");
        host.runtime.send(&job, "Work", params("seconds", 3_600)).await.expect("taken");
        let other = if partition.number() % 2 == 0 { &second } else { &first };
        assert_eq!(other.runtime.send(&job, "Count", Object::new()).await, elsewhere(&job));
        assert_eq!(other.runtime.entity(&job).await.err(), elsewhere::<()>(&job).err());
        assert_eq!(other.runtime.create(job.clone()).await.err(), elsewhere::<()>(&job).err());
        assert_eq!(other.runtime.cancel(&job, None, "").await, elsewhere(&job));
        assert!(other.runtime.history(&job, Default::default(), 10).await.is_ok());
    }
    assert_eq!((first.runtime.in_flight().len(), second.runtime.in_flight().len()), (32, 32));
    drop(first);
    pass(10).await;
    for partition in Partition::all().filter(|partition| partition.number() % 2 == 0) {
        second.adopt(partition).await;
    }
    for partition in Partition::all() {
        let job = second.job(&job_in(partition, "a")).await;
        let is_lost = partition.number() % 2 == 0;
        assert_eq!(job.state, if is_lost { "Idle" } else { "Working" }, "{partition}");
    }
    assert_eq!(second.runtime.in_flight().len(), 32);
    assert_eq!(second.killed(), [], "its own handlers go on");
    pass(3_600).await;
    assert_eq!(second.runtime.in_flight(), []);
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn entities_that_sleep_move_with_their_timers() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    let partition = Partition::new(7).expect("there are more");
    first.adopt(partition).await;
    let (soon, late) = (job_in(partition, "soon"), job_in(partition, "late"));
    for (job, action) in [(&soon, "Wait"), (&late, "WaitLong")] {
        first.runtime.create(job.clone()).await.expect("new");
        first.runtime.send(job, action, Object::new()).await.expect("taken");
    }
    let begun = first.clock_ms();
    pass(20).await;
    assert!(first.runtime.release(partition, std::time::Duration::ZERO).await, "all rest");
    assert!(!first.runtime.serves(partition));
    pass(20).await;
    second.adopt(partition).await;
    pass(4_000).await;
    for (job, after_s) in [(&soon, 60), (&late, 3_600)] {
        assert_eq!(second.runtime.entity(job).await.expect("there").state, "Rung");
        let rung = store.transitions(job).await.into_iter().find(|(action, _)| action == "Ring");
        let (_, at) = rung.expect("it rang");
        assert_eq!((at - begun) / 1_000, after_s, "{job}");
    }
    // Nothing was read or recorded in between.
    assert!(records(&store.journals[partition.index()]).await.len() < 10);
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn timers_that_come_due_while_nobody_serves_their_partition_fire_when_it_is_adopted() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    let partition = Partition::new(7).expect("there are more");
    first.adopt(partition).await;
    let job = job_in(partition, "soon");
    first.runtime.create(job.clone()).await.expect("new");
    first.runtime.send(&job, "Wait", Object::new()).await.expect("taken");
    first.runtime.lose(partition);
    pass(100).await;
    assert_eq!(store.transitions(&job).await.len(), 1, "it is not in memory any more");
    second.adopt(partition).await;
    settle().await;
    assert_eq!(second.runtime.entity(&job).await.expect("there").state, "Rung");
}

#[tokio::test(start_paused = true)]
async fn specs_are_recorded_where_partitions_are_served_and_with_each_adoption() {
    let store = Store::new();
    let host = Host::start(&store, 1).await;
    let [served, lost, later] = [1, 2, 3].map(|number| Partition::new(number).expect("few"));
    for partition in [served, lost] {
        host.adopt(partition).await;
        host.runtime.create(job_in(partition, "a")).await.expect("new");
    }
    let newer = JOB.replace("after_seconds = 60", "after_seconds = 61");
    // Another host has one of them by now.
    store.give(lost, 2);
    host.runtime.reload([spec(&newer)]).await.expect("the other one works");
    assert_eq!(host.runtime.lost_partition().await, Some(lost));
    assert!(host.runtime.serves(served) && !host.runtime.serves(lost));
    pass(10).await;
    let digest = spec(&newer).digest;
    assert_eq!(host.runtime.entity(&job_in(served, "a")).await.expect("there").spec, digest);
    // Entities of an adopted partition change to it, awake or not.
    let other = Host::start(&store, 2).await;
    for partition in [lost, later] {
        other.adopt(partition).await;
        for name in ["b", "c"] {
            other.runtime.create(job_in(partition, name)).await.expect("new");
        }
        let busy = job_in(partition, "b");
        other.runtime.send(&busy, "Work", params("seconds", 100)).await.expect("taken");
    }
    pass(5).await;
    drop(other);
    for partition in [lost, later] {
        host.adopt(partition).await;
    }
    pass(10).await;
    for partition in [lost, later] {
        for name in ["b", "c"] {
            let job = host.runtime.entity(&job_in(partition, name)).await.expect("there");
            assert_eq!((job.spec, &*job.state), (digest, "Idle"));
        }
    }
    for (partition, journal) in Partition::all().zip(&store.journals) {
        let records = records(journal).await;
        let specs = records.iter().filter(|record| record.event.kind() == "spec_registered");
        let expected = if [served, lost, later].contains(&partition) { 2 } else { 0 };
        assert_eq!(specs.count(), expected, "{partition}");
    }
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn only_served_partitions_are_pruned() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    for partition in Partition::all() {
        let host = if partition.number() < 32 { &first } else { &second };
        host.adopt(partition).await;
        let job = job_in(partition, "a");
        host.runtime.create(job.clone()).await.expect("new");
        host.runtime.send(&job, "End", Object::new()).await.expect("taken");
    }
    pass(10).await;
    let pruned = first.runtime.prune(Retention::Keep(16)).await.expect("memory works");
    assert_eq!(pruned.entities, 0, "each has one, and its share is rounded down");
    let pruned = first.runtime.prune(Retention::Keep(0)).await.expect("memory works");
    assert_eq!(pruned.entities, 32);
    assert_eq!(first.runtime.entities(None, 100).await.expect("readable").len(), 32);
    let pruned = second.runtime.prune(Retention::Keep(0)).await.expect("memory works");
    assert_eq!(pruned.entities, 32);
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn spawns_for_other_hosts_wait_and_asks_are_refused() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    let [here, there] = [1, 2].map(|number| Partition::new(number).expect("few"));
    first.adopt(here).await;
    second.adopt(there).await;
    let (job, other) = (job_in(here, "a"), job_in(there, "b"));
    first.runtime.create(job.clone()).await.expect("new");
    first.runtime.send(&job, "Split", params("id", other.id())).await.expect("taken");
    first.runtime.send(&job, "Work", params("ask", other.id())).await.expect("taken");
    pass(60).await;
    let asked = first.answers().pop().expect("it has asked");
    let refused = asked.expect_err("another host has it");
    assert!(refused.to_string().contains("is owned by another host"), "{refused}");
    assert!(store.transitions(&other).await.is_empty());
    // The parent moves to the host that can create it.
    assert!(first.runtime.release(here, std::time::Duration::from_secs(1)).await);
    second.adopt(here).await;
    pass(1).await;
    let child = second.runtime.entity(&other).await.expect("it is spawned");
    assert_eq!(child.variables["count"], json!(1), "by its first action");
    assert_eq!(second.runtime.entity(&job).await.expect("there").spawning.len(), 0);
    check(&store.journals).await;
    let refused = |event: &Event| matches!(event, Event::SpawnRefused { .. });
    let all = records(&store.journals[here.index()]).await;
    assert!(!all.iter().any(|record| refused(&record.event)));
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_fails_leaves_nothing_and_can_be_repeated() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    let partition = Partition::new(9).expect("there are more");
    first.adopt(partition).await;
    let job = job_in(partition, "a");
    first.runtime.create(job.clone()).await.expect("new");
    first.runtime.send(&job, "Work", params("seconds", 60)).await.expect("taken");
    drop(first);
    store.give(partition, 2);
    let journal = &store.journals[partition.index()];
    journal.set_failing(Some("disk full".to_owned()));
    let failed = second.runtime.adopt(partition).await;
    assert!(matches!(failed, Err(BuildError::Recovery { .. })), "{failed:?}");
    assert!(!second.runtime.serves(partition));
    assert_eq!(second.runtime.send(&job, "Count", Object::new()).await, elsewhere(&job));
    journal.set_failing(None);
    store.give(partition, 1);
    let failed = second.runtime.adopt(partition).await;
    assert_eq!(failed, Err(BuildError::Lost(partition)), "another host has it");
    store.give(partition, 2);
    second.runtime.adopt(partition).await.expect("it works by now");
    second.runtime.adopt(partition).await.expect("it is served already");
    assert_eq!(second.runtime.entity(&job).await.expect("there").state, "Idle");
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_shuts_down_with_the_partitions_that_it_serves() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    let partition = Partition::new(5).expect("there are more");
    first.adopt(partition).await;
    let job = job_in(partition, "a");
    first.runtime.create(job.clone()).await.expect("new");
    first.runtime.send(&job, "Work", params("seconds", 60)).await.expect("taken");
    let waits = tokio::spawn({
        let runtime = first.runtime.clone();
        async move { runtime.lost_partition().await }
    });
    settle().await;
    first.runtime.shutdown(std::time::Duration::from_secs(1)).await;
    assert_eq!(waits.await.expect("no panic"), None);
    assert_eq!(first.runtime.send(&job, "Count", Object::new()).await, Err(ActorError::Closed));
    assert!(first.runtime.adopt(Partition::default()).await.is_err());
    assert!(!first.runtime.release(partition, std::time::Duration::from_secs(9)).await);
    second.adopt(partition).await;
    assert_eq!(second.runtime.entity(&job).await.expect("there").state, "Idle", "it was stopped");
    check(&store.journals).await;
}
