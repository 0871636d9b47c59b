//! Partitions that are given away without interrupting anything.

use std::time::Duration;

use sandglass_model::{Cause, EntityRef, Object, Partition};
use sandglass_runtime::Event;
use serde_json::json;

use super::hosts::{Host, Store, elsewhere, job_in, params};
use crate::partitions::check;
use crate::world::{pass, settle, soon};

const PATIENCE: Duration = Duration::from_secs(10);

fn partition() -> Partition {
    Partition::new(11).expect("there are more")
}

/// A host that releases its partition.
async fn releasing(host: &Host, patience: Duration) -> tokio::task::JoinHandle<bool> {
    let runtime = host.runtime.clone();
    let releasing = tokio::spawn(async move { runtime.release(partition(), patience).await });
    settle().await;
    releasing
}

/// Two hosts, and a job of the first one that works for so many seconds.
async fn working(store: &Store, work: Object) -> (Host, Host, EntityRef) {
    let (first, second) = (Host::start(store, 1).await, Host::start(store, 2).await);
    first.adopt(partition()).await;
    let job = job_in(partition(), "a");
    first.runtime.create(job.clone()).await.expect("new");
    first.runtime.send(&job, "Work", work).await.expect("taken");
    (first, second, job)
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_handlers_and_refuses_requests_meanwhile() {
    let store = Store::new();
    let (first, second, job) = working(&store, params("seconds", 5)).await;
    let other = job_in(partition(), "b");
    first.runtime.create(other.clone()).await.expect("new");
    // Watchers keep entities awake otherwise.
    let watching = [(&job, "Rung"), (&other, "Rung"), (&job, "Idle")].map(|(job, state)| {
        let (runtime, job) = (first.runtime.clone(), job.clone());
        let until = async move { runtime.wait_until(&job, |job| job.state == state).await };
        tokio::spawn(until)
    });
    settle().await;
    let mut published = first.runtime.subscribe();
    let mut releasing = releasing(&first, PATIENCE).await;
    assert!(!first.runtime.serves(partition()));
    for job in [&job, &other] {
        assert_eq!(first.runtime.send(job, "Count", Object::new()).await, elsewhere(job));
        assert_eq!(first.runtime.entity(job).await.err(), elsewhere::<()>(job).err());
    }
    let new = job_in(partition(), "new");
    assert_eq!(first.runtime.create(new.clone()).await.err(), elsewhere::<()>(&new).err());
    // A request that was accepted before may wait for its handler.
    let (runtime, waited) = (first.runtime.clone(), job.clone());
    let settled = tokio::spawn(async move { runtime.settled(&waited).await });
    assert_eq!(first.runtime.settled(&other).await.expect("it is idle").state, "Idle");
    pass(4).await;
    assert!(soon(&mut releasing).await.is_none(), "the handler is in flight");
    pass(1).await;
    assert!(releasing.await.expect("no panic"));
    let mut is_published = false;
    while let Some(Some(Ok(event))) = soon(published.next()).await {
        is_published |= matches!(event, Event::Unserved(of) if of == partition());
    }
    assert!(is_published);
    assert_eq!(settled.await.expect("no panic").expect("its last state").state, "Idle");
    assert_eq!(first.runtime.settled(&job).await.err(), elsewhere::<()>(&job).err());
    let [rung, other_rung, idle] = watching;
    assert_eq!(rung.await.expect("no panic").err(), elsewhere::<()>(&job).err());
    assert_eq!(other_rung.await.expect("no panic").err(), elsewhere::<()>(&other).err());
    assert_eq!(idle.await.expect("no panic").expect("its last state").state, "Idle");
    second.adopt(partition()).await;
    assert_eq!(second.job(&job).await.state, "Idle");
    second.runtime.send(&job, "Count", Object::new()).await.expect("taken");
    assert_eq!(first.killed(), []);
    let actions: Vec<_> =
        store.transitions(&job).await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["Work", "Worked", "Count"]);
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_takes_too_long_changes_nothing() {
    let store = Store::new();
    let (first, _, job) = working(&store, params("seconds", 60)).await;
    let waiting = job_in(partition(), "waiting");
    first.runtime.create(waiting.clone()).await.expect("new");
    first.runtime.send(&waiting, "Wait", Object::new()).await.expect("taken");
    let releasing = releasing(&first, PATIENCE).await;
    assert_eq!(first.runtime.send(&job, "Count", Object::new()).await, elsewhere(&job));
    pass(10).await;
    assert!(!releasing.await.expect("no panic"));
    assert!(first.runtime.serves(partition()));
    for job in [&job, &waiting] {
        first.runtime.send(job, "Count", Object::new()).await.expect("taken");
    }
    pass(100).await;
    assert_eq!(first.job(&job).await.state, "Idle");
    assert_eq!(first.job(&waiting).await.state, "Rung");
    assert_eq!(first.killed(), []);
    assert!(first.runtime.release(partition(), PATIENCE).await, "nothing is in flight");
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn handlers_in_flight_still_ask_and_timers_still_fire() {
    let store = Store::new();
    let asked = job_in(partition(), "asked");
    let mut work = params("seconds", 3);
    work.insert("ask".to_owned(), json!(asked.id()));
    let (first, second, job) = working(&store, work).await;
    let waiting = job_in(partition(), "waiting");
    for job in [&asked, &waiting] {
        first.runtime.create(job.clone()).await.expect("new");
    }
    first.runtime.send(&waiting, "Wait", Object::new()).await.expect("taken");
    let releasing = releasing(&first, PATIENCE).await;
    assert!(releasing.await.expect("no panic"));
    let answer = first.answers().pop().expect("it has asked").expect("it is answered");
    assert_eq!(answer.fields["count"], json!(1));
    second.adopt(partition()).await;
    assert_eq!(second.job(&job).await.state, "Idle");
    assert_eq!(second.job(&asked).await.variables["count"], json!(1));
    // A timer that is due while a handler is waited for.
    second.runtime.send(&job, "Work", params("seconds", 80)).await.expect("taken");
    let runtime = second.runtime.clone();
    let long = Duration::from_secs(100);
    let releasing = tokio::spawn(async move { runtime.release(partition(), long).await });
    pass(70).await;
    let rung = store.transitions(&waiting).await.pop().expect("it waits");
    assert_eq!(rung.0, "Ring");
    assert!(releasing.await.expect("no panic"));
    check(&store.journals).await;
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_makes_a_release_shorter() {
    let store = Store::new();
    let (first, _, job) = working(&store, params("seconds", 60)).await;
    let releasing = releasing(&first, PATIENCE).await;
    assert_eq!(first.runtime.cancel(&job, None, "moving").await, Ok(1));
    assert!(soon(releasing).await.expect("soon").expect("no panic"));
    assert_eq!(first.killed(), [Cause::Cancel]);
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_if_the_partition_is_lost_or_the_host_shuts_down() {
    let store = Store::new();
    let (first, second, job) = working(&store, params("seconds", 60)).await;
    let lost = releasing(&first, PATIENCE).await;
    first.runtime.lose(partition());
    assert!(!soon(lost).await.expect("soon").expect("no panic"));
    assert_eq!(first.killed(), [Cause::OwnershipLost]);
    second.adopt(partition()).await;
    second.runtime.send(&job, "Work", params("seconds", 60)).await.expect("taken");
    let closed = releasing(&second, PATIENCE).await;
    second.runtime.shutdown(Duration::from_secs(1)).await;
    assert!(!soon(closed).await.expect("soon").expect("no panic"));
    assert_eq!(second.killed(), [Cause::Shutdown]);
    let last = store.transitions(&job).await.pop().expect("some");
    assert_eq!(last.0, "Interrupted", "the shutdown records how handlers end");
}
