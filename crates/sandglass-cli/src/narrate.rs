//! Describes records in one line each, for `log` and for the timeline of `play`.

mod session;

use std::borrow::Cow;
use std::collections::BTreeMap;

use sandglass_model::{
    DeadlineOwner, Decision, DispatchId, Dispatched, Ended, EntityRef, Event, NO_ACTION, Object,
    Observed, Outcome, Record, Spawn, SpawnObstacle, TransitionCause, Unspawnable,
};
use sandglass_source::{printable, shortened};

use crate::duration::format_millis;
use crate::terminal::Tone;

/// Most dispatches whose integration is remembered until they end: far more than are in flight at
/// once. A line about an older one shows its id instead.
const REMEMBERED_MAX: usize = 10_000;
/// Most characters of a payload that are shown.
const PAYLOAD_MAX_CHARS: usize = 80;

/// Describes records, which it receives in order.
#[derive(Debug, Default)]
pub(crate) struct Narrator {
    integrations: BTreeMap<DispatchId, String>,
}

/// A record in words, escaped for a terminal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// What happened, in a word or two: the name of the action, if there is one.
    pub(crate) what: String,
    pub(crate) detail: String,
    pub(crate) tone: Tone,
}

impl Narrator {
    pub(crate) fn describe(&mut self, record: &Record) -> Line {
        let (what, detail, tone) = match &record.event {
            Event::SpecRegistered { automaton, digest, .. } => {
                let digest = digest.to_string();
                ("spec".into(), format!("{automaton} ({})", &digest[..12]), Tone::Quiet)
            }
            Event::Created { state, spawned_by, .. } => {
                let by = spawned_by.as_ref().map(|by| format!(", spawned by {}", by.parent));
                let detail = format!("in {state}{}", by.unwrap_or_default());
                ("created".into(), detail, Tone::Quiet)
            }
            Event::Transition { action, from, to, cause, params, .. } => {
                let path = if from == to { to.clone() } else { format!("{from} -> {to}") };
                let why = self.why(cause, params).map(|why| format!("  ({why})"));
                (action.clone(), path + &why.unwrap_or_default(), Tone::Strong)
            }
            Event::SpecChanged { from, to, .. } => {
                let (from, to) = (from.to_string(), to.to_string());
                ("spec changed".into(), format!("{} -> {}", &from[..12], &to[..12]), Tone::Quiet)
            }
            Event::Dispatched(dispatched) => Self::describe_dispatch(dispatched),
            Event::Ended(ended) => self.describe_end(ended),
            Event::StateIdle { state, idle_ms, after_ms, action, taken, .. } => {
                let (idle, after) = (format_millis(*idle_ms), format_millis(*after_ms));
                let follows = follows(action, *taken);
                let detail =
                    format!("{state} had no action for {idle} (allowed {after}): {follows}");
                ("idle".into(), detail, Tone::Doubtful)
            }
            Event::Scheduled { schedule, action, due } => {
                ("scheduled".into(), format!("{action} for {due} (number {schedule})"), Tone::Quiet)
            }
            Event::ScheduleDue { schedule, action, taken, unspawnable, .. } => {
                let why = unspawnable.as_deref().map(because_unspawnable).unwrap_or_default();
                let detail = format!("number {schedule}: {}{why}", follows(action, *taken));
                ("due".into(), detail, Tone::Quiet)
            }
            Event::Emitted { name, action } => {
                ("event".into(), format!("{name}, emitted by {action}"), Tone::Quiet)
            }
            Event::Spawning(spawn) => describe_spawning(spawn),
            Event::Spawned { entity, action_refused, .. } => {
                describe_spawned(entity, action_refused.as_deref())
            }
            Event::SpawnRefused { entity, reason, .. } => {
                let detail = format!("{entity} ({reason}: {})", describe_obstacle(*reason));
                ("spawn refused".into(), detail, Tone::Bad)
            }
            Event::Signal { name, from, dispatch, payload, resets_idle } => {
                let sender = match (from, dispatch) {
                    (Some(entity), _) => format!("from {entity}"),
                    (None, Some(dispatch)) => format!("from {}", self.integration(*dispatch)),
                    (None, None) => "from outside".to_owned(),
                };
                let resets = if *resets_idle { " (restarts the idle timer)" } else { "" };
                let detail = format!("{sender}{resets} {}", payload_text(payload));
                (format!("signal {name}"), detail.trim().to_owned(), Tone::Quiet)
            }
            Event::RunStarted { .. }
            | Event::LimitBreached(_)
            | Event::LimitCleared { .. }
            | Event::RunStopping(_)
            | Event::RunStopped(_)
            | Event::SessionResumed { .. } => session::describe(&record.event),
        };
        let detail = detail + &Observed::format_all(record.event.observed());
        self.remember(record);
        Line { what: printable(&what).into(), detail: printable(&detail).into(), tone }
    }

