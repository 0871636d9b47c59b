//! Serializes an explanation as JSON: the keys of the report of a handler run, and what only the
//! records know.

use sandglass_model::{DeadlineReport, Dispatched, HostCalls, Outcome, Story};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Explanation;

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_json().serialize(serializer)
    }
}

impl Explanation {
    fn as_json(&self) -> Value {
        let Self { entity, dispatched_at, dispatched, .. } = self;
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
            "started": self.started.listed,
            "started_omitted": self.started.omitted,
            "unended": self.unended.listed,
            "unended_omitted": self.unended.omitted,
            "host": self.host,
            "log_ends_at": self.log_ends_at,
            "end_unread": self.unread,
            "next": self.advise(),
        });
        if let (Value::Object(all), Value::Object(end)) = (&mut value, self.end_as_json()) {
            all.extend(end);
        }
        value
    }

    /// The same keys for every handler. What is unknown, because the handler has not ended or was
    /// lost with its host, is null or empty.
    fn end_as_json(&self) -> Value {
        let ending = self.ending.as_ref();
        let ended = ending.map(|ending| &ending.ended);
        let known = ending.filter(|ending| !ending.is_time_unknown());
        let split = known.map(|ending| ending.ended.time_split_us);
        let account = ended.and_then(|ended| ended.account.as_deref());
        let nothing = Story::default();
        let story = account.map_or(&nothing, |account| &account.story);
        let outcome = ended.map(|ended| &ended.outcome);
        let result = match outcome {
            Some(Outcome::Completed(completion)) => Some(&completion.result),
            Some(Outcome::Failed(failure)) => failure.result.as_ref(),
            _ => None,
        };
        let error = outcome.and_then(Outcome::error);
        let no_calls = HostCalls::default();
        json!({
            "outcome": outcome.map(Outcome::kind),
            "result": result,
            "error": error.map(|(kind, message)| json!({ "kind": kind, "message": message })),
            "deadline": self.deadline(known.is_some()),
            "dying_span": ended.and_then(|ended| ended.dying_span.as_ref()),
            "dying_call": ended.and_then(|ended| ended.dying_call.as_ref()),
            "backtrace": ended.map_or(&[][..], |ended| ended.frames()),
            "host_calls": ended.map_or(&no_calls, |ended| &ended.host_calls),
            "overruns": ended.map_or(&[][..], |ended| &ended.overruns),
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
            "cause": ended.map(|ended| ended.cause),
            "started_at": ended.and_then(|ended| ended.started_at),
            "deadline_at": ended.and_then(|ended| ended.deadline_at),
            "ended_at": ending.map(|ending| ending.at),
            "position": ending.map(|ending| ending.position),
            "decision": ended.map(|ended| &ended.decision),
            "transition": ending.and_then(|ending| ending.taken.as_ref()),
            "signature": ending.and_then(|ending| ending.signature.as_ref()),
            "seen_before": ending.map(|ending| ending.before).unwrap_or_default(),
        })
    }

    /// The figures of the deadline. The times are null unless they are known.
    fn deadline(&self, is_known: bool) -> Value {
        let Dispatched { budget_ms, owner, .. } = self.dispatched;
        let unended = DeadlineReport { budget_ms, owner, ..DeadlineReport::default() };
        let mut report =
            json!(self.ending.as_ref().map_or(unended, |ending| ending.ended.deadline));
        if !is_known {
            report["elapsed_ms"] = Value::Null;
            report["overrun_us"] = Value::Null;
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::{Position, Record, Sequence, WallTime};

    use crate::why::{Inquiry, Which};

    fn record(event: Value) -> Record {
        Record {
            position: Position(1),
            at: WallTime::default(),
            entity: "Order/7".parse().ok(),
            sequence: Sequence(1),
            event: serde_json::from_value(event).expect("as the journal has it"),
        }
    }

    #[test]
    fn a_handler_without_an_end_has_the_keys_of_one_that_ended() {
        let dispatch = "b7fe14e2fde4b443f0a8e0b918aafe8d";
        let dispatched = record(json!({
            "type": "dispatched", "dispatch": dispatch, "integration": "pay", "module": "pay",
            "action": "Pay", "params": {}, "state": "Idle", "variables": {}, "config": {},
            "attempt": 1, "budget_ms": 2000,
            "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        }));
        let ended = record(json!({
            "type": "ended", "dispatch": dispatch, "attempt": 1,
            "outcome": { "outcome": "interrupted" }, "cause": "host_lost",
            "decision": { "decision": "rerun" },
            "deadline": { "budget_ms": 2000, "elapsed_ms": 0, "overrun_us": 0, "owner": "handler" },
        }));
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
