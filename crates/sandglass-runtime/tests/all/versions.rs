//! New versions of specs: who goes over to them, when, and who doesn't.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Event, Object, Record, RulesVersion, SpecDigest};
use sandglass_runtime::{ActorError, ReloadError, Reloaded, Runtime};
use tracing::field::Field;
use tracing::{Metadata, Subscriber, span};

use crate::world::{Act, SESSION, World, completed, failed, one, pass, settle, two};

/// The session with one more action, and with a shorter timer.
fn newer() -> String {
    let shorter = SESSION.replace("after_seconds = 300", "after_seconds = 30");
    format!("{shorter}[[action]]\nname = \"New\"\nfrom = [\"Idle\", \"Waiting\"]\n")
}

fn spec(source: &str) -> Spec {
    let parsed = Spec::parse(source);
    parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics))
}

async fn reload(world: &World, source: &str) -> Reloaded {
    world.runtime.reload([spec(source)]).await.expect("sound")
}

fn changed() -> Reloaded {
    Reloaded { changed: vec!["Session".to_owned()], ..Reloaded::default() }
}

/// The versions that entities went over to, in order.
fn moves(records: &[Record]) -> Vec<(EntityRef, SpecDigest)> {
    let change = |record: &Record| match &record.event {
        Event::SpecChanged { to, .. } => Some((record.entity.clone()?, *to)),
        _ => None,
    };
    records.iter().filter_map(change).collect()
}