    /// Remembers what lines about later records need, of a record that is not described itself.
    pub(crate) fn remember(&mut self, record: &Record) {
        match &record.event {
            Event::Dispatched(dispatched) => {
                if self.integrations.len() >= REMEMBERED_MAX {
                    self.integrations.pop_first();
                }
                self.integrations.insert(dispatched.dispatch, dispatched.integration.clone());
            }
            Event::Ended(ended) if ended.decision != Decision::Rerun => {
                self.integrations.remove(&ended.dispatch);
            }
            _ => {}
        }
    }

    fn describe_dispatch(dispatched: &Dispatched) -> (String, String, Tone) {
        let attempt = match dispatched.attempt {
            0 | 1 => String::new(),
            attempt => format!(", attempt {attempt}"),
        };
        let source = match dispatched.owner {
            DeadlineOwner::Parent => ", all that remains of its parent's",
            DeadlineOwner::Handler if dispatched.budget_defaulted => " by default",
            DeadlineOwner::Handler => "",
        };
        let budget = format_millis(dispatched.budget_ms);
        let Dispatched { integration, .. } = dispatched;
        let retried = dispatched.retried.as_ref().map(|retried| match retried.reason.as_str() {
            "" => format!(" for {}", retried.by),
            reason => format!(" for {}: {reason}", retried.by),
        });
        let retried = retried.unwrap_or_default();
        let detail = format!("{integration} starts (budget {budget}{source}{attempt}){retried}");
        ("handler".into(), detail, Tone::Plain)
    }

    fn describe_end(&self, ended: &Ended) -> (String, String, Tone) {
        let name = self.integration(ended.dispatch);
        let after = format_millis(ended.deadline.elapsed_ms);
        let inside = ended.dying_span.as_ref().map_or(String::new(), |span| format!(" in {span}"));
        let (how, tone) = match &ended.outcome {
            Outcome::Completed(_) => (format!("completed after {after}"), Tone::Good),
            Outcome::TimedOut(_) => (format!("killed after {after}{inside}"), Tone::Bad),
            // In parentheses, because the reason is free text that the span must not continue.
            Outcome::Cancelled(cancelled) => {
                let inside = ended.dying_span.as_ref().map(|span| format!(" (in {span})"));
                let cancelled = cancelled.to_string();
                let cancelled = one_colon(&cancelled);
                (format!("{cancelled}{}", inside.unwrap_or_default()), Tone::Doubtful)
            }
            Outcome::Interrupted => ("lost with its process".to_owned(), Tone::Bad),
            other => {
                let (kind, message) = other.error().unwrap_or_default();
                (format!("{} ({kind}): {message}", other.kind()), Tone::Bad)
            }
        };
        let follows = match &ended.decision {
            Decision::Take { action } => format!("takes {action}"),
            Decision::Superseded { action } if action == NO_ACTION => {
                "it names no action, nothing changes".to_owned()
            }
            Decision::Superseded { action } => format!("{action} is superseded, nothing changes"),
            Decision::Rerun => "runs again".to_owned(),
            Decision::Held => "is dispatched again when its session is resumed".to_owned(),
            Decision::Dropped => "its session is over, nothing follows".to_owned(),
        };
        ("handler".into(), format!("{name} {how}; {follows}"), tone)
    }

    fn why(&self, cause: &TransitionCause, params: &Object) -> Option<String> {
        match cause {
            TransitionCause::Requested => None,
            TransitionCause::Asked(asked) => {
                let deep =
                    if asked.depth > 1 { format!(", {} deep", asked.depth) } else { String::new() };
                let handler = self.integration(asked.dispatch);
                Some(format!("asked by {handler} of {}{deep}", asked.by))
            }
            TransitionCause::StateIdle => Some("idle".to_owned()),
            TransitionCause::Scheduled { schedule } => {
                Some(format!("scheduled, number {schedule}"))
            }
            TransitionCause::HandlerEnded { .. } => describe_kill(params),
            TransitionCause::Spawned => Some("its first action".to_owned()),
        }
    }

    fn integration(&self, dispatch: DispatchId) -> String {
        let integration = self.integrations.get(&dispatch).cloned();
        integration.unwrap_or_else(|| format!("dispatch {dispatch}"))
    }
}

