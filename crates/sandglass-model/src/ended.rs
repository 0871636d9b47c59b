//! The end of a handler: what is known of its run, and with the decision about it, its record.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::cause::Cause;
use crate::clock::WallTime;
use crate::id::DispatchId;
use crate::outcome::Outcome;
use crate::record::{Decision, Dispatched, Observed};
use crate::report::{
    Account, DeadlineReport, EndPoint, Frame, HostCalls, Overrun, Recorded, Recording, RunReport,
    TimeSplit,
};

/// What is known of the end of a handler, before anything is decided about it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct HandlerEnd {
    /// Which dispatch.
    pub dispatch: DispatchId,
    /// Which attempt.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it: the first cause that was set.
    pub cause: Cause,
    /// When its guest was allowed to execute; `None` if it never was.
    #[serde(default)]
    pub started_at: Option<WallTime>,
    /// Its deadline, and how much of it was used.
    pub deadline: DeadlineReport,
    /// What was executing when it was stopped or trapped.
    #[serde(default)]
    pub dying_span: Option<String>,
    /// The host function that was executing then, if one was; also `None` in records of early
    /// versions, whose `dying_span` is the function.
    #[serde(default)]
    pub dying_call: Option<String>,
    /// Where among its host calls that was: a replay ends it there.
    #[serde(default)]
    pub ended_at: Option<EndPoint>,
    /// The host calls that it made.
    #[serde(default)]
    pub host_calls: HostCalls,
    /// The limits of its calls that were breached; its own deadline is not among them.
    #[serde(default)]
    pub overruns: Vec<Overrun>,
    /// Where the time went.
    #[serde(default)]
    pub time_split_us: TimeSplit,
    /// What it did, call by call: kept if it did not complete, and for a sample of the others.
    #[serde(default)]
    pub account: Option<Box<Account>>,
    /// What was recorded for its replay; `None` if it never started, or recording is off.
    #[serde(default)]
    pub recording: Option<Recorded>,
    /// The remaining time of the handler that asked for this one, in milliseconds, rounded up, if
    /// it still waits until the entity has settled. It bounds what follows.
    #[serde(default)]
    pub asker_remaining_ms: Option<u64>,
}

impl HandlerEnd {
    /// The end that a host reported of attempt `attempt`, without an account of it. The report is
    /// taken apart, because its result may be large.
    #[must_use]
    pub fn reported(attempt: u32, report: RunReport) -> Self {
        Self {
            dispatch: report.dispatch_id,
            attempt,
            outcome: report.outcome,
            cause: report.cause,
            started_at: report.started_at,
            deadline: report.deadline,
            dying_span: report.dying_span,
            dying_call: report.dying_call,
            ended_at: report.ended_at,
            host_calls: report.host_calls,
            overruns: report.overruns,
            time_split_us: report.time_split_us,
            account: None,
            recording: report.recording.as_ref().map(Recording::recorded),
            asker_remaining_ms: None,
        }
    }

    /// The end of a handler of which only outcome and cause are known.
    #[must_use]
    pub fn unreported(dispatched: &Dispatched, outcome: Outcome, cause: Cause) -> Self {
        Self::reported(dispatched.attempt, RunReport::unreported(dispatched, outcome, cause))
    }

    /// The host function that was executing when it was stopped or trapped, or else `guest` or
    /// `instantiate`; `None` if it ended by itself.
    #[must_use]
    pub fn dying_place(&self) -> Option<&str> {
        self.dying_call.as_deref().or(self.dying_span.as_deref())
    }

    /// The end of a handler whose host was lost.
    #[must_use]
    pub fn interrupted(dispatched: &Dispatched) -> Self {
        Self::unreported(dispatched, Outcome::Interrupted, Cause::HostLost)
    }
}

/// The record of a handler's end: the end itself, shared with the input that it was decided from,
/// and the decision.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Ended {
    /// What is known of the end.
    #[serde(flatten)]
    pub end: Arc<HandlerEnd>,
    /// What follows.
    pub decision: Decision,
    /// When its budget was used up, or would have been: `started_at` plus the budget. Records of
    /// early versions lack it.
    #[serde(default)]
    pub deadline_at: Option<WallTime>,
    /// The states of other entities that conditions read for the decision.
    #[serde(default)]
    pub observed: Vec<Observed>,
}

