//! Guards that read the states of other entities: which guards hold, and that a replay decides with what
//! was read.

use std::sync::Arc;

use sandglass_liveness::decide::OBSERVED_MAX;
use sandglass_liveness::spec::guard::READS_MAX;
use sandglass_liveness::{Entity, Fold, Input, Known, Refusal, Replay, Severity, Spec, Terms};
use sandglass_liveness::{decide, decide_knowing};
use sandglass_model::{
    Decision, EntityRef, Event, HandlerEnd, Incarnation, Object, Observed, Outcome, Position,
    Record, Sequence, TraceContext, WallTime,
};
use serde_json::{Value, json};

use crate::session::{completed, end_within};

const ORDER: &str = r#"
[automaton]
name = "Order"
states = ["Open", "Packing", "Sent", "Failed", "Late"]
initial = "Open"
terminal = ["Sent", "Failed", "Late"]
allow_indefinite_states = ["Open"]

[[state]]
name = "parcel"
type = "string"

[[state]]
name = "parcels"
type = "list"

[[action]]
name = "Set"
from = ["Open"]
params = ["parcel", "parcels", "box"]

[[action]]
name = "Check"
from = ["Open"]
guard = "Parcel[parcel].status == 'Ready'"

[[action]]
name = "Later"
from = ["Open"]
effect = "schedule Check 1"

[[action]]
name = "Pack"
from = ["Open"]
to = "Packing"
params = ["parcel"]

[[action.triggers]]
name = "pack"
module = "pack"
deadline = "10s"
guard = "Parcel[parcel].status in ['Ready', 'Torn']"
on_success = "Packed"
on_failure = "Tear"
on_timeout = "Tear"

[[action]]
name = "Packed"
from = ["Packing"]
to = "Sent"
guard = "Parcel[parcel].status == 'Ready'"

[[action]]
name = "Tear"
from = ["Packing"]
to = "Failed"

[[action]]
name = "Expire"
from = ["Packing"]
to = "Late"
guard = "Parcel[parcel].status != 'Ready'"

[[state_timeout]]
state = "Packing"
after_seconds = 60
on_timeout = "Expire"
"#;

const PARCEL: &str = r#"
[automaton]
name = "Parcel"
states = ["Ready", "Torn"]
initial = "Ready"
allow_indefinite_states = ["Ready", "Torn"]

[[action]]
name = "Rip"
from = ["Ready"]
to = "Torn"
"#;

/// What the shell would read: the state of each entity, by id.
type States<'a> = &'a [(&'a str, &'a str)];

/// A journal with an order, and parcels.
struct World {
    specs: [Arc<Spec>; 2],
    fold: Fold,
    log: Vec<Record>,
    now: i64,
}

impl World {
    fn new(order: &str) -> Self {
        let spec = |source: &str| {
            let parsed = Spec::parse(source);
            let errors = parsed.diagnostics.iter().filter(|one| one.severity == Severity::Error);
            assert_eq!(errors.count(), 0, "{:#?}", parsed.diagnostics);
            Arc::new(parsed.spec.expect("valid"))
        };
        let specs = [spec(order), spec(PARCEL)];
        let mut world = Self { specs, fold: Fold::new(), log: Vec::new(), now: 1_000 };
        for spec in world.specs.clone() {
            world.append(None, vec![spec.registered()]);
        }
        world.create("Order/one", None);
        world
    }

    fn create(&mut self, name: &str, tenant: Option<&str>) {
        let (name, tenant): (EntityRef, _) =
            (name.parse().expect("a name"), tenant.map(str::to_owned));
        let incarnation = Incarnation::from_bytes([7; 16]);
        let create = Input::Create { name: name.clone(), incarnation, tenant, spawned_by: None };
        let spec = &self.specs[usize::from(name.entity_type() == "Parcel")];
        let now = WallTime::from_millis(self.now);
        let events = decide(spec, None, &create, now).expect("new").events;
        self.append(Some(&name), events);
    }

    fn append(&mut self, entity: Option<&EntityRef>, events: Vec<Event>) {
        for event in events {
            let known = entity.and_then(|name| self.fold.entity(name));
            let sequence = known.map_or(Sequence(0), |entity| entity.sequence_with(&event));
            let position = Position(self.log.len() as u64 + 1);
            let (at, entity) = (WallTime::from_millis(self.now), entity.cloned());
            let record = Record { position, at, entity, sequence, event };
            self.fold.apply(&record).expect("it fits");
            self.log.push(record);
        }
    }

    fn order(&self) -> &Entity {
        self.fold.entity(&order()).expect("created")
    }

