//! What is decided of a session, without a journal and a clock.

use std::hint::black_box;
use std::time::{Duration, Instant};

use sandglass_liveness::session::{Anchor, Elapsed, LimitSettings, evaluate};
use sandglass_liveness::{Entity, Input, Spec, Terms, decide};
use sandglass_model::{Incarnation, Object, TraceContext, WallTime};

/// How often each is measured, alternating; the medians are printed.
const TURNS: usize = 21;
/// Evaluations of a turn.
const EVALUATIONS: u32 = 200_000;
/// Signals of a turn.
const SIGNALS: u32 = 20_000;
/// Sessions whose memory is measured.
const SESSIONS: usize = 100_000;

const SPEC: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Working"]
initial = "Idle"
allow_indefinite_states = ["Idle", "Working"]

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = "trigger work"

[[action]]
name = "Finish"
from = ["Working"]
to = "Idle"

[[integration]]
name = "work"
module = "work"
deadline = "10m"
on_failure = "Finish"
on_timeout = "Finish"
"#;

/// All limits.
const LIMITS: &str = r#"
[limits]
run_timeout = "4h"
execution_timeout = "24h"
inactivity_warn = "10m"
inactivity_timeout = "30m"
progress_timeout = "1h"
max_loop_iterations = 1000
max_handler_runs = 1000
"#;

pub(crate) fn run() {
    let bounded = working(&format!("{SPEC}{LIMITS}"));
    let unbounded = working(SPEC);
    println!("| what | p50 | baseline | ratio |");
    println!("|---|---|---|---|");
    evaluations(&bounded.1);
    signals(&bounded, &unbounded);
    memory(&bounded.1, &unbounded.1);
}

/// An entity with a handler in flight; a session where its spec has limits.
fn working(source: &str) -> (Spec, Entity) {
    let spec = Spec::parse(source).spec.expect("sound");
    let name = "Session/one".parse().expect("a valid name");
    let now = WallTime::from_millis(1_700_000_000_000);
    let incarnation = Incarnation::from_bytes([7; 16]);
    let create = Input::Create { name, incarnation, tenant: None, spawned_by: None };
    let mut entity = decide(&spec, None, &create, now).expect("new").after;
    let unsaid = LimitSettings::default();
    let settings = spec.limits.as_ref().map(|limits| limits.settings);
    let start =
        settings.map(|settings| Input::Start { limits: settings.effective(&unsaid, &unsaid) });
    let work = Input::Action {
        action: "Work".to_owned(),
        params: Object::new(),
        trace: TraceContext::root([5; 24]),
        asked: None,
        terms: Terms::default(),
    };
    for input in start.into_iter().chain([work]) {
        entity = decide(&spec, Some(&entity), &input, now).expect("taken").after;
    }
    (spec, entity)
}

/// What is due: all limits, with work in flight; the baseline compares five durations.
fn evaluations(entity: &Entity) {
    let session = entity.session().expect("it has limits");
    let mut elapsed = Elapsed::default();
    let seconds =
        [(Anchor::Session, 100), (Anchor::Run, 100), (Anchor::Activity, 3), (Anchor::Progress, 50)];
    for (anchor, seconds) in seconds {
        elapsed.set(anchor, Duration::from_secs(seconds));
    }
    let ours = || {
        for _ in 0..EVALUATIONS {
            black_box(evaluate(black_box(session), true, black_box(&elapsed)));
        }
    };
    let most = [86_400_u64, 14_400, 1_800, 3_600, 600].map(Duration::from_secs);
    let plain = || {
        for _ in 0..EVALUATIONS {
            let elapsed = black_box(&elapsed);
            let measured = [
                Anchor::Session,
                Anchor::Run,
                Anchor::Activity,
                Anchor::Progress,
                Anchor::Activity,
            ]
            .map(|anchor| elapsed.since(anchor));
            black_box(
                black_box(&most).iter().zip(measured).any(|(most, measured)| measured > *most),
            );
        }
    };
    print("an evaluation", EVALUATIONS, medians(ours, plain));
}

/// A signal that is decided and folded in; the baseline is one of an entity without limits.
fn signals((spec, entity): &(Spec, Entity), (plain_spec, plain): &(Spec, Entity)) {
    let decide_signals = |spec: &Spec, entity: &Entity| {
        let dispatch = entity.in_flight()[0].dispatched.dispatch;
        let input = Input::Signal {
            name: "progress".to_owned(),
            from: None,
            dispatch: Some(dispatch),
            payload: 7.into(),
        };
        let mut entity = entity.clone();
        for number in 0..SIGNALS {
            let now = WallTime::from_millis(1_700_000_000_000 + i64::from(number));
            entity = decide(spec, Some(&entity), &input, now).expect("taken").after;
        }
        black_box(entity);
    };
    let both = medians(|| decide_signals(spec, entity), || decide_signals(plain_spec, plain));
    print("a signal, decided and folded in", SIGNALS, both);
}

/// What a session holds for its limits, beside an entity that is none.
fn memory(bounded: &Entity, unbounded: &Entity) {
    let each = |entity: &Entity| {
        let before = resident();
        let all: Vec<Entity> = (0..SESSIONS).map(|_| black_box(entity.clone())).collect();
        (resident().saturating_sub(before) / SESSIONS as u64, all)
    };
    // Both are kept: what the first gave back, the second would take without a new page.
    let ((with, sessions), (without, entities)) = (each(bounded), each(unbounded));
    assert_eq!(black_box(sessions).len(), black_box(entities).len());
    println!(
        "| memory of a session with all limits, of {SESSIONS} | {with} B | {without} B | {} B more |\n",
        with.saturating_sub(without)
    );
}

/// What this process has in memory, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}

fn medians(ours: impl Fn(), plain: impl Fn()) -> (Duration, Duration) {
    let timed = |work: &dyn Fn()| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    let (mut of_ours, mut of_plain) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        of_ours.push(timed(&ours));
        of_plain.push(timed(&plain));
    }
    let median = |mut all: Vec<Duration>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    (median(of_ours), median(of_plain))
}

fn print(what: &str, many: u32, (ours, plain): (Duration, Duration)) {
    let each = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(many);
    let (ours, plain) = (each(ours), each(plain));
    println!("| {what} | {ours:.1} ns | {plain:.1} ns | {:.1} |", ours / plain);
}