impl Ended {
    /// The record of `end`, about which `decision` was made.
    #[must_use]
    pub fn new(end: Arc<HandlerEnd>, decision: Decision) -> Self {
        let budget = Duration::from_millis(end.deadline.budget_ms);
        let deadline_at = end.started_at.map(|started| started.after(budget));
        Self { end, decision, deadline_at, observed: Vec::new() }
    }

    /// Where the guest was when it was stopped or trapped, innermost frame first.
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        match &self.outcome {
            Outcome::TimedOut(exceeded) => &exceeded.backtrace,
            _ => self.account.as_ref().map_or(&[], |account| &account.backtrace),
        }
    }

    /// Replaces the frames that the record has, if it has any.
    pub fn set_frames(&mut self, frames: Vec<Frame>) {
        let HandlerEnd { outcome, account, .. } = &mut **self;
        match (outcome, account) {
            (Outcome::TimedOut(exceeded), _) => exceeded.backtrace = frames,
            (_, Some(account)) => account.backtrace = frames,
            (_, None) => {}
        }
    }
}

impl Deref for Ended {
    type Target = HandlerEnd;

    fn deref(&self) -> &HandlerEnd {
        &self.end
    }
}

impl DerefMut for Ended {
    fn deref_mut(&mut self) -> &mut HandlerEnd {
        Arc::make_mut(&mut self.end)
    }
}

/// By hand, because journals are compared byte by byte: the fields of the decision have always
/// stood among those of the end. `the_fields_of_an_end_keep_their_order` holds it.
impl Serialize for Ended {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let end = &*self.end;
        let mut fields = serializer.serialize_struct("Ended", 19)?;
        fields.serialize_field("dispatch", &end.dispatch)?;
        fields.serialize_field("attempt", &end.attempt)?;
        fields.serialize_field("outcome", &end.outcome)?;
        fields.serialize_field("cause", &end.cause)?;
        fields.serialize_field("decision", &self.decision)?;
        optional(&mut fields, "started_at", &end.started_at)?;
        optional(&mut fields, "deadline_at", &self.deadline_at)?;
        fields.serialize_field("deadline", &end.deadline)?;
        optional(&mut fields, "dying_span", &end.dying_span)?;
        optional(&mut fields, "dying_call", &end.dying_call)?;
        optional(&mut fields, "ended_at", &end.ended_at)?;
        fields.serialize_field("host_calls", &end.host_calls)?;
        if !end.overruns.is_empty() {
            fields.serialize_field("overruns", &end.overruns)?;
        }
        fields.serialize_field("time_split_us", &end.time_split_us)?;
        optional(&mut fields, "account", &end.account)?;
        optional(&mut fields, "recording", &end.recording)?;
        optional(&mut fields, "asker_remaining_ms", &end.asker_remaining_ms)?;
        if !self.observed.is_empty() {
            fields.serialize_field("observed", &self.observed)?;
        }
        fields.end()
    }
}

/// Writes the field if there is a value.
fn optional<S: SerializeStruct>(
    fields: &mut S,
    name: &'static str,
    value: &Option<impl Serialize>,
) -> Result<(), S::Error> {
    match value {
        Some(value) => fields.serialize_field(name, value),
        None => fields.skip_field(name),
    }
}

#[cfg(test)]
mod tests {
    use crate::Event;

    const RECORD: &str = concat!(
        r#"{"type":"ended","dispatch":"01010101010101010101010101010101","attempt":2,"#,
        r#""outcome":{"outcome":"interrupted"},"cause":"host_lost","#,
        r#""decision":{"decision":"take","action":"Go"},"started_at":1,"deadline_at":1001,"#,
        r#""deadline":{"budget_ms":1000,"elapsed_ms":0,"overrun_us":0,"owner":"handler"},"#,
        r#""dying_span":"http_call","ended_at":{"place":"inside","call":3},"#,
        r#""host_calls":{"count":0,"by_function":[]},"#,
        r#""time_split_us":{"queue":1,"compile":0,"instantiate":0,"guest":0,"host":0,"#,
        r#""teardown":0},"recording":{"bytes":7},"asker_remaining_ms":5,"#,
        r#""observed":[{"entity":"Order/1","state":"Paid"},{"entity":"Order/2"}]}"#,
    );

    #[test]
    fn the_fields_of_an_end_keep_their_order() {
        let event: Event = serde_json::from_str(RECORD).expect("a record");
        assert_eq!(serde_json::to_string(&event).expect("JSON"), RECORD);
    }
}
