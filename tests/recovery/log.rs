//! What the journal holds, and what has to hold in it whatever happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sandglass_model::{
    Cause, Cursor, Decision, DispatchId, Dispatched, Event, OutcomeKind, Position, Record,
    Sequence, TransitionCause, WallTime,
};
use serde_json::Value;

use crate::daemon::{Answer, UNAVAILABLE};
use crate::load::{Told, What};
use crate::place::Place;

/// The integrations that a spec lets run again, and how often at the most.
const RERUN: [&str; 2] = ["surely", "hangs_on"];
const ATTEMPTS_MAX: u32 = 8;

/// A daemon that was started on what another one left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restart {
    pub(crate) began: WallTime,
    /// When it took requests; none where it was killed before that.
    pub(crate) listening: Option<WallTime>,
}

/// The records of all journals of a place, as far as they were read.
pub(crate) struct Log<P> {
    pub(crate) place: P,
    /// Each with the index of its journal. The order of an entity's records is that of its journal.
    records: Vec<(usize, Record)>,
}

impl<P: Place> Log<P> {
    pub(crate) fn new(place: P) -> Self {
        Self { place, records: Vec::new() }
    }

    /// Reads what was appended since, and returns how many records there are.
    #[track_caller]
    pub(crate) fn read_on(&mut self) -> usize {
        let mut ends = Cursor::start(self.place.journals());
        for (journal, record) in &self.records {
            ends.advance(*journal, record.position);
        }
        let new = self.place.read_to_end(&mut ends.clone());
        for (journal, record) in &new {
            let next = Position(ends.at(*journal).0 + 1);
            assert_eq!(record.position, next, "there are no gaps: {journal}, {record:?}");
            ends.advance(*journal, next);
        }
        self.records.extend(new);
        self.records.len()
    }

    /// No record differs from what was read first.
    #[track_caller]
    pub(crate) fn is_as_it_was_read(&mut self) {
        let mut first = std::mem::take(&mut self.records);
        self.read_on();
        let place = |(journal, record): &(usize, Record)| (*journal, record.position);
        first.sort_by_key(place);
        self.records.sort_by_key(place);
        assert!(first == self.records, "records have changed");
    }

    /// All journals replay without divergences.
    #[track_caller]
    pub(crate) fn replays(&self) {
        self.place.replay(&self.records);
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().map(|(_, record)| record)
    }

    /// Every handler in flight behind `killed` records has ended since, as its spec says. It can have
    /// completed only `if_taken`: if the daemon worked on until another one took the journal.
    #[track_caller]
    pub(crate) fn what_was_in_flight_has_ended(&self, killed: usize, if_taken: bool) {
        let (before, after) = self.records.split_at(killed);
        for run in in_flight(before) {
            let end = after.iter().position(|(_, one)| ends(&one.event, run));
            let end = end.unwrap_or_else(|| panic!("it never ended: {run:?}"));
            let Event::Ended(ended) = &after[end].1.event else { unreachable!("it was found") };
            let how = (ended.outcome.kind(), ended.cause);
            if if_taken && how.0 == OutcomeKind::Completed {
                continue;
            }
            assert_eq!(how, (OutcomeKind::Interrupted, Cause::HostLost), "{run:?}");
            let entity = &after[end].1.entity;
            // Records of other journals can be in between.
            let next = after[end + 1..].iter().find(|(_, one)| one.entity == *entity);
            let next = next.map(|(_, record)| &record.event);
            if may_rerun(run) {
                assert_eq!(ended.decision, Decision::Rerun, "{run:?}");
                let Some(Event::Dispatched(again)) = next else { panic!("{run:?}: {next:?}") };
                let attempt = (run.dispatch, run.attempt + 1);
                assert_eq!((again.dispatch, again.attempt), attempt, "{run:?}");
            } else {
                let action = "Interrupt".to_owned();
                assert_eq!(ended.decision, Decision::Take { action }, "{run:?}");
                let Some(Event::Transition { action, to, cause, .. }) = next else {
                    panic!("{run:?}: {next:?}")
                };
                assert_eq!((&**action, &**to), ("Interrupt", "Lost"), "{run:?}");
                let dispatch = run.dispatch;
                assert_eq!(*cause, TransitionCause::HandlerEnded { dispatch });
            }
        }
    }