    /// Decides as a shell does: reads what is needed, and decides again.
    fn tell(&mut self, input: &Input, states: States<'_>) -> Result<Vec<Event>, Refusal> {
        let now = WallTime::from_millis(self.now);
        let mut observed = Vec::new();
        let decided = loop {
            let known = Known { unspawnable: None, observed: Some(&observed) };
            let decided = decide_knowing(&self.specs[0], Some(self.order()), input, now, known);
            let Err(Refusal::Unobserved(names)) = decided else { break decided? };
            for entity in names {
                assert!(observed.iter().all(|one: &Observed| one.entity != entity), "read once");
                let state = states.iter().find(|(id, _)| *id == entity.id());
                let state = state.map(|(_, state)| (*state).to_owned());
                observed.push(Observed { entity, state });
            }
        };
        self.append(Some(&order()), decided.events.clone());
        assert_eq!(self.order(), &decided.after, "the decision folds what a reader folds");
        Ok(decided.events)
    }

    fn act(
        &mut self,
        action: &str,
        params: Value,
        states: States<'_>,
    ) -> Result<Vec<Event>, Refusal> {
        self.tell(&request(action, params), states)
    }

    fn end(&mut self, outcome: Outcome, states: States<'_>) -> Vec<Event> {
        let end: HandlerEnd = {
            let run = self.order().in_flight();
            let dispatched = &run.first().expect("in flight").dispatched;
            end_within(dispatched.budget_ms, dispatched.dispatch, 1, outcome)
        };
        self.tell(&Input::HandlerEnded(Arc::new(end)), states).expect("it is recorded")
    }

    fn divergences(&self) -> Vec<String> {
        divergences(&self.log)
    }
}

fn divergences(log: &[Record]) -> Vec<String> {
    let mut replay = Replay::new();
    log.iter().for_each(|record| replay.feed(record));
    let found = replay.finish().divergences;
    found.iter().map(|one| format!("{}: {} / {}", one.what, one.recorded, one.expected)).collect()
}

fn order() -> EntityRef {
    "Order/one".parse().expect("a name")
}

fn request(action: &str, params: Value) -> Input {
    let trace = TraceContext::root([5; 24]);
    let params: Object = serde_json::from_value(params).expect("an object");
    Input::Action { action: action.to_owned(), params, trace, asked: None, terms: Terms::default() }
}

fn observed(entries: States<'_>, missing: &[&str]) -> Vec<Observed> {
    let name = |id: &str| EntityRef::new("Parcel", id).expect("a name");
    let found = entries
        .iter()
        .map(|(id, state)| Observed { entity: name(id), state: Some((*state).into()) });
    found.chain(missing.iter().map(|id| Observed { entity: name(id), state: None })).collect()
}

/// Whether `guard`, written as TOML, lets an action be taken.
fn holds(guard: &str, set: Value, states: States<'_>) -> bool {
    let mut world = World::new(&ORDER.replace("\"Parcel[parcel].status == 'Ready'\"", guard));
    states.iter().for_each(|(id, _)| world.create(&format!("Parcel/{id}"), None));
    world.act("Set", set, states).expect("taken");
    match world.act("Check", json!({}), states) {
        Ok(_) => {
            assert_eq!(world.divergences(), Vec::<String>::new(), "{guard}");
            true
        }
        Err(Refusal::GuardRefused(_)) => false,
        Err(refusal) => panic!("{guard}: {refusal}"),
    }
}

/// A table of the type `cross_entity_state` with these keys, about `parcel`.
fn table(keys: &str) -> String {
    format!(
        "[{{ type = \"cross_entity_state\", entity_type = \"Parcel\", \
         entity_id_source = \"parcel\"{keys} }}]"
    )
}

