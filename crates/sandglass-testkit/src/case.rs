//! A case: what a handler is given, what the world answers it, and what is expected.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_model::{EntityRef, Object, OutcomeKind, RunReport, WallTime};
use serde_json::Value;

use crate::answer::Answer;

/// One run of a handler, and what is expected of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What it shows, in a few words.
    pub name: String,
    /// The action that starts the handler.
    pub action: String,
    /// The action's parameters: the handler's input.
    pub input: Object,
    /// The entity whose action it is.
    pub entity: EntityRef,
    /// The entity's state: any JSON, an object by custom.
    pub state: Value,
    /// The integration's configuration.
    pub config: BTreeMap<String, String>,
    /// Values of the secrets that the manifest grants.
    pub secrets: BTreeMap<String, String>,
    /// Bytes that the handler finds in named streams.
    pub streams: BTreeMap<String, Vec<u8>>,
    /// The tenant.
    pub tenant: String,
    /// The agent on whose behalf it runs, if there is one.
    pub agent_id: Option<String>,
    /// The session that it belongs to, if there is one.
    pub session_id: Option<String>,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// How long it may run, in virtual time.
    pub deadline: Duration,
    /// What the clocks show when it starts.
    pub now: WallTime,
    /// What the world answers. Each call takes the first that fits and isn't used up; one that
    /// none fits fails, and is a difference.
    pub answers: Vec<Answer>,
    /// What is expected.
    pub expected: Expected,
}

impl Case {
    /// How long a guest may compute in real time, until it is taken for one that never ends
    /// and the time jumps to its deadline: a second.
    pub const COMPUTE_MAX: Duration = Duration::from_secs(1);
}

impl Default for Case {
    /// The action `Run` of `Test/1`, with nothing to it, two minutes, and nothing that the
    /// world answers; expected to complete.
    fn default() -> Self {
        Self {
            name: String::new(),
            action: "Run".to_owned(),
            input: Object::new(),
            entity: EntityRef::new("Test", "1").expect("a valid name"),
            state: Value::Object(serde_json::Map::new()),
            config: BTreeMap::new(),
            secrets: BTreeMap::new(),
            streams: BTreeMap::new(),
            tenant: "default".to_owned(),
            agent_id: None,
            session_id: None,
            attempt: 1,
            deadline: Duration::from_millis(sandglass_model::limit::DEFAULT_BUDGET_MS),
            // 2026-01-01T00:00:00Z
            now: WallTime::from_millis(1_767_225_600_000),
            answers: Vec::new(),
            expected: Expected::default(),
        }
    }
}

/// What is expected of a run. What isn't said may be anything; the outcome is always expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// How it ends.
    pub outcome: OutcomeKind,
    /// The action that a completion names.
    pub action: Option<String>,
    /// That action's parameters.
    pub params: Option<Value>,
    /// All that the guest answered.
    pub result: Option<Value>,
    /// The kind of its error, such as `typed_failure` or `unreachable`.
    pub error_kind: Option<String>,
    /// What the error's message holds.
    pub error: Option<String>,
    /// What was running when it was stopped or trapped.
    pub dying_span: Option<String>,
    /// The host functions that it called, in their order ([`calls_of`]).
    pub calls: Option<Vec<String>>,
    /// The requests that it made, in their order: `METHOD URL`.
    pub requests: Option<Vec<String>>,
    /// The bodies of the requests that were sent, in their order: the JSON that each is, or else
    /// its text.
    pub bodies: Option<Vec<Value>>,
    /// The asks that it made, in their order: `{"ask": "TYPE/ID.ACTION", "params": {}}`.
    pub asks: Option<Vec<Value>>,
    /// The progress that it told, in its order.
    pub progress: Option<Vec<Value>>,
    /// The status text that it set last.
    pub status: Option<String>,
    /// Least time that it takes, in virtual time.
    pub at_least: Option<Duration>,
    /// Most time that it takes, in virtual time.
    pub at_most: Option<Duration>,
}

impl Default for Expected {
    /// It completes.
    fn default() -> Self {
        Self {
            outcome: OutcomeKind::Completed,
            action: None,
            params: None,
            result: None,
            error_kind: None,
            error: None,
            dying_span: None,
            calls: None,
            requests: None,
            bodies: None,
            asks: None,
            progress: None,
            status: None,
            at_least: None,
            at_most: None,
        }
    }
}

/// The host functions that a run has called, in their order. Of more than 64 the report keeps
/// the first and the last, and one line says how many were between them.
#[must_use]
pub fn calls_of(report: &RunReport) -> Vec<String> {
    let story = &report.story;
    let mut calls: Vec<String> = story.calls.iter().map(|call| call.name.to_string()).collect();
    if story.calls_omitted > 0 {
        let between = format!("({} more)", story.calls_omitted);
        calls.insert(calls.len() / 2, between);
    }
    calls
}
