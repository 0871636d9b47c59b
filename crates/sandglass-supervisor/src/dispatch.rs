//! One dispatch of an integration, as a caller passes it to the host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_model::{DispatchId, EntityRef, Object, Rejection, RejectionKind, TraceContext};
use serde::Serialize;
use serde_json::Value;

use crate::admission::Reservation;
use crate::capability::ask::Asks;
use crate::capability::context::Facts;
use crate::capability::http::HttpClient;
use crate::capability::named_streams::Streams;
use crate::capability::signal::Signals;
use crate::deadline::DispatchDeadline;
use crate::manifest::Manifest;
use crate::node::{NodeCall, Work};
use crate::recording::{RecordingLimits, RecordingMode, Replayer};
use crate::rejection::rejection;
use crate::run::{Run, StopHandle};
use crate::secret::Secrets;

/// The context of a dispatch. With the entity and the action, it becomes the context JSON of the
/// guest.
#[derive(Clone, Debug)]
pub struct Context {
    /// The tenant; `default` if there is only one.
    pub tenant: String,
    /// The parameters of the triggering action.
    pub params: Object,
    /// The entity's state: any JSON, usually an object.
    pub entity_state: Value,
    /// The integration's configuration. Its [templates](crate::template) are replaced when the run
    /// starts.
    pub config: BTreeMap<String, String>,
    /// The agent on whose behalf it runs, if there is one.
    pub agent_id: Option<String>,
    /// The session that it belongs to, if there is one.
    pub session_id: Option<String>,
    /// What failed before, if there is something.
    pub recovery: Option<Value>,
    /// Further keys, which core modules read beside the others. A dispatch is rejected if one of them
    /// has the name of a key that the host sets ([`CONTEXT_KEYS`]). `wasm_module` replaces the name
    /// that the host knows. Components do not get them, because their context has a fixed type.
    pub extra: Object,
}

/// The keys of the context JSON that the host sets.
pub const CONTEXT_KEYS: [&str; 14] = [
    "tenant",
    "entity_type",
    "entity_id",
    "trigger_action",
    "trigger_params",
    "entity_state",
    "integration_config",
    "trace_id",
    "agent_id",
    "session_id",
    "recovery",
    "dispatch_id",
    "deadline_remaining_ms",
    "attempt",
];

impl Default for Context {
    fn default() -> Self {
        Self {
            tenant: "default".to_owned(),
            params: Object::new(),
            entity_state: Value::Object(serde_json::Map::new()),
            config: BTreeMap::new(),
            agent_id: None,
            session_id: None,
            recovery: None,
            extra: Object::new(),
        }
    }
}

/// One dispatch of an integration: for which entity and action, and with which budget.
#[derive(Debug)]
pub struct Dispatch {
    /// The entity.
    pub entity: EntityRef,
    /// The action that triggered it.
    pub action: String,
    /// The context that the guest can read.
    pub context: Context,
    /// How long it may run.
    pub deadline: DispatchDeadline,
    /// How long it may wait for a permit; `None`: as long as its budget.
    pub schedule_to_start: Option<Duration>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Its id and the span of its run; `None`: random.
    pub identity: Option<(DispatchId, TraceContext)>,
    /// The span that caused it.
    pub parent: Option<TraceContext>,
    /// The receiver of progress and status.
    pub signals: Option<Arc<dyn Signals>>,
    /// Streams that outlive the run.
    pub streams: Option<Streams>,
    /// How long its module was compiled on its behalf.
    pub compile: Duration,
    /// The name of the integration in reports; `None`: that of its manifest.
    pub integration: Option<String>,
    /// The permit that was reserved for it.
    pub reservation: Option<Reservation>,
    pub(crate) asks: Option<Arc<dyn Asks>>,
    /// The client that sends its requests; `None`: that of the host.
    pub(crate) http: Option<Arc<dyn HttpClient>>,
    /// Where its secrets come from; `None`: as its manifest states.
    pub(crate) secrets: Option<Arc<dyn Secrets>>,
    /// What its guest may use.
    pub limits: DispatchLimits,
    /// Whether it is recorded or replayed.
    pub recording_mode: RecordingMode,
    /// Time limits of its host calls.
    pub call_limits: CallLimits,
    /// What its guest does.
    pub work: Work,
    /// The part of its run that other threads see.
    pub run: Arc<Run>,
}