#[test]
fn each_spelling_is_about_the_states_of_all_its_entities() {
    const STATES: States<'_> = &[("a", "Ready"), ("b", "Torn")];
    // The guard; whether it holds without an id, and for a ready, a torn and a missing parcel.
    let allowed = table(", required_status = [\"Ready\"]");
    let one = table(", required_status = \"Ready\"");
    let required = table(", required_status = [\"Ready\"], required = true");
    let forbidden = table(", forbidden_status = [\"Torn\"]");
    let exists = table(", required = \"true\"");
    let both = table(", required_status = [\"Ready\", \"Torn\"], forbidden_status = [\"Torn\"]");
    let field = allowed.replace("\"parcel\"", "\"box\"");
    for (guard, expected) in [
        ("\"Parcel[parcel].status == 'Ready'\"", [false, true, false, false]),
        ("\"Parcel[parcel].status in ['Ready', 'Torn']\"", [false, true, true, false]),
        ("\"'Ready' == Parcel[parcel].status\"", [false, true, false, false]),
        ("\"Parcel[parcel].status not in ['Torn', 'Lost']\"", [true, true, false, true]),
        ("\"Parcel[parcel].status != 'Torn'\"", [true, true, false, true]),
        ("\"Parcel[parcel].status != null\"", [false, true, true, false]),
        ("\"Parcel[parcel].status == null\"", [true, false, false, true]),
        ("\"!(Parcel[parcel].status == 'Torn')\"", [true, true, false, true]),
        ("\"empty(parcel) || Parcel[parcel].status in ['Ready']\"", [true, true, false, false]),
        ("\"not empty(parcel) => Parcel[parcel].status == 'Torn'\"", [true, false, true, false]),
        (allowed.as_str(), [true, true, false, false]),
        (one.as_str(), [true, true, false, false]),
        (required.as_str(), [false, true, false, false]),
        (forbidden.as_str(), [true, true, false, true]),
        (exists.as_str(), [false, true, true, false]),
        (both.as_str(), [true, true, false, false]),
        (field.as_str(), [true, true, false, false]),
    ] {
        for (id, expected) in ["", "a", "b", "c"].into_iter().zip(expected) {
            let set = json!({ "parcel": id, "box": id });
            assert_eq!(holds(guard, set, STATES), expected, "{guard} with {id:?}");
        }
    }
    for (guard, ids, expected) in [
        ("\"Parcel[parcels].status in ['Ready']\"", json!(["a", "", "d"]), true),
        ("\"Parcel[parcels].status in ['Ready']\"", json!(["a", "b"]), false),
        ("\"Parcel[parcels].status in ['Ready', 'Torn']\"", json!(["a", "b"]), true),
        ("\"Parcel[parcels].status in ['Ready', 'Torn']\"", json!(["a", "c"]), false),
        ("\"Parcel[parcels].status in ['Ready']\"", json!([]), false),
        // That neither is torn is more than that not both are.
        ("\"Parcel[parcels].status not in ['Torn']\"", json!(["a", "b"]), false),
        ("\"not Parcel[parcels].status in ['Torn']\"", json!(["a", "b"]), true),
        ("\"Parcel[parcels].status not in ['Torn']\"", json!(["a", "d", "c"]), true),
    ] {
        let states = [STATES, &[("d", "Ready")]].concat();
        assert_eq!(holds(guard, json!({ "parcels": ids }), &states), expected, "{guard} {ids}");
    }
}

#[test]
fn what_is_no_name_of_an_entity_does_not_exist() {
    for id in [json!("a\nb"), json!("x".repeat(2_000))] {
        let set = json!({ "parcel": id });
        assert!(!holds("\"Parcel[parcel].status == 'Ready'\"", set.clone(), &[]), "{id}");
        assert!(holds("\"Parcel[parcel].status == null\"", set, &[]), "{id}");
    }
}

#[test]
fn mistakes_are_reported_with_advice() {
    let said = |guard: &str, severity: Severity| -> String {
        let source = ORDER.replacen("\"Parcel[parcel].status == 'Ready'\"", guard, 1);
        let found = Spec::parse(&source).diagnostics.into_iter();
        let found = found.filter(|one| one.severity == severity);
        found.map(|one| one.to_string()).collect::<Vec<_>>().join("\n")
    };
    let fields: Vec<String> =
        (0..=READS_MAX).map(|n| format!("Parcel[field{n}].status == 'Ready'")).collect();
    for (guard, message) in [
        ("\"Parcel[parcel].size == 'Ready'\"".to_owned(), "can read only the state"),
        ("\"Parcel[parcel].status == 3\"".to_owned(), "is of another type"),
        (table("").replace("\"parcel\"", "\"\""), "is no valid name"),
        (table("").replace("entity_type = \"Parcel\", ", ""), "has no `entity_type`"),
        (format!("\"{}\"", fields.join(" and ")), "may name 16 other entities"),
    ] {
        let errors = said(&guard, Severity::Error);
        assert!(errors.contains(message), "{guard}: {errors}");
    }
    for (guard, message) in [
        ("\"Parcel[parcl].status == 'Ready'\"".to_owned(), "no variable is named `parcl`"),
        (table(""), "the guard allows every state"),
    ] {
        assert_eq!(said(&guard, Severity::Error), "", "{guard}");
        let warnings = said(&guard, Severity::Warning);
        assert!(warnings.contains(message), "{guard}: {warnings}");
    }
    for invariant in [
        "[[invariant]]\nname = \"i\"\nassert = \"Parcel[parcel].status != 'Torn'\"\n",
        "[[field_invariant]]\nname = \"i\"\nassert = \"Parcel[parcel].status != 'Torn'\"\n",
    ] {
        let parsed = Spec::parse(&format!("{ORDER}{invariant}"));
        let errors = format!("{:?}", parsed.diagnostics);
        assert!(
            errors.contains("an invariant cannot read the state of another entity"),
            "{errors}"
        );
    }
}