/// Describes the killed handler that the params of a transition report.
fn describe_spawning(spawn: &Spawn) -> (String, String, Tone) {
    let first = spawn.action.as_ref().map(|action| format!(" with {action}"));
    let detail = format!("{}{}", spawn.entity, first.unwrap_or_default());
    ("spawning".into(), detail, Tone::Quiet)
}

fn describe_spawned(entity: &EntityRef, refused: Option<&str>) -> (String, String, Tone) {
    let refused = refused.map(|why| format!("; it refused its first action: {why}"));
    let tone = if refused.is_some() { Tone::Doubtful } else { Tone::Quiet };
    ("spawned".into(), format!("{entity}{}", refused.unwrap_or_default()), tone)
}

/// Why an entity is not spawned, and what to do.
fn describe_obstacle(reason: SpawnObstacle) -> &'static str {
    match reason {
        SpawnObstacle::Exists => "an entity of this name exists; give another id",
        SpawnObstacle::UnknownType => "its type has no spec; load its spec file",
        SpawnObstacle::TooMany => {
            "too many spawned entities of the tenant have something to do, or first actions spawn \
             without end; correct the spec if it spawns its own type again and again, or raise \
             max_busy_spawned_per_tenant"
        }
        SpawnObstacle::NotRecorded => {
            "the journal does not take its records; see the log of the host"
        }
    }
}

/// Why a schedule did not take its action, as the end of a sentence.
fn because_unspawnable(Unspawnable { entity, reason }: &Unspawnable) -> String {
    format!(", because {entity} cannot be spawned ({reason})")
}

fn describe_kill(params: &Object) -> Option<String> {
    let text = |key: &str| params.get(key)?.as_str();
    let elapsed = format_millis(params.get("elapsed_ms")?.as_u64()?);
    let (integration, span) = (text("integration")?, text("dying_span")?);
    Some(format!("{integration} killed after {elapsed} in {span}"))
}

fn follows(action: &str, taken: bool) -> String {
    if taken {
        format!("takes {action}")
    } else {
        format!("{action} is refused, by a guard or by the state")
    }
}

fn payload_text(payload: &serde_json::Value) -> String {
    if payload.is_null() {
        return String::new();
    }
    shortened(&payload.to_string(), PAYLOAD_MAX_CHARS).into_owned()
}

