//! Runs, and what their logs have to look like whatever happens in them.

use std::time::{Duration, SystemTime};

use sandglass_model::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::client::Reply;
use crate::host::Host;
use crate::schema;

/// Most polls in turn that come to nothing: each waits for 20 s, so that is a hang.
const SILENT_POLLS_MAX: usize = 3;
const TERMINAL: [&str; 3] = ["run.completed", "run.failed", "run.cancelled"];

/// A run of a host.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) host: &'a Host,
    pub(crate) id: String,
}

impl Run<'_> {
    /// Its events up to its end.
    #[track_caller]
    pub(crate) fn finished(&self) -> Log {
        let (events, is_complete) = self.follow(|_| false);
        assert!(is_complete, "run {} never ended: {events:#?}", self.id);
        let log = Log { run: self.id.clone(), events };
        log.check();
        log
    }

    /// Its events up to the first that `holds`, or more. Each is asked about once, in order.
    #[track_caller]
    pub(crate) fn until(&self, mut holds: impl FnMut(&Value) -> bool) -> Vec<Value> {
        let mut found = false;
        let (events, _) = self.follow(|event| {
            found = holds(event);
            found
        });
        assert!(found, "it never came: {events:#?}");
        events
    }

    /// Waits until a node has been begun so often.
    #[track_caller]
    pub(crate) fn until_started(&self, node: &str, times: usize) {
        let mut found = 0;
        self.until(|event| {
            found += usize::from(event["type"] == "node.started" && event["nodeId"] == node);
            found >= times
        });
    }

    /// Waits until it waits for somebody's answer.
    #[track_caller]
    pub(crate) fn until_waiting(&self) -> Value {
        let events = self.until(|event| event["type"] == "interrupt.requested");
        let asked = events.iter().rev().find(|event| event["type"] == "interrupt.requested");
        asked.expect("it was found")["payload"].clone()
    }

    /// Its events up to the first that `holds` or to its end, and whether that was seen.
    fn follow(&self, mut holds: impl FnMut(&Value) -> bool) -> (Vec<Value>, bool) {
        let mut all: Vec<Value> = Vec::new();
        let mut silent = 0;
        while silent < SILENT_POLLS_MAX {
            let last = i64::try_from(all.len()).expect("few") - 1;
            let mut reply = self.poll(last, "20").expect(200);
            let Value::Array(events) = reply["events"].take() else { panic!("no list") };
            silent = if events.is_empty() { silent + 1 } else { 0 };
            let found = events.iter().any(&mut holds);
            all.extend(events);
            let is_complete = reply["isComplete"] == true;
            if found || is_complete {
                return (all, is_complete);
            }
        }
        (all, false)
    }

    #[track_caller]
    pub(crate) fn poll(&self, last: i64, timeout: &str) -> Reply {
        let id = &self.id;
        self.host.get(&format!("/v1/runs/{id}/events/poll?lastSequence={last}&timeout={timeout}"))
    }

    #[track_caller]
    pub(crate) fn snapshot(&self) -> Value {
        let snapshot = self.host.get(&format!("/v1/runs/{}", self.id)).expect(200);
        schema::snapshot(&snapshot);
        snapshot
    }

    #[track_caller]
    pub(crate) fn answer(&self, node: &str, value: &Value) -> Reply {
        let path = format!("/v1/runs/{}/interrupts/{node}", self.id);
        self.host.post(&path, &json!({ "resumeValue": value }))
    }

    #[track_caller]
    pub(crate) fn cancel(&self, body: &Value) -> Reply {
        self.host.post(&format!("/v1/runs/{}/cancel", self.id), body)
    }
}

/// All events of a run that is over.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) run: String,
    pub(crate) events: Vec<Value>,
}

