//! A case: the input of a handler, the scripted answers to its calls, and the expectations.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_model::{EntityRef, Object, OutcomeKind, RunReport, WallTime};
use serde_json::Value;

use crate::answer::Answer;

/// One execution of a handler, and what is expected of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What the case shows, in a few words.
    pub name: String,
    /// The action that starts the handler.
    pub action: String,
    /// The action's parameters: the handler's input.
    pub input: Object,
    /// The entity that takes the action.
    pub entity: EntityRef,
    /// The entity's state: any JSON, usually an object.
    pub state: Value,
    /// The integration's configuration.
    pub config: BTreeMap<String, String>,
    /// Values of the secrets that the manifest grants.
    pub secrets: BTreeMap<String, String>,
    /// The contents of named streams that the handler can read.
    pub streams: BTreeMap<String, Vec<u8>>,
    /// The tenant.
    pub tenant: String,
    /// The agent on whose behalf the handler runs; `None` if there is none.
    pub agent_id: Option<String>,
    /// The session that the entity belongs to; `None` if there is none.
    pub session_id: Option<String>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// How long it may run, in virtual time.
    pub deadline: Duration,
    /// The wall-clock time at the start.
    pub now: WallTime,
    /// The scripted answers. Each call gets the first matching answer that is not used up. A call
    /// without a matching answer fails, and is a difference.
    pub answers: Vec<Answer>,
    /// The expectations.
    pub expected: Expected,
}

impl Case {
    /// How long a guest may compute in real time, one second. After that it counts as a guest that
    /// never ends, and the virtual time jumps to its deadline.
    pub const COMPUTE_MAX: Duration = Duration::from_secs(1);
}

impl Default for Case {
    /// The action `Run` of `Test/1` without params, with a deadline of two minutes and no answers; it is
    /// expected to complete.
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

/// The expectations of a case. A field that is `None` is not checked; the outcome always is.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// The outcome.
    pub outcome: OutcomeKind,
    /// The action that the completion names.
    pub action: Option<String>,
    /// The parameters of that action.
    pub params: Option<Value>,
    /// The whole result that the guest returned.
    pub result: Option<Value>,
    /// The kind of the error, such as `typed_failure` or `unreachable`.
    pub error_kind: Option<String>,
    /// A part of the error's message.
    pub error: Option<String>,
    /// What was running when the handler was stopped or trapped.
    pub dying_span: Option<String>,
    /// The host functions that it called, in order ([`called_functions`]).
    pub calls: Option<Vec<String>>,
    /// The requests that it made, in order: `METHOD URL`.
    pub requests: Option<Vec<String>>,
    /// The bodies of the requests that were sent, in order: as JSON if they are JSON, otherwise as
    /// text.
    pub bodies: Option<Vec<Value>>,
    /// The asks that it made, in order: `{"ask": "TYPE/ID.ACTION", "params": {}}`.
    pub asks: Option<Vec<Value>>,
    /// The signals that it sent to other entities, in order:
    /// `{"signal": "TYPE/ID.NAME", "payload": {}}`, without a payload that is null.
    pub signals: Option<Vec<Value>>,
    /// The progress that it reported, in order.
    pub progress: Option<Vec<Value>>,
    /// The status text that it set last.
    pub status: Option<String>,
    /// The least virtual time that it takes.
    pub at_least: Option<Duration>,
    /// The most virtual time that it takes.
    pub at_most: Option<Duration>,
}

impl Default for Expected {
    /// Expects that the handler completes.
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
            signals: None,
            progress: None,
            status: None,
            at_least: None,
            at_most: None,
        }
    }
}

/// The host functions that a handler called, in order. Of more than 64 calls the report contains the
/// first and the last, and one line states how many were omitted between them.
#[must_use]
pub fn called_functions(report: &RunReport) -> Vec<String> {
    let story = &report.story;
    let mut calls: Vec<String> = story.calls.iter().map(|call| call.name.to_string()).collect();
    if story.calls_omitted > 0 {
        let between = format!("({} more)", story.calls_omitted);
        calls.insert(calls.len() / 2, between);
    }
    calls
}
