//! An explanation as JSON: the keys of a run's report, and what the records know
//! beside it.

use sandglass_model::{Outcome, Story};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{Ending, Explanation};

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.as_json().serialize(serializer)
    }
}

impl Explanation {
    fn as_json(&self) -> Value {
        let Self { entity, dispatched_at, dispatched, ending } = self;
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
            "dispatch_id": dispatched.dispatch,
            "trace_id": dispatched.trace.trace_id,
            "next": self.next(),
        });
        let rest = match ending {
            Some(ending) => ended(ending),
            None => json!({
                "outcome": null, "result": null, "error": null,
                "deadline": { "budget_ms": dispatched.budget_ms, "owner": dispatched.owner },
            }),
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
    json!({
        "outcome": ended.outcome.kind(),
        "result": result,
        "error": error.map(|(kind, message)| json!({ "kind": kind, "message": message })),
        "deadline": ended.deadline,
        "dying_span": ended.dying_span,
        "backtrace": ended.frames(),
        "host_calls": ended.host_calls,
        "calls": story.calls,
        "calls_omitted": story.calls_omitted,
        "requests": story.requests,
        "requests_omitted": story.requests_omitted,
        "account": account.is_some(),
        "time_split_us": ended.time_split_us,
        "wall_us": account.map_or(ended.time_split_us.total(), |account| account.wall_us),
        "cpu_us": account.map(|account| account.cpu_us),
        "memory": { "peak_bytes": account.map(|account| account.peak_memory_bytes) },
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
