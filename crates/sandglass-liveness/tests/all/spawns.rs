//! Events that actions emit, and entities that they spawn.

use std::sync::Arc;

use sandglass_liveness::decide::{SPAWNED_MAX_BYTES, SPAWNING_MAX, SpawnEnd};
use sandglass_liveness::retention::Survey;
use sandglass_liveness::spec::spawn_cycles;
use sandglass_liveness::{
    Entity, Fold, Input, Known, Refusal, Replay, Severity, Spec, Terms, change_spec, decide_knowing,
};
use sandglass_model::{
    EntityRef, Event, HandlerEnd, Incarnation, Object, Outcome, Position, Record, Sequence, Spawn,
    SpawnObstacle, SpawnResult, SpawnedBy, TraceContext, TransitionCause, Unspawnable, WallTime,
};
use serde_json::{Value, json};

use crate::session::{completed, end_within};

const PARENT: &str = r#"
[automaton]
name = "JobParent"
states = ["Idle", "Working", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle"]

[[state]]
name = "child"
type = "string"

[[state]]
name = "model"
type = "string"
initial = "small"

[[action]]
name = "Split"
from = ["Idle"]
params = ["text"]
effect = [
  { type = "emit", event = "Splitting" },
  { type = "spawn", entity_type = "Child", entity_id_source = "{uuid}", initial_action = "Begin", store_id_in = "child", copy_fields = "model, text" },
]

[[action]]
name = "Named"
from = ["Idle"]
params = ["id"]
effect = { type = "spawn_entity", entity_type = "Child", entity_id_source = "id" }

[[action]]
name = "Fixed"
from = ["Idle", "Working"]
to = "Idle"
effect = "spawn('Child', 'Begin', child, 'fixed')"

[[action]]
name = "Twice"
from = ["Idle"]
effect = ["spawn('Child', 'Begin', child, 'one')", "spawn('Child', 'Begin', child, 'one')"]

[[action]]
name = "Later"
from = ["Idle"]
effect = "schedule Fixed 1"

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = "trigger work"

[[action]]
name = "Wait"
from = ["Idle"]
to = "Working"

[[action]]
name = "End"
from = ["Idle"]
to = "Done"
effect = "spawn('Child', 'Begin', child, 'last')"

[[integration]]
name = "work"
module = "work"
deadline = "10s"
on_success = "Fixed"
on_failure = "Fixed"
on_timeout = "Fixed"

[[state_timeout]]
state = "Working"
after_seconds = 5
on_timeout = "Fixed"
"#;

const CHILD: &str = r#"
[automaton]
name = "Child"
states = ["New", "Begun"]
initial = "New"
allow_indefinite_states = ["New", "Begun"]

[[state]]
name = "job_parent_id"
type = "string"

[[action]]
name = "Begin"
from = ["New"]
to = "Begun"

[[action]]
name = "Rest"
from = ["Begun"]
"#;

/// A journal with a parent, and the entities that it spawns.
struct Family {
    specs: [Arc<Spec>; 2],
    fold: Fold,
    log: Vec<Record>,
    now: i64,
}

impl Family {
    fn new() -> Self {
        let spec = |source| {
            let parsed = Spec::parse(source);
            assert_eq!(parsed.diagnostics.len(), 0, "{:#?}", parsed.diagnostics);
            Arc::new(parsed.spec.expect("valid"))
        };
        let specs = [spec(PARENT), spec(CHILD)];
        let mut family = Self { specs, fold: Fold::new(), log: Vec::new(), now: 1_000 };
        for spec in family.specs.clone() {
            family.append(None, vec![spec.registered()]);
        }
        let (name, incarnation) = (parent(), Incarnation::from_bytes([7; 16]));
        family.tell(&name.clone(), &create(name, incarnation, None), None).expect("new");
        family
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

    fn tell(
        &mut self,
        name: &EntityRef,
        input: &Input,
        unspawnable: Option<&Unspawnable>,
    ) -> Result<Vec<Event>, Refusal> {
        let spec = usize::from(name.entity_type() == "Child");
        let spec = Arc::clone(&self.specs[spec]);
        let now = WallTime::from_millis(self.now);
        let entity = self.fold.entity(name);
        let known = Known { unspawnable, observed: Some(&[]) };
        let decided = decide_knowing(&spec, entity, input, now, known)?;
        self.append(Some(name), decided.events.clone());
        assert_eq!(self.entity(name), &decided.after, "the decision folds what a reader folds");
        Ok(decided.events)
    }

    fn act(&mut self, action: &str, params: Object) -> Result<Vec<Event>, Refusal> {
        self.tell(&parent(), &request(action, params), None)
    }

    fn entity(&self, name: &EntityRef) -> &Entity {
        self.fold.entity(name).expect("created")
    }

    /// Creates the entity of a spawn, which takes its first action.
    fn create(&mut self, spawned_at: Sequence, spawn: &Spawn) {
        let by = self.entity(&parent()).origin_of(spawned_at, spawn);
        let (name, incarnation) = (spawn.entity.clone(), by.derive_incarnation());
        self.tell(&name.clone(), &create(name.clone(), incarnation, Some(by)), None).expect("new");
        if let Some(action) = spawn.action.clone() {
            let first =
                Input::FirstAction { action, params: spawn.params.clone(), trace: spawn.trace };
            self.tell(&name, &first, None).expect("taken");
        }
    }

    fn end(
        &mut self,
        spawned_at: Sequence,
        index: u32,
        result: SpawnResult,
    ) -> Result<(), Refusal> {
        let end = Input::SpawnEnded(SpawnEnd { spawned_at, index, result });
        self.tell(&parent(), &end, None).map(|_| ())
    }

    /// Creates all entities that are spawned, and records that.
    fn carry_out(&mut self) {
        let spawning = self.entity(&parent()).spawning();
        let spawning: Vec<_> = spawning.map(|(at, spawn)| (at, Arc::clone(spawn))).collect();
        for (spawned_at, spawn) in spawning {
            self.create(spawned_at, &spawn);
            let created = SpawnResult::Created { action_refused: None };
            self.end(spawned_at, spawn.index, created).expect("in progress");
        }
    }

    fn divergences(&self) -> u64 {
        divergences(&self.log)
    }
}

fn divergences(log: &[Record]) -> u64 {
    let mut replay = Replay::new();
    log.iter().for_each(|record| replay.feed(record));
    replay.finish().divergence_count
}

fn parent() -> EntityRef {
    "JobParent/one".parse().expect("a name")
}

fn child(id: &str) -> EntityRef {
    EntityRef::new("Child", id).expect("a name")
}

fn create(name: EntityRef, incarnation: Incarnation, by: Option<SpawnedBy>) -> Input {
    Input::Create { name, incarnation, tenant: None, spawned_by: by.map(Box::new) }
}

fn request(action: &str, params: Object) -> Input {
    let trace = TraceContext::root([5; 24]);
    Input::Action { action: action.to_owned(), params, trace, asked: None, terms: Terms::default() }
}

fn text(name: &str, value: &str) -> Object {
    Object::from([(name.to_owned(), json!(value))])
}

fn exists(id: &str) -> Unspawnable {
    Unspawnable { entity: child(id), reason: SpawnObstacle::Exists }
}

fn kinds(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::kind).collect()
}

fn spawn_of(events: &[Event]) -> &Spawn {
    let spawn = events.iter().find_map(|event| match event {
        Event::Spawning(spawn) => Some(&**spawn),
        _ => None,
    });
    spawn.expect("a spawn")
}

#[test]
fn a_transition_records_what_it_emits_and_spawns_and_stores_the_new_id() {
    let mut family = Family::new();
    let events = family.act("Split", text("text", "hello")).expect("taken");
    assert_eq!(kinds(&events), ["transition", "emitted", "spawning"]);
    let emitted = Event::Emitted { name: "Splitting".to_owned(), action: "Split".to_owned() };
    assert_eq!(events[1], emitted);
    let spawn = spawn_of(&events);
    assert_eq!((spawn.index, spawn.entity.id().len()), (0, 36));
    assert_eq!(family.entity(&parent()).variables["child"], spawn.entity.id());
    // `text` is a parameter of this action, and no field of the parent before it.
    let expected = json!({
        "text": "hello", "model": "small",
        "parent_type": "JobParent", "parent_id": "one", "job_parent_id": "one",
    });
    assert_eq!(json!(spawn.params), expected);
    assert!(!family.entity(&parent()).is_at_rest());
    let spawned = spawn.entity.clone();
    family.carry_out();
    assert!(family.entity(&parent()).is_at_rest());
    let child = family.entity(&spawned);
    assert_eq!(child.fields().get("parent_type"), Some(&json!("JobParent")));
    assert_eq!((child.state.as_str(), &child.variables["job_parent_id"]), ("Begun", &json!("one")));
    let first = family.log.iter().find(|record| {
        record.entity.as_ref() == Some(&spawned) && record.event.kind() == "transition"
    });
    let Event::Transition { cause, trace, .. } = &first.expect("its first action").event else {
        panic!("a transition");
    };
    assert_eq!(*cause, TransitionCause::Spawned);
    let root = TraceContext::root([5; 24]);
    let above = root.of_transition(Incarnation::from_bytes([7; 16]), Sequence(1));
    assert_eq!(*trace, above, "it is below the transition of its parent");
    assert_eq!(family.divergences(), 0);
}

#[test]
fn an_id_comes_from_a_parameter_or_is_new() {
    let mut family = Family::new();
    let mut spawned = |params| {
        let events = family.act("Named", params).expect("taken");
        let spawn = spawn_of(&events).clone();
        assert_eq!((spawn.action, spawn.params), (None, Object::new()));
        spawn.entity
    };
    assert_eq!(spawned(text("id", "mine")), child("mine"));
    let new = [Object::new(), text("id", ""), Object::from([("id".to_owned(), json!(7))])];
    let new = new.map(&mut spawned);
    assert!(new.iter().all(|name| name.id().len() == 36), "{new:?}");
    assert_ne!(new[0], new[1]);
    let refused = family.act("Named", text("id", "a\u{7}b")).expect_err("a control character");
    assert!(matches!(refused, Refusal::BadParam { .. }), "{refused}");
    family.carry_out();
    assert_eq!(family.divergences(), 0);
}

#[test]
fn an_entity_that_is_known_to_exist_refuses_the_action_and_nothing_is_half_done() {
    let mut family = Family::new();
    let before = family.log.len();
    let known = exists("fixed");
    let refused = family.tell(&parent(), &request("Fixed", Object::new()), Some(&known));
    assert_eq!(refused, Err(Refusal::Unspawnable(known.clone())));
    let twice = family.act("Twice", Object::new()).expect_err("one name for two");
    assert_eq!(twice, Refusal::Unspawnable(exists("one")));
    assert_eq!(family.log.len(), before);
    assert!(known.entity.to_string() == "Child/fixed" && twice.to_string().contains("exists"));
    // A schedule records that.
    family.act("Later", Object::new()).expect("taken");
    family.now += 1_000;
    let due = family.tell(&parent(), &Input::ScheduleDue { schedule: 0 }, Some(&known));
    let due = due.expect("pending");
    assert!(
        matches!(&due[..], [Event::ScheduleDue { taken: false, unspawnable: Some(why), .. }] if **why == known),
        "{due:?}"
    );
    assert_eq!(family.divergences(), 0);
}

/// The end of the handler of `work` with `outcome`, decided while `fixed` is known to exist.
fn end_work(family: &mut Family, outcome: Outcome) -> Vec<Event> {
    let events = family.act("Work", Object::new()).expect("taken");
    let dispatch = events.iter().find_map(|event| match event {
        Event::Dispatched(dispatched) => Some(dispatched.dispatch),
        _ => None,
    });
    let end: HandlerEnd = end_within(10_000, dispatch.expect("dispatched"), 1, outcome);
    let input = Input::HandlerEnded(Arc::new(end));
    family.tell(&parent(), &input, Some(&exists("fixed"))).expect("in flight")
}

#[test]
fn a_success_that_would_spawn_an_existing_entity_fails_and_other_endings_are_taken() {
    let mut family = Family::new();
    let ended = end_work(&mut family, completed(None));
    assert_eq!(kinds(&ended), ["ended", "transition", "spawning"]);
    let Event::Ended(end) = &ended[0] else { panic!("an end") };
    assert!(
        matches!(&end.outcome, Outcome::Failed(failure) if failure.message.contains("Child/fixed")),
        "{:?}",
        end.outcome
    );
    let refuse = |family: &mut Family, sequence| {
        let refused = SpawnResult::Refused(SpawnObstacle::Exists);
        family.end(Sequence(sequence), 0, refused).expect("in progress");
    };
    // Who has created it is unknown to the parent, but there it is.
    let name = child("fixed");
    let other = Incarnation::from_bytes([9; 16]);
    family.tell(&name.clone(), &create(name, other, None), None).expect("new");
    refuse(&mut family, 2);
    let ended = end_work(&mut family, Outcome::Interrupted);
    assert_eq!(kinds(&ended), ["ended", "transition", "spawning"]);
    refuse(&mut family, 4);
    // So is the action of a state timer, which has to end the state.
    family.act("Wait", Object::new()).expect("taken");
    family.now += 5_000;
    let timer = family.entity(&parent()).idle_timer(&family.specs[0]).expect("it runs");
    let idle = Input::StateIdle { generation: timer.generation, idle_ms: 5_000 };
    let fired = family.tell(&parent(), &idle, Some(&exists("fixed"))).expect("due");
    assert_eq!(kinds(&fired), ["state_idle", "transition", "spawning"]);
    refuse(&mut family, 6);
    assert!(family.entity(&parent()).is_at_rest());
    assert_eq!(family.divergences(), 0);
}

#[test]
fn a_spawn_ends_once_and_only_a_spawned_entity_has_a_first_action() {
    let mut family = Family::new();
    family.act("Fixed", Object::new()).expect("taken");
    let created = || SpawnResult::Created { action_refused: None };
    assert_eq!(family.end(Sequence(1), 1, created()), Err(Refusal::NotSpawned));
    family.carry_out();
    assert_eq!(family.end(Sequence(1), 0, created()), Err(Refusal::NotSpawned));
    let (action, trace) = ("Begin".to_owned(), TraceContext::root([5; 24]));
    let first = Input::FirstAction { action, params: Object::new(), trace };
    for name in [parent(), child("fixed")] {
        assert_eq!(family.tell(&name, &first, None), Err(Refusal::NotSpawned), "{name}");
    }
}

#[test]
fn spawns_are_bounded_in_number_and_size() {
    let mut family = Family::new();
    let large = "x".repeat(SPAWNED_MAX_BYTES / 4);
    let refused = family.act("Split", text("text", &large)).expect_err("too large");
    assert!(matches!(refused, Refusal::TooLarge { .. }), "{refused}");
    for nth in 0..SPAWNING_MAX {
        family.act("Split", Object::new()).unwrap_or_else(|refused| panic!("{nth}: {refused}"));
    }
    let refused = family.act("Split", Object::new()).expect_err("too many");
    assert_eq!(refused, Refusal::TooManySpawns { max: SPAWNING_MAX });
    family.carry_out();
    family.act("Split", Object::new()).expect("there is room again");
}

/// The entities that have ended and may be removed.
fn survey(log: &[Record]) -> Vec<EntityRef> {
    let mut survey = Survey::default();
    let mut by_entity: Vec<&Record> = log.iter().collect();
    by_entity.sort_by_key(|record| record.entity.clone());
    by_entity.into_iter().for_each(|record| survey.feed(record).expect("it fits"));
    survey.finish().into_iter().map(|ended| ended.entity).collect()
}

#[test]
fn an_entity_that_spawns_is_not_at_rest() {
    let mut family = Family::new();
    let newer = Spec::parse(&format!("{PARENT}# newer\n")).spec.expect("valid");
    family.act("Split", Object::new()).expect("taken");
    assert_eq!(family.entity(&parent()).to_snapshot(), None);
    let unfit = change_spec(&family.specs[0], family.entity(&parent()), &newer);
    assert!(matches!(unfit, Err(Refusal::SpecUnfit { .. })), "{unfit:?}");
    family.carry_out();
    let snapshot = family.entity(&parent()).to_snapshot().expect("at rest");
    assert_eq!(Entity::of_snapshot(&snapshot).as_ref(), Ok(family.entity(&parent())));
    change_spec(&family.specs[0], family.entity(&parent()), &newer).expect("it fits");
    family.act("End", Object::new()).expect("taken");
    assert_eq!(survey(&family.log), [], "it has an entity to create");
    family.carry_out();
    assert_eq!(survey(&family.log), [parent()]);
}

#[test]
fn an_entity_that_its_parent_does_not_know_yet_is_not_removed() {
    let mut family = Family::new();
    let source = CHILD.replace("from = [\"Begun\"]", "from = [\"New\"]");
    family.specs[1] = Arc::new(Spec::parse(&source).spec.expect("valid"));
    assert!(family.specs[1].is_terminal("Begun"));
    let registered = family.specs[1].registered();
    family.append(None, vec![registered]);
    family.act("Fixed", Object::new()).expect("taken");
    let spawn = Arc::clone(family.entity(&parent()).spawn(Sequence(1), 0).expect("spawned"));
    family.create(Sequence(1), &spawn);
    assert_eq!(survey(&family.log), []);
    let created = SpawnResult::Created { action_refused: None };
    family.end(Sequence(1), 0, created).expect("in progress");
    assert_eq!(survey(&family.log), [child("fixed")]);
}

#[test]
fn a_false_statement_about_a_spawn_is_a_divergence() {
    let mut family = Family::new();
    family.act("Split", text("text", "hello")).expect("taken");
    family.carry_out();
    assert_eq!(family.divergences(), 0);
    let forged = |forge: &dyn Fn(&mut Event) -> bool| {
        let mut log = family.log.clone();
        let many =
            log.iter_mut().filter_map(|record| forge(&mut record.event).then_some(())).count();
        assert_eq!(many, 1, "one record is forged");
        divergences(&log)
    };
    let by = |change: fn(&mut SpawnedBy)| {
        move |event: &mut Event| {
            let Event::Created { spawned_by: Some(by), .. } = event else { return false };
            change(by);
            true
        }
    };
    let spawning = |change: fn(&mut Spawn)| {
        move |event: &mut Event| {
            let Event::Spawning(spawn) = event else { return false };
            change(spawn);
            true
        }
    };
    let refused = |reason| {
        move |event: &mut Event| {
            let Event::Spawned { spawned_at, index, entity, .. } = event else { return false };
            let (spawned_at, index, entity) = (*spawned_at, *index, entity.clone());
            *event = Event::SpawnRefused { spawned_at, index, entity, reason };
            true
        }
    };
    let is_child = |name: &str| name == "Begin";
    let forgeries: [&dyn Fn(&mut Event) -> bool; 14] = [
        &by(|by| by.index += 1),
        &by(|by| by.sequence.0 += 1),
        &by(|by| by.incarnation = Incarnation::from_bytes([8; 16])),
        &by(|by| by.parent = child("none")),
        &by(|by| by.action_refused = Some("no".to_owned())),
        &spawning(|spawn| spawn.entity = child("other")),
        &spawning(|spawn| drop(spawn.params.remove("text"))),
        &|event| match event {
            Event::Created { spawned_by: Some(_), incarnation, .. } => {
                *incarnation = Incarnation::from_bytes([8; 16]);
                true
            }
            _ => false,
        },
        &|event| match event {
            Event::Created { spawned_by: by @ Some(_), .. } => by.take().is_some(),
            _ => false,
        },
        &|event| match event {
            Event::Transition { action, params, .. } if is_child(action) => {
                params.insert("forged".to_owned(), Value::Null).is_none()
            }
            _ => false,
        },
        &|event| match event {
            Event::Emitted { name, .. } => {
                name.push('x');
                true
            }
            _ => false,
        },
        &|event| match event {
            Event::Spawned { action_refused, .. } => {
                action_refused.replace(String::from("no")).is_none()
            }
            _ => false,
        },
        &refused(SpawnObstacle::Exists),
        &refused(SpawnObstacle::TooMany),
    ];
    for (nth, forge) in forgeries.into_iter().enumerate() {
        assert!(forged(forge) > 0, "forgery {nth}");
    }
}

/// The diagnostics of the parent's spec, if `effect` is the effect of an action with the parameter `id`.
fn diagnosed(effect: &str) -> Vec<String> {
    let source = PARENT.replace(
        "params = [\"id\"]\neffect = { type = \"spawn_entity\", entity_type = \"Child\", entity_id_source = \"id\" }",
        &format!("params = [\"id\"]\neffect = {effect}"),
    );
    assert!(source.contains(effect));
    let parsed = Spec::parse(&source);
    let has_errors = parsed.diagnostics.iter().any(|one| one.severity == Severity::Error);
    assert_eq!(parsed.spec.is_none(), has_errors);
    parsed.diagnostics.iter().map(ToString::to_string).collect()
}

#[test]
fn effects_are_written_as_tables_and_as_texts() {
    for good in [
        "\"emit Named\"",
        "\"emit('Named')\"",
        "{ type = \"emit_event\", event = \"Named\" }",
        "[\"emit A\", { type = \"emit\", event = \"B\" }]",
        "\"spawn('Child', 'Begin')\"",
        "\"spawn('Child','Begin',child)\"",
        "\"spawn( 'Child' , 'Begin' , child , params.id )\"",
        "'spawn(\"Child\", \"Begin\", child, \"a, b\")'",
        "{ type = \"spawn\", entity_type = \"Child\" }",
        "{ type = \"spawn\", entity_type = \"Child\", entity_id_source = \"child-{uuid}\", copy_fields = [\"model\"] }",
        "\"spawn('JobParent', 'Wait', elsewhere)\"",
    ] {
        assert_eq!(diagnosed(good), Vec::<String>::new(), "{good}");
    }
}

#[test]
fn mistakes_in_effects_about_others_are_reported() {
    for (bad, expected) in [
        ("\"emit\"", "`emit` is no effect"),
        ("\"emit('A', 'B')\"", "is no effect"),
        ("{ type = \"emit\" }", "`event`"),
        ("\"spawn('Child')\"", "is no effect"),
        ("\"spawn(Child, 'Begin')\"", "is no effect"),
        ("\"spawn('Child', 'Begin', child, id)\"", "is no effect"),
        ("\"spawn('Child', 'Begin', child, 'x', 'y')\"", "is no effect"),
        ("\"spawn('Child', 'Begin', child,)\"", "is no effect"),
        ("\"spawn('Ch/ild', 'Begin')\"", "holds a `/`"),
        ("{ type = \"spawn\" }", "`entity_type`"),
        (
            "{ type = \"spawn\", entity_type = \"Child\", entity_id_source = \"idd\" }",
            "no parameter `idd`",
        ),
        ("{ type = \"spawn\", entity_type = \"Child\", copy_fields = 7 }", "`copy_fields`"),
        ("\"spawn('JobParent', 'Wat')\"", "no action is named `Wat`"),
        ("\"trigger wrok\"", "no integration has the trigger `wrok`, so that an event"),
    ] {
        let found = diagnosed(bad);
        assert!(found.iter().any(|one| one.contains(expected)), "{bad}: {found:?}");
    }
    let many = ["\"spawn('Child', 'Begin')\""; 9].join(", ");
    let found = diagnosed(&format!("[{many}]"));
    assert!(found.iter().any(|one| one.contains("8 entities at most")), "{found:?}");
}

#[test]
fn a_trigger_that_no_integration_has_emits_an_event() {
    let source = PARENT.replace("\"schedule Fixed 1\"", "\"trigger notify\"");
    let parsed = Spec::parse(&source);
    let warned = parsed.diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(warned.contains("warning: no integration has the trigger `notify`"), "{warned}");
    let mut family = Family::new();
    family.specs[0] = Arc::new(parsed.spec.expect("a warning only"));
    let registered = family.specs[0].registered();
    family.append(None, vec![registered]);
    let name: EntityRef = "JobParent/two".parse().expect("a name");
    let input = create(name.clone(), Incarnation::from_bytes([6; 16]), None);
    family.tell(&name, &input, None).expect("new");
    let events = family.tell(&name, &request("Later", Object::new()), None).expect("taken");
    assert_eq!(kinds(&events), ["transition", "emitted"]);
    assert_eq!(family.divergences(), 0);
}

/// A type whose action `Grow` has the effect `grow`, and `Split` the effect `split`, with more lines.
fn cell(name: &str, grow: &str, split: &str) -> String {
    format!(
        "[automaton]\nname = \"{name}\"\nstates = [\"New\", \"Growing\"]\ninitial = \"New\"\n\
         allow_indefinite_states = [\"New\", \"Growing\"]\n\
         [[action]]\nname = \"Grow\"\nfrom = [\"New\"]\nto = \"Growing\"\neffect = \"{grow}\"\n\
         [[action]]\nname = \"Split\"\nfrom = [\"Growing\"]\n{split}\n\
         [[integration]]\nname = \"work\"\nmodule = \"work\"\ndeadline = \"9s\"\non_success = \"Split\"\n\
         on_failure = \"Split\"\non_timeout = \"Split\"\n"
    )
}

/// The warnings of spawns without end in a spec.
fn cycles(source: &str) -> Vec<String> {
    let parsed = Spec::parse(source);
    assert!(parsed.spec.is_some(), "{:#?}", parsed.diagnostics);
    let found = parsed.diagnostics.iter().map(ToString::to_string);
    found.filter(|found| found.contains("without end")).collect()
}

#[test]
fn a_type_that_spawns_itself_without_a_delay_or_a_guard_is_reported() {
    let again = "effect = [\"spawn('Cell', 'Grow')\", \"spawn('Cell', 'Grow')\"]";
    for grow in ["schedule Split 0", "trigger work"] {
        let found = cycles(&cell("Cell", grow, again));
        let [found] = &found[..] else { panic!("{grow}: {found:?}") };
        assert!(found.contains("Cell.Split -> Cell.Grow -> Cell.Split"), "{found}");
        assert!(found.contains("guard") && found.contains("too_many"), "{found}");
    }
    let found = cycles(&cell("Cell", "spawn('Cell', 'Grow')", ""));
    assert!(found[0].contains(": Cell.Grow -> Cell.Grow"), "{found:?}");
    for (grow, split) in [
        ("schedule Split 5", again),
        ("schedule Split 0", "effect = \"spawn('Cell', 'Split')\""),
        ("schedule Split 0", "effect = \"spawn('Cell', 'Grow', child, 'fixed')\""),
        ("schedule Split 0", "effect = \"spawn('Other', 'Grow')\""),
        ("schedule Split 0", ""),
        ("trigger work", &format!("guard = \"status == 'Growing'\"\n{again}")),
    ] {
        assert_eq!(cycles(&cell("Cell", grow, split)), [""; 0], "{grow}, {split}");
    }
}

#[test]
fn types_that_spawn_each_other_are_reported_once() {
    let spawning = |name: &str, other: &str| {
        let effect = format!("effect = \"spawn('{other}', 'Grow')\"");
        let source = cell(name, "schedule Split 0", &effect);
        assert_eq!(cycles(&source), [""; 0], "it is not known by itself");
        Spec::parse(&source).spec.expect("valid")
    };
    let types = [spawning("A", "B"), spawning("B", "C"), spawning("C", "A"), spawning("D", "A")];
    let found = spawn_cycles(&types.iter().collect::<Vec<_>>());
    let [(0, found)] = &found[..] else { panic!("{found:?}") };
    let expected = "A.Split -> B.Grow -> B.Split -> C.Grow -> C.Split -> A.Grow -> A.Split";
    assert!(found.to_string().contains(expected), "{found}");
    assert_eq!(spawn_cycles(&[&types[0], &types[1], &types[3]]), []);
}