/// Time limits of a run's host calls, besides those of its manifest and its host. For each function,
/// the shortest of its own limits applies, or else the shortest general limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Each call to the outside.
    pub all: Option<Duration>,
    /// Calls of these functions.
    pub of: BTreeMap<String, Duration>,
}

/// What the guest of one dispatch may use. A limit that is not set is that of the manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchLimits {
    /// All linear memories of the guest together, in bytes. A larger value than the manifest allows
    /// ([`Manifest::max_memory_bytes`]) has no effect beyond it.
    pub memory_bytes: Option<u64>,
    /// Fuel (about one unit per instruction). The smaller limit counts: this one, or that of the
    /// manifest. Counting slows a guest down, and is compiled into it: if the manifest sets no fuel,
    /// the dispatch is rejected.
    pub fuel: Option<u64>,
    /// The result that the guest returns, and each response that a host function reads for it, in
    /// bytes. A larger value than the manifest allows ([`Manifest::max_response_bytes`]) has no effect
    /// beyond it.
    pub response_bytes: Option<u64>,
}

impl Dispatch {
    /// Creates a dispatch for `entity` on `action`, with the default budget
    /// ([`sandglass_model::limit::DEFAULT_BUDGET_MS`]).
    #[must_use]
    pub fn new(entity: EntityRef, action: impl Into<String>, context: Context) -> Self {
        let budget = Duration::from_millis(sandglass_model::limit::DEFAULT_BUDGET_MS);
        Self {
            entity,
            action: action.into(),
            context,
            deadline: DispatchDeadline::after(budget),
            schedule_to_start: None,
            attempt: 1,
            identity: None,
            parent: None,
            signals: None,
            streams: None,
            compile: Duration::ZERO,
            integration: None,
            reservation: None,
            asks: None,
            http: None,
            secrets: None,
            limits: DispatchLimits::default(),
            recording_mode: RecordingMode::Off,
            call_limits: CallLimits::default(),
            work: Work::default(),
            run: Arc::default(),
        }
    }

    /// Sets how long it may run.
    #[must_use]
    pub fn deadline(self, deadline: DispatchDeadline) -> Self {
        Self { deadline, ..self }
    }

    /// Sets how long it may wait for a permit. Default: as long as its budget.
    #[must_use]
    pub fn schedule_to_start(self, timeout: Duration) -> Self {
        Self { schedule_to_start: Some(timeout), ..self }
    }

    /// Sets which attempt this is, from 1.
    #[must_use]
    pub fn attempt(self, attempt: u32) -> Self {
        Self { attempt, ..self }
    }

    /// Sets the dispatch's id and the span of its run. Default: random ones.
    #[must_use]
    pub fn identity(self, dispatch: DispatchId, span: TraceContext) -> Self {
        Self { identity: Some((dispatch, span)), ..self }
    }

    /// Sets the span that caused it.
    #[must_use]
    pub fn parent(self, parent: TraceContext) -> Self {
        Self { parent: Some(parent), ..self }
    }

    /// Sets the receiver of the handler's signals.
    #[must_use]
    pub fn signals(self, signals: Arc<dyn Signals>) -> Self {
        Self { signals: Some(signals), ..self }
    }

    /// Gives the handler `streams`. A caller that keeps a clone can take what the handler puts there.
    #[must_use]
    pub fn streams(self, streams: Streams) -> Self {
        Self { streams: Some(streams), ..self }
    }