async fn takes(world: &World, entity: &EntityRef, action: &str) -> bool {
    world.runtime.send(entity, action, Object::new()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn sleepers_change_at_once_and_new_entities_begin_with_the_new_version() {
    let world = World::of(&[]).await;
    settle().await;
    assert!(!takes(&world, &one(), "New").await);
    assert_eq!(reload(&world, &newer()).await, changed());
    settle().await;
    let to = SpecDigest::of(&newer(), RulesVersion::CURRENT);
    assert_eq!(moves(&world.records().await), [(one(), to)]);
    world.runtime.create(two()).await.expect("new");
    for entity in [one(), two()] {
        assert_eq!(world.runtime.entity(&entity).await.expect("there").spec, to);
        assert!(takes(&world, &entity, "New").await);
    }
    let again = Reloaded { unchanged: vec!["Session".to_owned()], ..Reloaded::default() };
    assert_eq!(reload(&world, &newer()).await, again);
    assert_eq!(reload(&world, SESSION).await, changed(), "and back");
    settle().await;
    assert_eq!(moves(&world.records().await).len(), 3);
    let specs = world.kinds().await.iter().filter(|kind| **kind == "spec_registered").count();
    assert_eq!(specs, 2, "each is recorded once");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_with_a_handler_in_flight_changes_when_that_has_ended() {
    let acts = [Act::Answer(372, completed()), Act::Answer(372, failed())];
    let source = SESSION.replace("on_failure = \"Fail\"", "on_failure = \"Interrupt\"");
    let world = World::with(&source, &acts).await;
    world.runtime.create(two()).await.expect("new");
    world.send("ProcessToolCalls").await.expect("taken");
    assert!(takes(&world, &two(), "ProcessToolCalls").await);
    let otherwise = newer().replace("on_success = \"Finish\"", "on_success = \"Interrupt\"");
    reload(&world, &otherwise).await;
    pass(371).await;
    assert_eq!(moves(&world.records().await), []);
    assert_eq!(world.until("Done").await, 1, "as the version says that started it");
    settle().await;
    let to = SpecDigest::of(&otherwise, RulesVersion::CURRENT);
    assert_eq!(moves(&world.records().await), [(two(), to)], "the other one has ended");
    assert_eq!(world.now().await.held_back, None);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_state_timer_restarts_with_its_new_length() {
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    pass(200).await;
    reload(&world, &newer()).await;
    assert_eq!(world.until("Abandoned").await, 30);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_does_not_fit_keeps_its_version_and_states_why() {
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    let renamed = SESSION.replace("Waiting", "Paused");
    reload(&world, &renamed).await;
    settle().await;
    let seen = world.now().await;
    let why = seen.held_back.as_deref().expect("it says why");
    assert!(why.ends_with("it has no state `Waiting`"), "{why}");
    assert_eq!(seen.spec, SpecDigest::of(SESSION, RulesVersion::CURRENT));
    assert!(takes(&world, &one(), "Touch").await, "it goes on as it is");
    let counted = SESSION.replace(
        "name = \"rounds\"\ntype = \"counter\"",
        "name = \"rounds\"\ntype = \"string\"\ninitial = \"\"",
    );
    let counted = counted.replace(", \"increment rounds\"", "");
    reload(&world, &counted).await;
    let why = world.now().await.held_back.clone().expect("it says why");
    assert!(why.ends_with("its variable `rounds` is of another type"), "{why}");
    reload(&world, &newer()).await;
    settle().await;
    assert_eq!(world.now().await.held_back, None);
    assert_eq!(moves(&world.records().await).len(), 1);
    world.replays().await;
}

/// Counts the lines of the log that say so.
struct Saying(&'static str, Arc<AtomicUsize>);

impl Subscriber for Saying {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut says = |field: &Field, value: &dyn Debug| {
            if field.name() == "message" && format!("{value:?}") == self.0 {
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        };
        event.record(&mut says);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_version_that_does_not_fit_is_reported_once() {
    let said = Arc::new(AtomicUsize::new(0));
    let saying = Saying("it keeps its version of the spec", Arc::clone(&said));
    let _logging = tracing::subscriber::set_default(saying);
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    for (version, name) in (1..).zip(["Paused", "Resting"]) {
        reload(&world, &SESSION.replace("Waiting", name)).await;
        for _ in 0..3 {
            settle().await;
            assert!(takes(&world, &one(), "Touch").await, "it was asleep, and woke");
        }
        assert_eq!(said.load(Ordering::SeqCst), version, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_variable_begins_with_its_initial_value() {
    let world = World::of(&[]).await;
    let more =
        format!("{SESSION}[[state]]\nname = \"mood\"\ntype = \"string\"\ninitial = \"calm\"\n");
    reload(&world, &more).await;
    settle().await;
    assert_eq!(world.now().await.variables["mood"], "calm");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_changes_nothing() {
    let world = World::of(&[]).await;
    let doubled = world.runtime.reload([spec(SESSION), spec(&newer())]).await;
    assert_eq!(doubled, Err(ReloadError::DoubledType("Session".to_owned())));
    world.journal.set_failing(Some("disk full".to_owned()));
    let refused = world.runtime.reload([spec(&newer())]).await;
    assert!(
        matches!(refused, Err(ReloadError::NotRecorded(ActorError::JournalUnavailable { .. }))),
        "{refused:?}"
    );
    world.journal.set_failing(None);
    world.runtime.create(two()).await.expect("new");
    assert!(!takes(&world, &two(), "New").await, "the old version");
    assert_eq!(moves(&world.records().await), []);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn entities_of_a_removed_type_continue() {
    let world = World::of(&[]).await;
    let other = SESSION.replace("name = \"Session\"", "name = \"Order\"");
    let reloaded = reload(&world, &other).await;
    let expected = Reloaded {
        added: vec!["Order".to_owned()],
        removed: vec!["Session".to_owned()],
        ..Reloaded::default()
    };
    assert_eq!(reloaded, expected);
    assert!(takes(&world, &one(), "Touch").await);
    let refused = world.runtime.create(two()).await;
    assert!(matches!(refused, Err(ActorError::UnknownType { .. })), "{refused:?}");
    world.runtime.create("Order/1".parse().expect("valid")).await.expect("new");
}

#[tokio::test(start_paused = true)]
async fn a_change_that_cannot_be_recorded_is_made_when_the_disk_works() {
    let world = World::of(&[]).await;
    for number in 0..1_000 {
        let name: EntityRef = format!("Session/{number}").parse().expect("valid");
        world.runtime.create(name).await.expect("new");
    }
    reload(&world, &newer()).await;
    world.journal.set_failing(Some("disk full".to_owned()));
    pass(60).await;
    assert_eq!(moves(&world.records().await), []);
    world.journal.set_failing(None);
    pass(60).await;
    assert_eq!(moves(&world.records().await).len(), 1_001);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_start_with_another_version_is_a_reload() {
    let world = World::of(&[]).await;
    world.runtime.create(two()).await.expect("new");
    world.runtime.send(&two(), "Wait", Object::new()).await.expect("taken");
    let World { journal, clock, runtime, .. } = world;
    drop(runtime);
    let renamed = newer().replace("Waiting", "Paused");
    let builder = Runtime::builder(Arc::clone(&journal) as _).clock(Arc::new(clock));
    let runtime = builder.specs([spec(&renamed)]).build().await.expect("a sound journal");
    let to = SpecDigest::of(&renamed, RulesVersion::CURRENT);
    assert_eq!(runtime.entity(&one()).await.expect("there").spec, to);
    let stays = runtime.entity(&two()).await.expect("there");
    assert_eq!(stays.spec, SpecDigest::of(SESSION, RulesVersion::CURRENT));
    assert!(stays.held_back.is_some());
}
