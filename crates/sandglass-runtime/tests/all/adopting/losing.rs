//! Partitions that another host takes.

use std::time::Duration;

use sandglass_journal::Journal;
use sandglass_model::{Cause, Object, Partition, Position};
use sandglass_runtime::Event;

use super::hosts::{Host, JOB, Store, elsewhere, job_in, params, spec};
use crate::partitions::check;
use crate::world::{pass, settle, soon};

/// Gives jobs a variable that names their conversation.
const THREAD: &str = r#"
[[state]]
name = "thread"
type = "string"

[[action]]
name = "Count"
params = ["thread"]
"#;

fn partition() -> Partition {
    Partition::new(23).expect("there are more")
}

#[tokio::test(start_paused = true)]
async fn handlers_of_a_lost_partition_end_and_nothing_is_recorded() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    let other = Partition::new(24).expect("there are more");
    for partition in [partition(), other] {
        first.adopt(partition).await;
        for name in ["a", "b"] {
            let job = job_in(partition, name);
            first.runtime.create(job.clone()).await.expect("new");
            first.runtime.send(&job, "Work", params("seconds", 60)).await.expect("taken");
        }
    }
    let job = job_in(partition(), "a");
    let journal = &store.journals[partition().index()];
    let mut published = first.runtime.subscribe();
    let watching = tokio::spawn({
        let (runtime, job) = (first.runtime.clone(), job.clone());
        async move { runtime.settled(&job).await }
    });
    settle().await;
    // A request that waits behind one whose append hangs.
    journal.set_hanging(true);
    let requests = [(); 2].map(|()| {
        let (runtime, job) = (first.runtime.clone(), job.clone());
        tokio::spawn(async move { runtime.send(&job, "Count", Object::new()).await })
    });
    settle().await;
    let after = Position(journal.last().await.expect("memory works").0 + 1);
    store.give(partition(), 2);
    first.runtime.lose(partition());
    assert!(!first.runtime.serves(partition()) && first.runtime.serves(other));
    assert_eq!(first.runtime.in_flight().len(), 2, "those of the other partition");
    let watched = soon(watching).await.expect("soon").expect("no panic");
    assert_eq!(watched.err(), elsewhere::<()>(&job).err());
    assert_eq!(first.killed(), [Cause::OwnershipLost; 2]);
    assert_eq!(first.runtime.send(&job, "Count", Object::new()).await, elsewhere(&job));
    journal.set_hanging(false);
    let [written, waiting] = requests;
    // This one was given to the journal before.
    let written = soon(written).await.expect("soon").expect("no panic").expect("it is written");
    assert_eq!(written.position, after);
    assert_eq!(soon(waiting).await.expect("soon").expect("no panic"), elsewhere(&job));
    pass(10).await;
    assert_eq!(journal.last().await, Ok(after), "nothing but that request");
    let (mut ends, mut unserved) = (0, Vec::new());
    while let Some(Some(Ok(event))) = soon(published.next()).await {
        ends += usize::from(matches!(event, Event::RunEnded { .. }));
        if let Event::Unserved(partition) = event {
            unserved.push(partition);
        }
    }
    assert_eq!(unserved, [partition()]);
    assert_eq!(ends, 0, "their ends are dropped");
    second.adopt(partition()).await;
    assert_eq!(second.job(&job).await.state, "Idle");
    pass(60).await;
    assert_eq!(first.job(&job_in(other, "a")).await.state, "Idle");
    let last = store.transitions(&job_in(other, "a")).await.pop().expect("some");
    assert_eq!(last.0, "Worked", "the other partition goes on");
    assert!(soon(first.runtime.lost_partition()).await.is_none(), "the caller knows");
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_append_loses_the_whole_partition() {
    let store = Store::new();
    let first = Host::start(&store, 1).await;
    first.adopt(partition()).await;
    let (busy, idle) = (job_in(partition(), "busy"), job_in(partition(), "idle"));
    for job in [&busy, &idle] {
        first.runtime.create(job.clone()).await.expect("new");
    }
    first.runtime.send(&busy, "Work", params("seconds", 60)).await.expect("taken");
    store.give(partition(), 2);
    assert!(first.runtime.serves(partition()), "it does not know yet");
    assert_eq!(first.runtime.send(&idle, "Count", Object::new()).await, elsewhere(&idle));
    assert!(!first.runtime.serves(partition()));
    assert_eq!(first.runtime.lost_partition().await, Some(partition()));
    settle().await;
    assert_eq!(first.killed(), [Cause::OwnershipLost]);
    assert_eq!(first.runtime.in_flight(), []);

    // The same is found by a creation, a note of rest, and the end of a handler.
    for what in ["creation", "note", "end"] {
        first.adopt(partition()).await;
        let new = job_in(partition(), what);
        first.runtime.create(new.clone()).await.expect("new");
        if what == "end" {
            first.runtime.send(&new, "Work", params("seconds", 1)).await.expect("taken");
        }
        store.give(partition(), 2);
        if what == "creation" {
            let newer = job_in(partition(), "newer");
            let refused = first.runtime.create(newer.clone()).await.err();
            assert_eq!(refused, elsewhere::<()>(&newer).err());
        }
        pass(10).await;
        assert!(!first.runtime.serves(partition()), "{what}");
        assert_eq!(first.runtime.lost_partition().await, Some(partition()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_is_written_when_its_partition_is_lost_succeeds() {
    let store = Store::new();
    let (first, second) = (Host::start(&store, 1).await, Host::start(&store, 2).await);
    first.adopt(partition()).await;
    let job = job_in(partition(), "a");
    let journal = &store.journals[partition().index()];
    journal.set_hanging(true);
    let creation = tokio::spawn({
        let (runtime, job) = (first.runtime.clone(), job.clone());
        async move { runtime.create(job).await }
    });
    settle().await;
    store.give(partition(), 2);
    first.runtime.lose(partition());
    journal.set_hanging(false);
    let created = soon(creation).await.expect("soon").expect("no panic").expect("it is written");
    assert_eq!(created.state, "Idle");
    assert_eq!(first.runtime.send(&job, "Count", Object::new()).await, elsewhere(&job));
    second.adopt(partition()).await;
    assert_eq!(second.job(&job).await.state, "Idle");
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_when_its_partition_is_lost_leaves_nothing_for_its_conversation() {
    let source = JOB
        .replace("initial = \"Idle\"\n", "initial = \"Idle\"\nconversation = \"thread\"\n")
        .replace("\n[[action]]\nname = \"Count\"\n", THREAD);
    let store = Store::new();
    let first = Host::start(&store, 1).await;
    first.runtime.reload([spec(&format!("{source}\n[limits]\n"))]).await.expect("sound");
    let other = Partition::new(24).expect("there are more");
    let in_thread = async |partition, name| {
        let job = job_in(partition, name);
        first.runtime.create(job.clone()).await.expect("new");
        first.runtime.send(&job, "Count", params("thread", "t-1")).await.expect("taken");
        job
    };
    for is_lost in [true, false] {
        for partition in [partition(), other] {
            first.adopt(partition).await;
        }
        let ending = in_thread(partition(), if is_lost { "lost" } else { "kept" }).await;
        let journal = &store.journals[partition().index()];
        journal.set_hanging(true);
        let end = tokio::spawn({
            let runtime = first.runtime.clone();
            async move { runtime.send(&ending, "End", Object::new()).await }
        });
        settle().await;
        if is_lost {
            first.runtime.lose(partition());
        }
        journal.set_hanging(false);
        soon(end).await.expect("soon").expect("no panic").expect("it is written");
        let next = in_thread(other, if is_lost { "after-lost" } else { "after-kept" }).await;
        first.runtime.send(&next, "Work", params("seconds", 1)).await.expect("taken");
        settle().await;
        if is_lost {
            assert_eq!(first.recoveries(), [false]);
        }
    }
    assert_eq!(first.recoveries(), [false, true]);
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_not_reported_after_the_partition_was_adopted_again_or_given_up() {
    let store = Store::new();
    let first = Host::start(&store, 1).await;
    first.adopt(partition()).await;
    let job = job_in(partition(), "a");
    first.runtime.create(job.clone()).await.expect("new");
    for is_adopted in [true, false] {
        store.give(partition(), 2);
        assert_eq!(first.runtime.send(&job, "Count", Object::new()).await, elsewhere(&job));
        if is_adopted {
            first.adopt(partition()).await;
        } else {
            first.runtime.lose(partition());
        }
        assert!(soon(first.runtime.lost_partition()).await.is_none(), "{is_adopted}");
        assert_eq!(first.runtime.serves(partition()), is_adopted);
    }
    first.adopt(partition()).await;
    first.runtime.send(&job, "Count", Object::new()).await.expect("taken");
}

#[tokio::test(start_paused = true)]
async fn a_partition_that_is_lost_and_adopted_at_once_has_no_tasks_of_before() {
    let store = Store::new();
    let first = Host::start(&store, 1).await;
    first.adopt(partition()).await;
    let job = job_in(partition(), "a");
    first.runtime.create(job.clone()).await.expect("new");
    for round in 1..=20_u64 {
        first.runtime.send(&job, "Work", params("seconds", 1_000)).await.expect("taken");
        first.runtime.lose(partition());
        first.adopt(partition()).await;
        assert_eq!(first.job(&job).await.state, "Idle", "{round}");
        assert_eq!(first.runtime.in_flight(), []);
    }
    settle().await;
    assert_eq!(first.killed(), [Cause::OwnershipLost; 20]);
    first.runtime.shutdown(Duration::from_secs(1)).await;
    check(&store.journals).await;
}