    /// Sets how long the caller has compiled its module, or waited for that.
    #[must_use]
    pub fn compiled_in(self, compile: Duration) -> Self {
        Self { compile, ..self }
    }

    /// Sets the name of the integration in reports and logs, for several that share a module. Default:
    /// the name in its manifest.
    #[must_use]
    pub fn integration(self, name: impl Into<String>) -> Self {
        Self { integration: Some(name.into()), ..self }
    }

    /// Uses a place in the queue that was reserved for it. Without one, it is queued or refused when
    /// it arrives.
    #[must_use]
    pub fn reserved(self, reservation: Reservation) -> Self {
        Self { reservation: Some(reservation), ..self }
    }

    /// Sets the receiver of the handler's asks. Without one, each ask fails.
    #[must_use]
    pub fn asks(self, asks: Arc<dyn Asks>) -> Self {
        Self { asks: Some(asks), ..self }
    }

    /// Sets the client that sends its requests, in place of the host's. Each request comes with the
    /// hosts that the manifest grants; the client refuses others.
    #[must_use]
    pub fn http(self, client: Arc<dyn HttpClient>) -> Self {
        Self { http: Some(client), ..self }
    }

    /// Sets where its secrets come from, in place of what its manifest states. They return only those
    /// that the integration may have ([`GrantedSecrets`](crate::secret::GrantedSecrets) filters by
    /// name).
    #[must_use]
    pub fn secrets(self, secrets: Arc<dyn Secrets>) -> Self {
        Self { secrets: Some(secrets), ..self }
    }

    /// Sets what its guest may use.
    #[must_use]
    pub fn limits(self, limits: DispatchLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets time limits of its host calls, which apply if they are shorter than others.
    #[must_use]
    pub fn call_limits(self, call_limits: CallLimits) -> Self {
        Self { call_limits, ..self }
    }

    /// Invokes a node of the integration, which is a pack, in place of its handler. The response
    /// becomes the outcome: `completed` and `suspended` the result of an
    /// [`Outcome::Completed`](sandglass_model::Outcome::Completed), `failed` that of an
    /// [`Outcome::Failed`](sandglass_model::Outcome::Failed) of the kind `typed_failure`.
    #[must_use]
    pub fn node(self, call: NodeCall) -> Self {
        Self { work: Work::Invoke(call), ..self }
    }

    /// Makes the integration, which is a pack, describe itself.
    pub fn describing(self) -> Self {
        Self { work: Work::Describe, ..self }
    }

    /// Records its run within `limits`, so that it can be replayed (`Host::replay`). The run's report
    /// contains the recording.
    #[must_use]
    pub fn recorded(self, limits: RecordingLimits) -> Self {
        Self { recording_mode: RecordingMode::Record(limits), ..self }
    }

    /// Whether its run is a replay.
    pub const fn is_replay(&self) -> bool {
        matches!(self.recording_mode, RecordingMode::Replay(_))
    }

    /// Replays its run: the results of host calls come from `replayer`.
    pub fn replayed_by(self, replayer: Replayer) -> Self {
        Self { recording_mode: RecordingMode::Replay(Mutex::new(Some(Box::new(replayer)))), ..self }
    }

    /// A dispatch for a store in which nothing runs.
    pub(crate) fn idle() -> Self {
        let entity = EntityRef::new("None", "none").expect("both are names");
        Self::new(entity, "", Context::default())
    }

    /// Returns a handle that stops the run of this dispatch from any thread.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.run))
    }
}

#[derive(Serialize)]
struct ContextView<'a> {
    tenant: &'a str,
    entity_type: &'a str,
    entity_id: &'a str,
    trigger_action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    wasm_module: Option<&'a str>,
    trigger_params: &'a Object,
    entity_state: &'a Value,
    integration_config: &'a BTreeMap<String, String>,
    trace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery: Option<&'a Value>,
    dispatch_id: DispatchId,
    deadline_remaining_ms: u64,
    attempt: u32,
    #[serde(flatten)]
    extra: &'a Object,
}