/// The message of a cancelled handler. A recorded reason that begins with the operator, `by NAME: WHY`,
/// continues the sentence.
pub(crate) fn one_colon(message: &str) -> Cow<'_, str> {
    match message.strip_prefix("cancelled: by ") {
        Some(rest) => format!("cancelled by {rest}").into(),
        None => message.into(),
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::{Position, Sequence, TraceContext, WallTime};
    use serde_json::json;

    use super::*;

    fn record(event: Event) -> Record {
        Record {
            position: Position(1),
            at: WallTime::default(),
            entity: "Session/hung".parse().ok(),
            sequence: Sequence(1),
            event,
        }
    }

    fn transition(action: &str, params: Object, cause: TransitionCause) -> Record {
        record(Event::Transition {
            action: action.to_owned(),
            params,
            from: "Executing".to_owned(),
            to: "TimedOut".to_owned(),
            variables: Object::new(),
            cause,
            trace: TraceContext::root([1; 24]),
            observed: Vec::new(),
            idempotency: None,
        })
    }

    #[test]
    fn a_killed_handler_is_described_with_the_function_that_it_died_in() {
        let params = [
            ("integration".to_owned(), json!("run_tools")),
            ("elapsed_ms".to_owned(), json!(2_001)),
            ("dying_span".to_owned(), json!("host_http_call\u{1b}")),
        ];
        let dispatch = DispatchId::from_bytes([1; 16]);
        let cause = TransitionCause::HandlerEnded { dispatch };
        let transition = transition("HandlerTimedOut", params.into(), cause);
        let line = Narrator::default().describe(&transition);
        assert_eq!(line.what, "HandlerTimedOut");
        assert_eq!(
            line.detail,
            "Executing -> TimedOut  (run_tools killed after 2.0 s in host_http_call\\u{1b})"
        );
    }

    #[test]
    fn a_cancelled_handler_is_described_with_its_reason_and_its_span_apart() {
        let event = json!({
            "type": "ended", "dispatch": "b7fe14e2fde4b443f0a8e0b918aafe8d", "attempt": 1,
            "outcome": {
                "outcome": "cancelled", "by": "operator", "reason": "because",
                "dying_span": "instantiate",
            },
            "decision": {"decision": "take", "action": "Stop"}, "cause": "cancel",
            "deadline":
                {"budget_ms": 2000, "elapsed_ms": 205, "overrun_us": 0, "owner": "handler"},
            "host_calls": {"by_function": [], "count": 0}, "started_at": 0,
            "dying_span": "instantiate",
            "time_split_us":
                {"compile": 0, "guest": 0, "host": 0, "instantiate": 1, "queue": 0, "teardown": 0},
        });
        let ended = record(serde_json::from_value(event).expect("as the journal has it"));
        let line = Narrator::default().describe(&ended);
        assert!(
            line.detail.ends_with(" cancelled: because (in instantiate); takes Stop"),
            "{}",
            line.detail
        );
    }

    #[test]
    fn the_line_of_a_stop_has_only_the_parts_that_it_has() {
        let stopped = json!({
            "type": "run.stopped", "run_seq": 1, "cause": {"kind": "completion"},
            "stop_reason_code": "run_completed", "elapsed_ms": 2_000,
        });
        let mut lines = Vec::new();
        for directive in [json!(null), json!("wait")] {
            let mut event = stopped.clone();
            event["directive"] = directive;
            let event = record(serde_json::from_value(event).expect("as the journal has it"));
            lines.push(Narrator::default().describe(&event).detail);
        }
        let plain = "run 1 has stopped after 2.0 s (run_completed)";
        assert_eq!(lines, [plain.to_owned(), format!("{plain}; wait")]);
    }

    #[test]
    fn the_operator_of_a_cancel_continues_the_sentence() {
        assert_eq!(one_colon("cancelled: by ann: wrong branch"), "cancelled by ann: wrong branch");
        assert_eq!(one_colon("cancelled: because"), "cancelled: because");
    }

    #[test]
    fn an_asked_transition_and_a_retry_name_their_cause() {
        let cause = json!({
            "cause": "asked", "by": "Order/7", "dispatch": "b7fe14e2fde4b443f0a8e0b918aafe8d",
            "attempt": 1, "until": "settled", "remaining_ms": 5, "depth": 2,
        });
        let cause = serde_json::from_value(cause).expect("as the journal has it");
        let transition = transition("Charge", Object::new(), cause);
        let line = Narrator::default().describe(&transition);
        assert!(line.detail.contains("of Order/7, 2 deep"), "{}", line.detail);
        let again = json!({
            "type": "dispatched", "dispatch": "b7fe14e2fde4b443f0a8e0b918aafe8d",
            "integration": "charge", "module": "charge", "action": "Charge", "params": {},
            "state": "Charging", "variables": {}, "config": {}, "attempt": 2, "budget_ms": 2000,
            "trace": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "retried": {"by": "ops\u{1b}", "reason": "the bank is back"},
        });
        let again = record(serde_json::from_value(again).expect("as the journal has it"));
        let line = Narrator::default().describe(&again);
        let expected = "charge starts (budget 2.0 s, attempt 2) for ops\\u{1b}: the bank is back";
        assert_eq!(line.detail, expected);
    }

    #[test]
    fn a_signal_names_its_sender() {
        let signal = |from: Option<&str>, dispatch| Event::Signal {
            name: "PartnerReplied".to_owned(),
            from: from.map(|from| from.parse().expect("a name")),
            dispatch,
            payload: json!({"ok": true}),
            resets_idle: dispatch.is_none(),
        };
        let mut narrator = Narrator::default();
        let mut detail = |event| narrator.describe(&record(event)).detail;
        let outside = detail(signal(None, None));
        assert!(outside.starts_with("from outside (restarts the idle timer) "), "{outside}");
        let other = detail(signal(Some("Order/7"), None));
        assert!(other.starts_with("from Order/7 "), "{other}");
        let own = detail(signal(None, Some(DispatchId::from_bytes([1; 16]))));
        assert!(!own.contains("outside") && !own.contains("restarts"), "{own}");
    }

    #[test]
    fn a_timer_whose_action_is_refused_names_the_guard_and_the_state() {
        let line = Narrator::default().describe(&record(Event::StateIdle {
            state: "On".to_owned(),
            after_ms: 1_000,
            idle_ms: 1_000,
            occurrence: 1,
            action: "Give".to_owned(),
            taken: false,
            observed: vec![Observed {
                entity: "Partner/2".parse().expect("a name"),
                state: Some("Off".to_owned()),
            }],
        }));
        assert_eq!(
            line.detail,
            "On had no action for 1.0 s (allowed 1.0 s): Give is refused, by a guard or by the \
             state; Partner/2 was in state `Off`"
        );
    }
}
