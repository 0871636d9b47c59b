//! Entities that have nothing to do sleep: nothing is lost or reordered by that, and
//! their timers ring as if they were awake.

#![allow(clippy::disallowed_methods, reason = "the tests wait in virtual time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sandglass_journal::{
    Around, Batch, Error, Expected, Journal, MemoryJournal, Page, Pending, Settings, SqliteJournal,
};
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Object, Position, Sequence};
use sandglass_runtime::{ActorError, Builder, LINGER, MAILBOX_MAX, Runtime, SimClock};
use sandglass_telemetry::{Prefix, Telemetry, prometheus::Exporter};

use crate::world::{Act, SESSION, World, completed, one, pass, pass_ms, settle, two};

/// How many entities are awake.
fn awake(exporter: &Exporter) -> u64 {
    let text = exporter.render();
    let line = text.lines().find_map(|line| line.strip_prefix("temper_entities_loaded "));
    line.expect("it is measured").parse().expect("a number")
}

fn measured() -> (Exporter, Telemetry) {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    (exporter, telemetry)
}

fn builder(journal: &Arc<impl Journal + 'static>) -> Builder {
    let journal: Arc<dyn Journal> = Arc::clone(journal) as _;
    let wall = sandglass_model::WallTime::from_millis(1_700_000_000_000);
    let spec = Spec::parse(SESSION).spec.expect("sound");
    Runtime::builder(journal).clock(Arc::new(SimClock::starting_at(wall))).specs([spec])
}