    /// How many handlers are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        in_flight(&self.records).count()
    }

    /// Between these numbers of records, no handler has ended otherwise than by itself.
    #[track_caller]
    pub(crate) fn nothing_was_interrupted(&self, from: usize, to: usize) {
        for (_, record) in &self.records[from..to] {
            if let Event::Ended(ended) = &record.event {
                assert_eq!(ended.outcome.kind(), OutcomeKind::Completed, "{record:?}");
            }
        }
    }

    /// Whether every handler that does not hang and was in flight behind `before` records has ended.
    pub(crate) fn quick_ones_have_ended(&self, before: usize) -> bool {
        let (before, after) = self.records.split_at(before);
        let has_ended = |run| after.iter().any(|(_, one)| ends(&one.event, run));
        in_flight(before).all(|run| run.integration.starts_with("hangs") || has_ended(run))
    }

    /// Each entity is created once, and each of its transitions has the next sequence.
    #[track_caller]
    pub(crate) fn entities_are_whole(&self) {
        let mut sequences: BTreeMap<String, u64> = BTreeMap::new();
        for record in self.records() {
            let Some(entity) = record.entity.as_ref().map(ToString::to_string) else { continue };
            let before = sequences.get(&entity).copied();
            let now = match &record.event {
                Event::Created { .. } => before.is_none().then_some(0),
                Event::Transition { .. } => before.map(|before| before + 1),
                _ => before,
            };
            assert_eq!(now, Some(record.sequence.0), "after {before:?}: {record:?}");
            sequences.insert(entity, record.sequence.0);
        }
    }

    /// No attempt begins but the first, one after a crash where the spec allows it, and
    /// one that somebody asked for; and each ends once at the most.
    #[track_caller]
    pub(crate) fn nothing_ran_twice_by_itself(&self, told: &[Told]) {
        let asked: BTreeSet<&str> = told.iter().filter_map(may_have_retried).collect();
        let mut last: BTreeMap<DispatchId, (u32, Option<&Decision>)> = BTreeMap::new();
        for record in self.records() {
            match &record.event {
                Event::Dispatched(run) => {
                    let before = last.insert(run.dispatch, (run.attempt, None));
                    let may = match (before, &run.retried) {
                        (None, None) => run.attempt == 1,
                        (Some((attempt, Some(Decision::Rerun))), None) => {
                            run.attempt == attempt + 1 && RERUN.contains(&&*run.integration)
                        }
                        (Some((attempt, Some(Decision::Take { .. }))), Some(retried)) => {
                            run.attempt == attempt + 1 && asked.contains(&*retried.reason)
                        }
                        _ => false,
                    };
                    assert!(may, "after {before:?}: {record:?}");
                }
                Event::Ended(ended) => {
                    let before =
                        last.insert(ended.dispatch, (ended.attempt, Some(&ended.decision)));
                    assert_eq!(before, Some((ended.attempt, None)), "{record:?}");
                    let how = ended.outcome.kind();
                    let expected = [OutcomeKind::Completed, OutcomeKind::Interrupted];
                    assert!(expected.contains(&how), "nothing else can end it: {record:?}");
                }
                _ => {}
            }
        }
    }

    /// What was acknowledged is there once and as it was told, what was refused isn't, and
    /// what nobody was told of is there once at the most.
    #[track_caller]
    pub(crate) fn agrees_with(&self, told: &[Told]) {
        let index = Index::of(&self.records);
        let refused_only = refused_only(told);
        for one in told {
            match (&one.what, &one.answer) {
                (What::Look, Answer::Done(view)) => index.has_been(one, view),
                (What::Create, Answer::Done(view)) => {
                    index.is_created(one);
                    assert_eq!(view["sequence"], 0, "{one:?}");
                }
                (What::Create, Answer::Refused(code)) if UNAVAILABLE.contains(&&**code) => {
                    let other = told
                        .iter()
                        .any(|other| other.entity == one.entity && !other.answer.is_unavailable());
                    assert!(other || !index.created.contains_key(&one.entity), "{one:?}");
                }
                (What::Create, Answer::Refused(code)) => {
                    assert_eq!(code, "entity_exists", "{one:?}");
                    index.is_created(one);
                }
                (_, Answer::Done(view)) => index.has_taken(one, view),
                (_, Answer::Refused(code)) => {
                    let codes = ["conflict", "not_taken", "not_retried"];
                    let known = codes.contains(&&**code) || UNAVAILABLE.contains(&&**code);
                    assert!(known, "{one:?}");
                    let most = usize::from(!refused_only.contains(&*one.token));
                    assert!(index.of_token(one).len() <= most, "it was refused: {one:?}");
                }
                (_, Answer::Lost) => assert!(index.of_token(one).len() <= 1, "{one:?}"),
            }
        }
        index.each_creation_was_told_once(told);
        each_action_was_told_once(told);
    }

    /// Checks that no timer that has rung did so before its time, and that none began
    /// anew where half of it was gone when the life began in which it rang. Answers how
    /// many were put to that test: a life that took requests only when the timer was due
    /// shows how slow the machine is, and nothing else.
    #[track_caller]
    pub(crate) fn timers_went_on(&self, timer: Duration, restarts: &[Restart]) -> usize {
        let mut tested = 0;
        for (set, rung) in self.timers() {
            let Some(rung) = rung else { continue };
            let (half, due) = (set.at.after(timer / 2), set.at.after(timer));
            assert!(rung.at >= due, "too early: {set:?}, {rung:?}");
            let last = restarts.iter().rfind(|restart| restart.began <= rung.at);
            let Some(Restart { began, listening: Some(listening) }) = last else { continue };
            if *began >= half && *listening < due {
                assert!(rung.at < began.after(timer), "{began} anew: {set:?}, {rung:?}");
                tested += 1;
            }
        }
        tested
    }

    pub(crate) fn all_timers_have_rung(&self) -> bool {
        self.timers().iter().all(|(_, rung)| rung.is_some())
    }

    /// What set each timer, and what it became.
    fn timers(&self) -> Vec<(&Record, Option<&Record>)> {
        let mut timers: BTreeMap<String, (&Record, Option<&Record>)> = BTreeMap::new();
        for record in self.records() {
            let Some(entity) = record.entity.as_ref().map(ToString::to_string) else { continue };
            match &record.event {
                Event::Transition { action, .. } if action == "SwitchOn" || action == "Set" => {
                    timers.insert(entity, (record, None));
                }
                Event::StateIdle { taken, .. } | Event::ScheduleDue { taken, .. } => {
                    let (_, rung) = timers.get_mut(&entity).expect("it was set");
                    assert!(*taken && rung.is_none(), "once: {record:?}");
                    *rung = Some(record);
                }
                _ => {}
            }
        }
        timers.into_values().collect()
    }
}