#[test]
fn a_strict_spec_may_read_other_entities() {
    let strict = ORDER.replace("[automaton]", "[automaton]\nstrict = true");
    let strict = strict.replace("guard = \"Parcel[parcel].status != 'Ready'\"\n", "");
    let parsed = Spec::parse(&strict);
    assert!(parsed.spec.is_some(), "{:#?}", parsed.diagnostics);
}

#[test]
fn a_request_records_what_was_read_and_a_refusal_names_it() {
    let mut world = World::new(ORDER);
    world.create("Parcel/a", None);
    world.act("Set", json!({ "parcel": "a" }), &[]).expect("reads nothing");
    assert_eq!(world.log.last().expect("a record").event.observed(), &[]);
    let refused = world.act("Check", json!({}), &[("a", "Torn")]).expect_err("torn");
    let expected =
        "the guard of `Check` doesn't hold in state `Open`; Parcel/a was in state `Torn`";
    assert_eq!(refused.to_string(), expected);
    let refused = world.act("Check", json!({}), &[]).expect_err("missing");
    assert!(refused.to_string().ends_with("; there was no Parcel/a"), "{refused}");
    let events = world.act("Check", json!({}), &[("a", "Ready")]).expect("taken");
    assert_eq!(events[0].observed(), observed(&[("a", "Ready")], &[]));
    assert_eq!(world.divergences(), Vec::<String>::new());
    // A caller that knows nothing of other entities decides as if there were none.
    let now = WallTime::from_millis(0);
    let decided = decide(&world.specs[0], Some(world.order()), &request("Check", json!({})), now);
    assert!(matches!(decided, Err(Refusal::GuardRefused(_))), "{decided:?}");
}

#[test]
fn a_replay_finds_a_false_statement_about_another_entity() {
    let mut world = World::new(ORDER);
    world.create("Parcel/a", None);
    world.create("Parcel/other", Some("acme"));
    world.act("Set", json!({ "parcel": "a" }), &[]).expect("taken");
    world.act("Check", json!({}), &[("a", "Ready")]).expect("taken");
    assert_eq!(world.divergences(), Vec::<String>::new());
    let forged = |new: Vec<Observed>| {
        let mut log = world.log.clone();
        let Some(Event::Transition { observed, .. }) = log.last_mut().map(|last| &mut last.event)
        else {
            panic!("a transition")
        };
        *observed = new;
        divergences(&log)
    };
    for (new, found) in [
        (Vec::new(), "depends on the states of other entities"),
        (observed(&[("a", "Torn")], &[]), "Parcel/a was in state `Torn`"),
        (observed(&[], &["a"]), "there was no Parcel/a"),
        (observed(&[("a", "Ready"), ("b", "Ready")], &[]), "no Parcel/b of the same tenant"),
        (observed(&[("a", "Ready"), ("other", "Ready")], &[]), "no Parcel/other of the same"),
    ] {
        let divergences = forged(new);
        assert!(divergences.iter().any(|one| one.contains(found)), "{found}: {divergences:?}");
    }
}

#[test]
fn a_schedule_and_a_timer_record_what_was_read_for_both_decisions() {
    for (states, taken) in [(&[("a", "Ready")][..], true), (&[("a", "Torn")][..], false)] {
        let mut world = World::new(ORDER);
        world.create("Parcel/a", None);
        world.act("Set", json!({ "parcel": "a" }), &[]).expect("taken");
        world.act("Later", json!({}), &[]).expect("taken");
        world.now += 1_000;
        let events = world.tell(&Input::ScheduleDue { schedule: 0 }, states).expect("due");
        let Event::ScheduleDue { taken: is_taken, observed: read, .. } = &events[0] else {
            panic!("{events:?}")
        };
        assert_eq!((*is_taken, &read[..]), (taken, &observed(states, &[])[..]));
        assert_eq!(events.len(), 1 + usize::from(taken));
        world.act("Pack", json!({ "parcel": "a" }), &[("a", "Gone")]).expect("taken");
        assert!(world.order().is_settled(), "the trigger does not start for this state");
        world.now += 60_000;
        let generation = world.order().idle_timer(&world.specs[0]).expect("armed").generation;
        let idle = Input::StateIdle { generation, idle_ms: 60_000 };
        let events = world.tell(&idle, states).expect("idle");
        let Event::StateIdle { taken: is_taken, .. } = &events[0] else { panic!("{events:?}") };
        assert_eq!(*is_taken, !taken);
        assert_eq!(events[0].observed(), observed(states, &[]));
        assert_eq!(world.divergences(), Vec::<String>::new());
    }
}