impl Log {
    /// What holds of every log.
    #[track_caller]
    fn check(&self) {
        let Self { run, events } = self;
        for (number, event) in events.iter().enumerate() {
            assert_eq!(event["sequence"], number, "{self:#?}");
            assert_eq!(&event["runId"], run, "{self:#?}");
            schema::event(event);
            let is_last = number + 1 == events.len();
            let is_terminal = TERMINAL.iter().any(|kind| event["type"] == *kind);
            assert_eq!(is_terminal, is_last, "one terminal event, and it is last: {self:#?}");
            assert_eq!(event["type"] == "run.started", number == 0, "{self:#?}");
            // What becomes of a child follows from the decision that names it, event by event.
            let is_of_child = event["type"] == "core.workflowChain.event";
            let causes = match event["payload"]["phase"].as_str() {
                Some(phase) if is_of_child && phase != "dispatch.began" => event["type"].as_str(),
                _ if is_of_child || event["type"] == "node.dispatched" => {
                    Some("runOrchestrator.decided")
                }
                _ => None,
            };
            let mut before = events[..number].iter().rev();
            let cause = causes.and_then(|kind| before.find(|earlier| earlier["type"] == kind));
            let cause = cause.map(|cause| &cause["eventId"]);
            assert_eq!(event.get("causationId"), cause, "{event}: {self:#?}");
        }
        let mut ids: Vec<&str> =
            events.iter().filter_map(|event| event["eventId"].as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), events.len(), "{self:#?}");
        assert!(events.iter().map(at).is_sorted(), "{self:#?}");
    }

    /// The types of all events.
    pub(crate) fn types(&self) -> Vec<&str> {
        self.events.iter().filter_map(|event| event["type"].as_str()).collect()
    }

    /// The events of a type.
    pub(crate) fn of(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["type"] == kind).collect()
    }

    /// The only event of a type.
    #[track_caller]
    pub(crate) fn only(&self, kind: &str) -> &Value {
        let [only] = self.of(kind)[..] else { panic!("not one {kind}: {self:#?}") };
        only
    }

    /// The nodes with an event of this type, in order.
    pub(crate) fn nodes(&self, kind: &str) -> Vec<&str> {
        self.of(kind).iter().filter_map(|event| event["nodeId"].as_str()).collect()
    }

    /// The number of the first event of a type.
    #[track_caller]
    pub(crate) fn place(&self, kind: &str) -> usize {
        let found = self.types().iter().position(|found| *found == kind);
        found.unwrap_or_else(|| panic!("no {kind}: {self:#?}"))
    }

    pub(crate) fn last(&self) -> &Value {
        self.events.last().expect("no log is empty")
    }

    /// What its run has put out, where that has completed.
    #[track_caller]
    pub(crate) fn outputs(&self) -> &Value {
        assert_eq!(self.last()["type"], "run.completed", "{self:#?}");
        &self.last()["payload"]["outputs"]
    }

    /// What a node has put out when it last completed.
    #[track_caller]
    pub(crate) fn outputs_of(&self, node: &str) -> &Value {
        let ends = self.of("node.completed");
        let end = ends.iter().rev().find(|event| event["nodeId"] == node);
        &end.unwrap_or_else(|| panic!("`{node}` hasn't completed: {self:#?}"))["payload"]["outputs"]
    }

    /// Its run's error, where that has failed with this code.
    #[track_caller]
    pub(crate) fn error(&self, code: &str) -> &Value {
        let last = self.last();
        assert_eq!(last["type"], "run.failed", "{self:#?}");
        let error = &last["payload"]["error"];
        assert_eq!(error["code"], code, "{self:#?}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{self:#?}");
        error
    }

    /// The only breach: its payload, with what holds of every one.
    #[track_caller]
    pub(crate) fn breach(&self, kind: &str) -> &Value {
        let event = self.only("cap.breached");
        let breach = &event["payload"];
        assert_eq!(breach["kind"], kind, "{self:#?}");
        assert!(breach["observed"].as_u64() > breach["limit"].as_u64(), "{self:#?}");
        assert_eq!(breach["nodeId"], event["nodeId"], "{self:#?}");
        // The time and the turns are those of the run.
        let is_of_run = ["run-duration", "loop-iterations"].contains(&kind);
        assert_eq!(breach.get("nodeId").is_none(), is_of_run, "{self:#?}");
        let begun_behind = self.types()[self.place("cap.breached")..].contains(&"node.started");
        assert!(!begun_behind, "a node was begun behind a breach: {self:#?}");
        breach
    }

    /// The turns of its orchestrator.
    #[track_caller]
    pub(crate) fn turns(&self) -> Vec<&Value> {
        let decided = self.of("runOrchestrator.decided");
        for event in &decided {
            // It is sent from version 5 of the execution model on.
            assert!(event["payload"].get("iteration").is_none(), "{self:#?}");
        }
        decided.iter().map(|event| &event["payload"]["decision"]).collect()
    }
}

/// When an event was recorded.
#[track_caller]
pub(crate) fn at(event: &Value) -> SystemTime {
    time(&event["timestamp"])
}

/// A time as the host writes it.
#[track_caller]
pub(crate) fn time(text: &Value) -> SystemTime {
    let text = text.as_str().expect("a text");
    humantime::parse_rfc3339(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// What the clock on the wall says.
pub(crate) fn now() -> SystemTime {
    let millis = u64::try_from(SystemClock::new().wall().as_millis()).expect("after 1970");
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// The time between two events.
#[track_caller]
pub(crate) fn between(first: &Value, second: &Value) -> Duration {
    at(second).duration_since(at(first)).expect("in order")
}