/// The records by what they are looked for with.
struct Index<'a> {
    created: BTreeMap<String, Vec<&'a Record>>,
    tokens: BTreeMap<&'a str, Vec<&'a Record>>,
    /// The handlers that a request started, by its token.
    started: BTreeMap<&'a str, Vec<DispatchId>>,
    /// The state of an entity at a sequence.
    states: BTreeMap<(String, Sequence), &'a str>,
}

impl<'a> Index<'a> {
    fn of(records: &'a [(usize, Record)]) -> Self {
        let (created, tokens, started, states) = Default::default();
        let mut index = Self { created, tokens, started, states };
        for (_, record) in records {
            let Some(entity) = record.entity.as_ref().map(ToString::to_string) else { continue };
            match &record.event {
                Event::Created { state, .. } => {
                    index.states.insert((entity.clone(), record.sequence), state);
                    index.created.entry(entity).or_default().push(record);
                }
                Event::Transition { params, to, .. } => {
                    index.states.insert((entity, record.sequence), to);
                    if let Some(token) = params.get("token").and_then(Value::as_str) {
                        index.tokens.entry(token).or_default().push(record);
                    }
                }
                Event::Dispatched(run) => index.dispatched(record, run),
                _ => {}
            }
        }
        index
    }

    fn dispatched(&mut self, record: &'a Record, run: &'a Dispatched) {
        let token = match &run.retried {
            Some(retried) => {
                self.tokens.entry(&retried.reason).or_default().push(record);
                Some(&*retried.reason)
            }
            None if run.attempt == 1 => run.params.get("token").and_then(Value::as_str),
            None => None,
        };
        if let Some(token) = token {
            self.started.entry(token).or_default().push(run.dispatch);
        }
    }