#[test]
fn the_end_of_a_handler_records_what_was_read_for_both_decisions() {
    for (states, expected) in [(&[("a", "Ready")][..], "Packed"), (&[("a", "Torn")][..], "Tear")] {
        let mut world = World::new(ORDER);
        world.create("Parcel/a", None);
        // The trigger reads the id that the action has just set.
        let events = world.act("Pack", json!({ "parcel": "a" }), states).expect("taken");
        assert_eq!(events[0].observed(), observed(states, &[]));
        let events = world.end(completed(None), states);
        let Event::Ended(ended) = &events[0] else { panic!("{events:?}") };
        assert_eq!(ended.decision, Decision::Take { action: expected.to_owned() });
        assert_eq!(ended.observed, observed(states, &[]));
        let failure = ended.outcome.error().map(|(_, message)| message.to_owned());
        let is_named = failure.is_some_and(|why| why.contains("Parcel/a was in state `Torn`"));
        assert_eq!(is_named, expected == "Tear");
        assert_eq!(world.divergences(), Vec::<String>::new());
    }
}

#[test]
fn what_one_guard_and_one_decision_read_is_bounded() {
    let ids = |count: usize| (0..count).map(|id| format!("p{id}")).collect::<Vec<_>>();
    let order = ORDER.replacen("[parcel].status == 'Ready'", "[parcels].status == null", 1);
    let mut world = World::new(&order);
    world.act("Set", json!({ "parcels": ids(READS_MAX) }), &[]).expect("taken");
    let events = world.act("Check", json!({}), &[]).expect("taken");
    assert_eq!(events[0].observed().len(), READS_MAX);
    world.act("Set", json!({ "parcels": ids(READS_MAX + 1) }), &[]).expect("taken");
    let refused = world.act("Check", json!({}), &[]).expect_err("too many");
    assert!(matches!(refused, Refusal::TooManyReads { .. }), "{refused}");
    // Nor can equal, invalid or empty ids hide a further one.
    for hidden in ["p0", "\u{0}", ""] {
        let mut ids = vec![hidden.to_owned(); READS_MAX];
        ids.push("last".to_owned());
        world.act("Set", json!({ "parcels": ids }), &[]).expect("taken");
        let refused = world.act("Check", json!({}), &[]).expect_err("too many");
        assert!(matches!(refused, Refusal::TooManyReads { .. }), "{hidden:?}: {refused}");
    }
    assert_eq!(world.divergences(), Vec::<String>::new());
    // An action with triggers that read more than a decision may: the last ones do not start.
    let triggers: String = (0..6)
        .map(|n| {
            format!(
                "[[action.triggers]]\nname = \"t{n}\"\nmodule = \"m\"\ndeadline = \"1s\"\n\
                 guard = \"Parcel[list{n}].status == 'Ready'\"\non_success = \"Tear\"\n\
                 on_failure = \"Tear\"\non_timeout = \"Tear\"\n"
            )
        })
        .collect();
    let order = order.replacen(
        "[[action]]\nname = \"Packed\"",
        &format!("{triggers}[[action]]\nname = \"Packed\""),
        1,
    );
    let mut world = World::new(&order);
    let all: Vec<String> = (0..6 * READS_MAX).map(|id| format!("q{id}")).collect();
    all.iter().for_each(|id| world.create(&format!("Parcel/{id}"), None));
    let states: Vec<(&str, &str)> = all.iter().map(|id| (id.as_str(), "Ready")).collect();
    let lists = all.chunks(READS_MAX).enumerate();
    let params: Object = lists.map(|(n, ids)| (format!("list{n}"), json!(ids))).collect();
    let events = world.act("Pack", json!(params), &states).expect("taken");
    assert_eq!(events[0].observed().len(), OBSERVED_MAX);
    let started = events.iter().filter(|event| matches!(event, Event::Dispatched(_))).count();
    assert_eq!(started, OBSERVED_MAX / READS_MAX);
    assert_eq!(world.divergences(), Vec::<String>::new());
}
