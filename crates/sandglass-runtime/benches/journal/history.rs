//! A journal of a million records, decided as the runtime decides them.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use sandglass_journal::{Batch, Expected, Journal, Settings, SqliteJournal};
use sandglass_liveness::{Decided, Entity, Input, Spec, Terms, decide};
use sandglass_model::{
    Cause, Clock, Completion, DeadlineReport, EntityRef, Event, HandlerEnd, HostCalls, Incarnation,
    Object, Outcome, Sequence, SystemClock, TimeSplit, TraceContext, WallTime,
};

/// Entities.
pub(crate) const ENTITIES: u64 = 10_000;
/// How often each of them works: its records are one batch.
const ROUNDS: u64 = 25;
/// Records of each entity, nearly: its creation, and four of each round.
pub(crate) const RECORDS_OF_EACH: u64 = 1 + 4 * ROUNDS;
/// Records in all, nearly.
pub(crate) const RECORDS: u64 = ENTITIES * RECORDS_OF_EACH;
/// One entity in so many has a handler in flight at the end.
const OPEN_ONE_IN: u64 = 100;
/// When it all happens: now, so that no timer has run down by then.
static AT: LazyLock<WallTime> = LazyLock::new(|| SystemClock::new().wall());

/// An entity that works, and is idle in between.
pub(crate) const SPEC: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Working", "Gone"]
initial = "Idle"
terminal = ["Gone"]

[[state]]
name = "worked"
type = "counter"

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = [{ type = "increment", var = "worked" }, { type = "trigger", name = "work" }]

[[action]]
name = "Finish"
from = ["Working"]
to = "Idle"

[[action]]
name = "Leave"
from = ["Idle", "Working"]
to = "Gone"

[[integration]]
name = "work"
trigger = "work"
module = "work"
deadline = "900s"
on_success = "Finish"
on_failure = "Leave"
on_timeout = "Leave"

[[state_timeout]]
state = "Idle"
after_seconds = 31536000
on_timeout = "Leave"

[[state_timeout]]
state = "Working"
after_seconds = 31536000
on_timeout = "Leave"
"#;

/// The entity of this number.
pub(crate) fn name(number: u64) -> EntityRef {
    format!("Session/{number:06}").parse().expect("a valid name")
}

/// Writes the journal of this many entities at `path`.
pub(crate) async fn write(path: &Path, entities: u64) {
    let begun = Instant::now();
    let opened = SqliteJournal::open(path, Settings::default()).expect("a new file");
    let journal: Arc<dyn Journal> = Arc::new(opened.journal);
    let spec = Spec::parse(SPEC).spec.expect("sound");
    let registered = spec.registered();
    let batch = Batch::new(None, Expected::Any, *AT, vec![(Sequence(0), registered)]);
    journal.append(batch).await.expect("appended");
    let mut writing = tokio::task::JoinSet::new();
    for number in 0..entities {
        if writing.len() >= 64 {
            writing.join_next().await.expect("there are some").expect("no panic");
        }
        let (journal, records) = (Arc::clone(&journal), life(&spec, number));
        let batch = Batch::new(name(number), Expected::None, *AT, records);
        writing.spawn(async move { journal.append(batch).await.expect("it is new") });
    }
    writing.join_all().await;
    journal.close().await;
    let bytes = path.metadata().expect("there").len();
    let took = begun.elapsed().as_secs_f64();
    println!(
        "A journal of {} records of {entities} entities, {} MiB ({took:.0} s to write)\n",
        entities * RECORDS_OF_EACH,
        bytes >> 20
    );
}

/// The records of one entity: it is created, and works.
fn life(spec: &Spec, number: u64) -> Vec<(Sequence, Event)> {
    let mut incarnation = [0; 16];
    incarnation[..8].copy_from_slice(&number.to_be_bytes());
    let incarnation = Incarnation::from_bytes(incarnation);
    let create = Input::Create { name: name(number), incarnation, tenant: None, spawned_by: None };
    let created = decide(spec, None, &create, *AT).expect("a new entity");
    let Decided { events, after: mut entity } = created;
    let mut records: Vec<_> = events.into_iter().map(|event| (Sequence(0), event)).collect();
    let stays_open = number.is_multiple_of(OPEN_ONE_IN);
    for round in 1..=ROUNDS {
        let work = Input::Action {
            action: "Work".to_owned(),
            params: Object::from([("topic".to_owned(), "what is to be done".into())]),
            trace: TraceContext::root([number.to_be_bytes()[7] | 1; 24]),
            asked: None,
            terms: Terms::default(),
        };
        tell(spec, &mut entity, &work, &mut records);
        if stays_open && round == ROUNDS {
            break;
        }
        let end = ended(&entity);
        tell(spec, &mut entity, &end, &mut records);
    }
    records
}

fn tell(spec: &Spec, entity: &mut Entity, input: &Input, records: &mut Vec<(Sequence, Event)>) {
    let Decided { events, after } = decide(spec, Some(entity), input, *AT).expect("taken");
    let sequences: Vec<_> = entity.sequences(&events).collect();
    records.extend(sequences.into_iter().zip(events));
    *entity = after;
}

fn ended(entity: &Entity) -> Input {
    let run = entity.in_flight()[0];
    let outcome = Outcome::Completed(Completion {
        action: None,
        params: Object::new(),
        result: serde_json::json!({ "action": "Finish", "params": {}, "success": true }),
    });
    let budget_ms = run.dispatched.budget_ms;
    let deadline = DeadlineReport { budget_ms, elapsed_ms: 12, ..DeadlineReport::default() };
    Input::HandlerEnded(Arc::new(HandlerEnd {
        outcome,
        cause: Cause::Returned,
        started_at: Some(*AT),
        deadline,
        host_calls: HostCalls::default(),
        time_split_us: TimeSplit {
            queue: 10,
            compile: 0,
            instantiate: 40,
            guest: 900,
            host: 11_000,
            teardown: 20,
        },
        ..HandlerEnd::interrupted(&run.dispatched)
    }))
}