    fn of_token(&self, told: &Told) -> &[&'a Record] {
        self.tokens.get(&*told.token).map_or(&[], Vec::as_slice)
    }

    #[track_caller]
    fn is_created(&self, told: &Told) {
        let created = self.created.get(&told.entity).map_or(0, Vec::len);
        assert_eq!(created, 1, "{told:?}");
    }

    #[track_caller]
    fn has_been(&self, told: &Told, view: &Value) {
        let sequence = Sequence(view["sequence"].as_u64().expect("a number"));
        let state = self.states.get(&(told.entity.clone(), sequence));
        assert_eq!(state.copied(), view["state"].as_str(), "{told:?}");
    }

    #[track_caller]
    fn has_taken(&self, told: &Told, view: &Value) {
        let [record] = self.of_token(told)[..] else {
            panic!("not there once: {told:?}: {:?}", self.of_token(told))
        };
        assert_eq!(record.entity.as_ref().map(ToString::to_string), Some(told.entity.clone()));
        assert_eq!(view["sequence"], record.sequence.0, "{told:?}: {record:?}");
        assert_eq!(view["position"], record.position.0, "{told:?}: {record:?}");
        let right = match (&record.event, &told.what) {
            (Event::Transition { action, cause, .. }, What::Act(asked)) => {
                action == asked && *cause == TransitionCause::Requested
            }
            (Event::Dispatched(run), What::Retry(asked)) => run.dispatch.to_string() == *asked,
            _ => false,
        };
        assert!(right, "{told:?}: {record:?}");
        self.has_been(told, view);
        let started = self.started.get(&*told.token).map_or(&[][..], Vec::as_slice);
        let started: Vec<Value> = started.iter().map(|id| id.to_string().into()).collect();
        assert_eq!(view["dispatches"], Value::Array(started), "{told:?}");
    }

    /// Nobody else was told that it is new.
    #[track_caller]
    fn each_creation_was_told_once(&self, told: &[Told]) {
        let mut seen = BTreeSet::new();
        for one in told {
            if matches!((&one.what, &one.answer), (What::Create, Answer::Done(_))) {
                assert!(seen.insert(&one.entity), "told twice: {one:?}");
            }
        }
        let twice = self.created.values().find(|records| records.len() > 1);
        assert!(twice.is_none(), "{twice:?}");
    }
}

/// Of a request that was sent twice, only one was acknowledged.
#[track_caller]
fn each_action_was_told_once(told: &[Told]) {
    let mut seen = BTreeSet::new();
    for one in told {
        if matches!((&one.what, &one.answer), (What::Act(_) | What::Retry(_), Answer::Done(_))) {
            assert!(seen.insert(&one.token), "told twice: {one:?}");
        }
    }
}

/// The tokens of requests that were refused each time that they were sent.
fn refused_only(told: &[Told]) -> BTreeSet<&str> {
    let refused = |one: &&Told| matches!(one.answer, Answer::Refused(_));
    let other: BTreeSet<&str> =
        told.iter().filter(|one| !refused(one)).map(|one| &*one.token).collect();
    let tokens = told.iter().filter(refused).map(|one| &*one.token);
    tokens.filter(|token| !other.contains(token)).collect()
}

/// The handlers that these records leave in flight.
fn in_flight(records: &[(usize, Record)]) -> impl Iterator<Item = &Dispatched> {
    let mut open = BTreeMap::new();
    for (_, record) in records {
        match &record.event {
            Event::Dispatched(run) => drop(open.insert(run.dispatch, &**run)),
            Event::Ended(ended) => drop(open.remove(&ended.dispatch)),
            _ => {}
        }
    }
    open.into_values()
}

fn ends(event: &Event, run: &Dispatched) -> bool {
    let Event::Ended(ended) = event else { return false };
    (ended.dispatch, ended.attempt) == (run.dispatch, run.attempt)
}

fn may_rerun(run: &Dispatched) -> bool {
    RERUN.contains(&&*run.integration) && run.attempt < ATTEMPTS_MAX
}

/// The token of a retry, unless it was refused.
fn may_have_retried(told: &Told) -> Option<&str> {
    let refused = matches!(told.answer, Answer::Refused(_));
    (matches!(told.what, What::Retry(_)) && !refused).then_some(&told.token)
}