impl Dispatch {
    /// The name of the integration in reports.
    pub fn integration_name<'a>(&'a self, manifest: &'a Manifest) -> &'a str {
        self.integration.as_deref().unwrap_or(&manifest.name)
    }

    /// Checks the further keys of its context.
    ///
    /// # Errors
    /// One of them has the name of a key that the host sets.
    pub fn check_context(&self) -> Result<(), Rejection> {
        let mut extra = self.context.extra.keys();
        let Some(taken) = extra.find(|key| CONTEXT_KEYS.contains(&key.as_str())) else {
            return Ok(());
        };
        let message = format!(
            "the context of the dispatch has the extra key `{taken}`, which the host sets itself; \
             rename it"
        );
        Err(rejection(RejectionKind::InvalidDispatch, message))
    }

    /// Serializes the context JSON of the core ABI, for the run that `facts` describe.
    pub fn context_json(&self, facts: &Facts) -> Vec<u8> {
        let extra = &self.context.extra;
        let view = ContextView {
            tenant: &self.context.tenant,
            entity_type: self.entity.entity_type(),
            entity_id: self.entity.id(),
            trigger_action: &self.action,
            // An embedder may know the module by another name.
            wasm_module: (!extra.contains_key("wasm_module")).then_some(&facts.module),
            trigger_params: &self.context.params,
            entity_state: &self.context.entity_state,
            integration_config: facts.config(),
            trace_id: facts.trace.trace_id.to_string(),
            agent_id: self.context.agent_id.as_deref(),
            session_id: self.context.session_id.as_deref(),
            recovery: self.context.recovery.as_ref(),
            dispatch_id: facts.id,
            deadline_remaining_ms: facts.remaining_ms,
            attempt: self.attempt,
            extra,
        };
        serde_json::to_vec(&view).expect("plain data with string keys")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dispatch(extra: Value) -> Dispatch {
        let Value::Object(extra) = extra else { panic!("an object") };
        let context = Context {
            agent_id: Some("agent".to_owned()),
            session_id: Some("session".to_owned()),
            recovery: Some(json!({})),
            extra: extra.into_iter().collect(),
            ..Context::default()
        };
        Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
    }

    fn context(dispatch: &Dispatch) -> Value {
        let facts = Facts {
            dispatch: Arc::new(Dispatch::idle()),
            id: DispatchId::from_bytes([7; 16]),
            trace: TraceContext::root([9; 24]),
            remaining_ms: 5,
            module: "guest".into(),
            resolved: None,
        };
        serde_json::from_slice(&dispatch.context_json(&facts)).expect("JSON")
    }

    #[test]
    fn extra_keys_stand_beside_the_keys_of_the_host_and_replace_none() {
        let plain = context(&dispatch(json!({})));
        let Value::Object(keys) = &plain else { panic!("{plain}") };
        let mut built_in = [&CONTEXT_KEYS[..], &["wasm_module"]].concat();
        built_in.sort_unstable();
        assert_eq!(keys.keys().map(String::as_str).collect::<Vec<_>>(), built_in);

        let more = dispatch(json!({ "wasm_module": "tools", "http_request": { "path": "/" } }));
        more.check_context().expect("no key of the host");
        let mut more = context(&more);
        assert_eq!(more["wasm_module"], "tools");
        assert_eq!(more["http_request"]["path"], "/");
        more["wasm_module"] = plain["wasm_module"].clone();
        more.as_object_mut().expect("an object").retain(|key, _| key != "http_request");
        assert_eq!((&more, &more["wasm_module"]), (&plain, &"guest".into()));

        for key in CONTEXT_KEYS {
            let refused = dispatch(json!({ key: 1 })).check_context().expect_err(key);
            assert_eq!(refused.kind, RejectionKind::InvalidDispatch);
            assert!(refused.message.contains(&format!("`{key}`")), "{refused}");
        }
    }
}