/// Lets so many lingers pass.
async fn linger(many: u64, of: u64) {
    pass_ms(u64::try_from(LINGER.as_millis()).expect("short") * many / of).await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_sleeps_when_it_has_had_nothing_to_do_for_a_while() {
    let (exporter, telemetry) = measured();
    let journal = Arc::new(MemoryJournal::new());
    let runtime = builder(&journal).telemetry(telemetry).build().await.expect("empty");
    runtime.create(one()).await.expect("new");
    for _ in 0..3 {
        linger(3, 4).await;
        assert_eq!(awake(&exporter), 1, "each of them keeps it awake");
        runtime.send(&one(), "Touch", Object::new()).await.expect("taken");
    }
    linger(2, 1).await;
    assert_eq!(awake(&exporter), 0);
    assert_eq!(runtime.cancel(&one(), None, "").await, Ok(0), "which wakes no entity");
    assert_eq!(runtime.history(&one(), Position(0), 10).await.expect("there").entries.len(), 4);
    assert_eq!(awake(&exporter), 0);
    assert_eq!(runtime.entity(&one()).await.expect("there").sequence, Sequence(3));
    assert_eq!(awake(&exporter), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_in_flight_and_a_waiting_caller_keep_an_entity_awake() {
    let (exporter, telemetry) = measured();
    let world = World::reporting(SESSION, &[Act::Answer(100, completed())], telemetry).await;
    settle().await;
    assert_eq!(awake(&exporter), 0);
    let patient = tokio::spawn({
        let runtime = world.runtime.clone();
        async move { runtime.wait_until(&one(), |seen| seen.state == "Done").await }
    });
    pass(1_000).await;
    assert_eq!(awake(&exporter), 1);
    patient.abort();
    settle().await;
    assert_eq!(awake(&exporter), 0, "as soon as no caller waits");
    world.send("ProcessToolCalls").await.expect("taken");
    pass(99).await;
    assert_eq!(awake(&exporter), 1);
    pass(2).await;
    assert_eq!(awake(&exporter), 0);
    assert_eq!(world.state().await, "Done");
}

#[tokio::test(start_paused = true)]
async fn timers_fire_while_all_entities_sleep() {
    let (exporter, telemetry) = measured();
    let world = World::reporting(SESSION, &[], telemetry).await;
    world.runtime.create(two()).await.expect("new");
    world.send("Wait").await.expect("taken");
    world.runtime.send(&two(), "Later", Object::new()).await.expect("taken");
    pass(299).await;
    assert_eq!(awake(&exporter), 0);
    assert_eq!(world.actions().await, ["Wait", "Later"]);
    pass(2).await;
    assert_eq!(world.actions().await, ["Wait", "Later", "Abandon"]);
    assert_eq!(awake(&exporter), 0);
    pass(86_400).await;
    assert_eq!(world.actions().await[3], "ProcessToolCalls");
    assert_eq!(awake(&exporter), 1, "its handler runs");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn more_timers_than_may_wake_at_once_all_fire() {
    let (exporter, telemetry) = measured();
    let world = World::reporting(SESSION, &[], telemetry).await;
    world.runtime.create(two()).await.expect("new");
    for number in 0..1_000 {
        let name: EntityRef = format!("Session/{number}").parse().expect("valid");
        world.runtime.create(name.clone()).await.expect("new");
        world.runtime.send(&name, "Wait", Object::new()).await.expect("taken");
    }
    // Also where the journal fails when they ring.
    pass(200).await;
    world.journal.set_failing(Some("disk full".to_owned()));
    pass(1_000).await;
    let woken = awake(&exporter);
    assert!(0 < woken && woken <= 256, "{woken} wait for the disk");
    world.journal.set_failing(None);
    pass(60).await;
    let abandoned = world.actions().await.iter().filter(|action| *action == "Abandon").count();
    assert_eq!((abandoned, awake(&exporter)), (1_000, 0));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn above_the_bound_entities_sleep_at_once() {
    let (exporter, telemetry) = measured();
    let journal = Arc::new(MemoryJournal::new());
    let builder = builder(&journal).telemetry(telemetry).awake_max(10);
    let runtime = builder.build().await.expect("empty");
    for number in 0..100 {
        let name: EntityRef = format!("Session/{number}").parse().expect("valid");
        runtime.create(name.clone()).await.expect("new");
    }
    pass_ms(10).await;
    assert_eq!(awake(&exporter), 10);
    linger(1, 1).await;
    assert_eq!(awake(&exporter), 0);
}

#[tokio::test(start_paused = true)]
async fn requests_to_a_sleeper_are_answered_in_order() {
    let world = World::of(&[]).await;
    settle().await;
    let ask = || {
        let runtime = world.runtime.clone();
        Box::pin(async move { runtime.send(&one(), "Touch", Object::new()).await })
    };
    let mut asked: Vec<_> = (0..MAILBOX_MAX).map(|_| ask()).collect();
    for one in &mut asked {
        let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx)));
        assert!(polled.await.is_pending());
    }
    for (number, one) in asked.into_iter().enumerate() {
        let sequence = one.await.expect("taken").sequence;
        assert_eq!(sequence, Sequence(number as u64 + 1));
    }
    world.replays().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_is_lost_while_an_entity_falls_asleep() {
    let folder = tempfile::tempdir().expect("a folder");
    let opened = SqliteJournal::open(folder.path().join("journal.db"), Settings::default());
    let journals: [Arc<dyn Journal>; 2] =
        [Arc::new(MemoryJournal::new()), Arc::new(opened.expect("a new file").journal)];
    for (journal, rounds) in journals.into_iter().zip([100, 20]) {
        let spec = Spec::parse(SESSION).spec.expect("sound");
        let builder = Runtime::builder(journal).specs([spec]).linger(Duration::ZERO);
        let runtime = builder.build().await.expect("empty");
        runtime.create(one()).await.expect("new");
        runtime.create(two()).await.expect("new");
        let senders = (0..8).map(|_| {
            let runtime = runtime.clone();
            tokio::spawn(async move {
                for _ in 0..rounds {
                    for name in [one(), two()] {
                        let accepted = runtime.send(&name, "Touch", Object::new()).await;
                        let at = accepted.expect("taken").sequence;
                        let seen = runtime.entity(&name).await.expect("there").sequence;
                        assert!(seen >= at, "what was answered is seen");
                    }
                }
            })
        });
        for sender in senders.collect::<Vec<_>>() {
            sender.await.expect("no panic");
        }
        for name in [one(), two()] {
            let sequence = runtime.entity(&name).await.expect("there").sequence;
            assert_eq!(sequence, Sequence(8 * rounds));
        }
        runtime.shutdown(Duration::from_secs(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleeper_that_another_process_writes_is_given_up() {
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    let mut stolen = world.records().await.pop().expect("the transition");
    stolen.sequence = stolen.sequence.next();
    let expected = Expected::At(stolen.position);
    let records = vec![(stolen.sequence, stolen.event)];
    let batch = Batch::new(one(), expected, stolen.at, records);
    settle().await;
    world.journal.append(batch).await.expect("it follows");
    let fenced = Err(ActorError::Fenced { entity: one() });
    assert_eq!(world.send("Touch").await, fenced);
    pass(1_000).await;
    assert_eq!(world.send("Touch").await, fenced);
    assert_eq!(world.actions().await, ["Wait", "Wait"], "no timer of its either");
}

/// A journal whose entities can't be read at times, and that notes the most which is read of
/// one at once.
#[derive(Debug, Default)]
struct Unreadable(MemoryJournal, AtomicBool, AtomicUsize);

impl Around for Unreadable {
    fn inner(&self) -> &dyn Journal {
        &self.0
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        self.2.fetch_max(limit, Ordering::SeqCst);
        if self.1.load(Ordering::SeqCst) {
            let failed = Err(Error::Unavailable { what: "no disk".to_owned() });
            return Box::pin(std::future::ready(failed));
        }
        self.0.read_entity(entity, from, limit)
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_sleeper_is_an_error_and_its_timer_fires_again() {
    let journal = Arc::new(Unreadable::default());
    let runtime = builder(&journal).linger(Duration::ZERO).build().await.expect("empty");
    runtime.create(one()).await.expect("new");
    runtime.send(&one(), "Wait", Object::new()).await.expect("taken");
    settle().await;
    journal.1.store(true, Ordering::SeqCst);
    let unavailable = ActorError::JournalUnavailable { what: "no disk".to_owned() };
    let refused = runtime.send(&one(), "Touch", Object::new()).await;
    assert_eq!(refused, Err(unavailable.clone()));
    assert_eq!(runtime.entity(&one()).await, Err(unavailable));
    pass(1_000).await;
    journal.1.store(false, Ordering::SeqCst);
    pass(10).await;
    assert_eq!(runtime.entity(&one()).await.expect("there").state, "Abandoned");
}

#[tokio::test(start_paused = true)]
async fn a_long_history_is_read_in_pages_with_other_reads_in_between() {
    let journal = Arc::new(Unreadable::default());
    let runtime = builder(&journal).linger(Duration::from_secs(1)).build().await.expect("empty");
    runtime.create(one()).await.expect("new");
    for _ in 0..500 {
        runtime.send(&one(), "Touch", Object::new()).await.expect("taken");
    }
    pass(10).await;
    assert_eq!(runtime.entity(&one()).await.expect("it woke").sequence, Sequence(500));
    let most = journal.2.load(Ordering::SeqCst);
    assert!((1..=128).contains(&most), "{most}");
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_sleeper_changes_to_its_new_spec_once_it_is_readable() {
    let journal = Arc::new(Unreadable::default());
    let runtime = builder(&journal).linger(Duration::ZERO).build().await.expect("empty");
    for entity in [one(), two()] {
        runtime.create(entity).await.expect("new, and without a timer");
    }
    settle().await;
    journal.1.store(true, Ordering::SeqCst);
    let renamed = SESSION.replace("Abandoned", "Forgotten");
    runtime.reload([Spec::parse(&renamed).spec.expect("sound")]).await.expect("recorded");
    pass(2_000).await;
    journal.1.store(false, Ordering::SeqCst);
    pass(300).await;
    let records = runtime.records(Position(0).into(), 100).await.expect("readable");
    let records = records.into_records().expect("whole");
    let changes = records.iter().filter(|record| record.event.kind() == "spec_changed");
    assert_eq!(changes.count(), 2, "though no caller has asked them");
}
