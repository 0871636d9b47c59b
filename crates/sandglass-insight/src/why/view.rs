//! Serializes an explanation as JSON: the keys of the report of a handler run, and what only the
//! records know.

use sandglass_model::{DeadlineReport, Dispatched, HostCalls, Outcome, Story};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{Before, Ending, Explanation};

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_json().serialize(serializer)
    }
}

impl Explanation {
    fn as_json(&self) -> Value {
        let Self { entity, dispatched_at, dispatched, ending, .. } = self;
        let mut value = json!({
            "entity": entity,
            "dispatched_at": dispatched_at,
            "integration": dispatched.integration,
            "module": dispatched.module,
            "module_hash": dispatched.module_hash,
            "action": dispatched.action,
            "params": dispatched.params,
            "state": dispatched.state,
            "attempt": dispatched.attempt,
            "asker": dispatched.asker,
            "asker_entity": self.asker,
            "retried": dispatched.retried,
            "dispatch_id": dispatched.dispatch,
            "trace_id": dispatched.trace.trace_id,
            "attempts": self.attempts,
            "attempts_omitted": self.attempts_omitted,
            "started": self.started.told,
            "started_omitted": self.started.omitted,
            "unended": self.unended.told,
            "unended_omitted": self.unended.omitted,
            "host": self.host,
            "log_ends_at": self.log_ends_at,
            "end_unread": self.unread,
            "next": self.next(),
        });
        let rest = match ending {
            Some(ending) => ended(ending),
            None => unended(dispatched),
        };
        if let (Value::Object(all), Value::Object(rest)) = (&mut value, rest) {
            all.extend(rest);
        }
        value
    }
}

fn ended(ending: &Ending) -> Value {
    let Ending { at, position, ended, taken, signature, before } = ending;
    let result = match &ended.outcome {
        Outcome::Completed(completion) => Some(&completion.result),
        Outcome::Failed(failure) => failure.result.as_ref(),
        _ => None,
    };
    let error = ended.outcome.error();
    let nothing = Story::default();
    let account = ended.account.as_deref();
    let story = account.map_or(&nothing, |account| &account.story);
    let is_known = !ending.is_time_unknown();
    let split = Some(ended.time_split_us).filter(|_| is_known);
    json!({
        "outcome": ended.outcome.kind(),
        "result": result,
        "error": error.map(|(kind, message)| json!({ "kind": kind, "message": message })),
        "deadline": deadline(ended.deadline, is_known),
        "dying_span": ended.dying_span,
        "backtrace": ended.frames(),
        "host_calls": ended.host_calls,
        "overruns": ended.overruns,
        "calls": story.calls,
        "calls_omitted": story.calls_omitted,
        "requests": story.requests,
        "requests_omitted": story.requests_omitted,
        "account": account.is_some(),
        "time_split_us": split,
        "wall_us": account.map(|account| account.wall_us).or(split.map(|split| split.total())),
        "cpu_us": account.map(|account| account.cpu_us),
        "memory": {
            "peak_bytes": account.map(|account| account.peak_memory_bytes),
            "host_peak_bytes": account.map(|account| account.peak_host_memory_bytes),
        },
        "allocation": account.and_then(|account| account.allocation),
        "telemetry_dropped": account.and_then(|account| account.telemetry_dropped),
        "cause": ended.cause,
        "started_at": ended.started_at,
        "deadline_at": ended.deadline_at,
        "ended_at": at,
        "position": position,
        "decision": ended.decision,
        "transition": taken,
        "signature": signature,
        "seen_before": before,
    })
}

/// The figures of a deadline. The times are null if they are unknown, because the host was lost or
/// the handler has not ended.
fn deadline(report: DeadlineReport, is_known: bool) -> Value {
    let mut value = json!(report);
    if !is_known {
        value["elapsed_ms"] = Value::Null;
        value["overrun_us"] = Value::Null;
    }
    value
}

/// The keys that [`ended`] writes, without values.
fn unended(dispatched: &Dispatched) -> Value {
    let report = DeadlineReport {
        budget_ms: dispatched.budget_ms,
        owner: dispatched.owner,
        ..DeadlineReport::default()
    };
    json!({
        "outcome": null,
        "result": null,
        "error": null,
        "deadline": deadline(report, false),
        "dying_span": null,
        "backtrace": [],
        "host_calls": HostCalls::default(),
        "overruns": [],
        "calls": [],
        "calls_omitted": 0,
        "requests": [],
        "requests_omitted": 0,
        "account": false,
        "time_split_us": null,
        "wall_us": null,
        "cpu_us": null,
        "memory": { "peak_bytes": null, "host_peak_bytes": null },
        "allocation": null,
        "telemetry_dropped": null,
        "cause": null,
        "started_at": null,
        "deadline_at": null,
        "ended_at": null,
        "position": null,
        "decision": null,
        "transition": null,
        "signature": null,
        "seen_before": Before::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::{Position, Record, Sequence, WallTime};

    use crate::why::{Inquiry, Which};

    fn record(entity: &str, event: Value) -> Record {
        Record {
            position: Position(1),
            at: WallTime::default(),
            entity: entity.parse().ok(),
            sequence: Sequence(1),
            event: serde_json::from_value(event).expect("as the journal has it"),
        }
    }

    #[test]
    fn one_that_has_not_ended_has_the_same_keys() {
        let dispatch = "b7fe14e2fde4b443f0a8e0b918aafe8d";
        let dispatched = record(
            "Order/7",
            json!({
                "type": "dispatched", "dispatch": dispatch, "integration": "pay", "module": "pay",
                "action": "Pay", "params": {}, "state": "Idle", "variables": {}, "config": {},
                "attempt": 1, "budget_ms": 2000,
                "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            }),
        );
        let ended = record(
            "Order/7",
            json!({
                "type": "ended", "dispatch": dispatch, "attempt": 1,
                "outcome": { "outcome": "interrupted" }, "cause": "host_lost",
                "decision": { "decision": "rerun" },
                "deadline": { "budget_ms": 2000, "elapsed_ms": 0, "overrun_us": 0, "owner": "handler" },
            }),
        );
        let mut inquiry = Inquiry::about(Which::Dispatch(dispatch.parse().expect("an id")));
        inquiry.feed(&dispatched);
        let keys = |inquiry: Inquiry| {
            let found = inquiry.finish().expect("it is there").as_json();
            let keys = found.as_object().expect("an object").keys().cloned();
            keys.collect::<Vec<_>>()
        };
        let mut whole = Inquiry::about(Which::Latest);
        whole.feed(&dispatched);
        whole.feed(&ended);
        assert_eq!(keys(inquiry), keys(whole));
    }
}
