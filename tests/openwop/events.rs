//! Events of runs: as a stream, as a list, by polling.

use serde_json::{Value, json};

use crate::client::{Ask, Frame, Stream};
use crate::host::shared;
use crate::schema;

/// The events of a stream up to its end, with their numbers and types as the frames say them.
#[track_caller]
fn events(stream: Stream) -> Vec<Value> {
    let mut events = Vec::new();
    for frame in stream {
        let Frame::Event { id, event, data } = frame else { continue };
        assert_eq!((&data["sequence"], &data["type"]), (&json!(id), &json!(event)), "{data}");
        events.push(data);
    }
    events
}

#[test]
fn a_stream_sends_events_as_they_happen_and_closes_after_the_last_one() {
    let host = shared();
    let body = json!({ "workflowId": "conformance-delay", "inputs": { "delayMs": 4_000 } });
    let run = host.run_with(&body);
    let mut stream = host.stream(&run.id, "?streamMode=debug", None);
    let begun = stream
        .by_ref()
        .find(|frame| matches!(frame, Frame::Event { event, .. } if event == "node.started"));
    assert!(begun.is_some());
    assert_eq!(run.snapshot()["status"], "running", "told while it runs");
    let rest = events(stream);
    let log = run.finished();
    let list = host.get(&format!("/v1/runs/{}/events", run.id)).expect(200);
    assert_eq!(list, json!({ "events": log.events }));
    let last = log.of("node.started")[0]["sequence"].as_u64().expect("a number");
    let behind: Vec<&Value> =
        log.events.iter().filter(|event| event["sequence"].as_u64() > Some(last)).collect();
    assert_eq!(rest.iter().collect::<Vec<_>>(), behind);
    // One that comes later sees all of it, and its end, too.
    assert_eq!(events(host.stream(&run.id, "?streamMode=debug", None)), log.events);
}

#[test]
fn a_client_that_accepts_anything_receives_a_stream() {
    let host = shared();
    let run = host.run("conformance-noop");
    run.finished();
    let ask = Ask::new(&format!("GET /v1/runs/{}/events", run.id));
    for accept in [None, Some("*/*"), Some("text/*"), Some("image/png, */*;q=0.1")] {
        let ask = match accept {
            Some(accept) => ask.clone().header("accept", accept),
            None => ask.clone(),
        };
        let streamed = events(ask.open(&host.address));
        assert_eq!(streamed.last().map(|event| &event["type"]), Some(&json!("run.completed")));
    }
    for accept in ["application/json", "application/json, text/plain, */*", "application/*"] {
        let listed = host.ask(&ask.clone().header("accept", accept)).expect(200);
        assert_eq!(listed["events"].as_array().map(Vec::len), Some(4), "{accept}: {listed}");
    }
}

#[test]
fn a_reader_resumes_after_its_last_event() {
    let host = shared();
    let run = host.run("conformance-multi-node");
    let log = run.finished();
    for from in 0..=log.events.len() {
        let last = from.checked_sub(1).map(|last| last.to_string());
        let rest = events(host.stream(&run.id, "?streamMode=debug", last.as_deref()));
        assert_eq!(rest, log.events[from..], "behind {last:?}");
    }
    assert_eq!(events(host.stream(&run.id, "", Some("4000000000"))), Vec::<Value>::new());
    let stream = Ask::new(&format!("GET /v1/runs/{}/events", run.id));
    let stream = stream.header("accept", "text/event-stream");
    for wrong in ["-1", "x", "1.5", ""] {
        host.ask(&stream.clone().header("last-event-id", wrong)).fails(400, "validation_error");
    }
}

#[test]
fn a_silent_stream_sends_keep_alives() {
    let host = shared();
    let run = host.run("conformance-cancellable");
    let mut stream = host.stream(&run.id, "?streamMode=debug", None);
    // The first comment comes behind silence: every event so far was told.
    let frames: Vec<Frame> =
        stream.by_ref().take_while(|frame| matches!(frame, Frame::Event { .. })).collect();
    assert_eq!(frames.len(), 2, "{frames:?}");
    run.cancel(&json!({})).expect(200);
    let rest = events(stream);
    assert_eq!(rest.last().map(|event| &event["type"]), Some(&json!("run.cancelled")));
}

#[test]
fn each_mode_has_its_events_and_an_unknown_mode_is_refused() {
    let host = shared();
    let run = host.run("log");
    let log = run.finished();
    let streamed = |mode: &str, last: Option<&str>| {
        events(host.stream(&run.id, &format!("?streamMode={mode}"), last))
    };
    let listed = |mode: &str| {
        let path = format!("/v1/runs/{}/events?streamMode={mode}&bufferMs=100", run.id);
        host.get(&path).expect(200)["events"].clone()
    };
    for (mode, types) in [
        ("debug", log.types()),
        ("updates", vec!["run.started", "node.completed", "run.completed"]),
        ("messages", vec![]),
    ] {
        let expected =
            log.events.iter().filter(|event| types.iter().any(|one| event["type"] == *one));
        let expected: Vec<Value> = expected.cloned().collect();
        assert_eq!(streamed(mode, None), expected, "{mode}");
        assert_eq!(listed(mode), json!(expected), "{mode}");
    }
    let default = events(host.stream(&run.id, "", None));
    assert_eq!(default, streamed("updates", None));
    // A snapshot after each update and each start of a node; the last one is that of now.
    let snapshots = streamed("values", None);
    let wanted = ["run.started", "node.started", "node.completed", "run.completed"];
    let numbers = |all: &[Value]| -> Vec<u64> {
        all.iter().filter_map(|event| event["sequence"].as_u64()).collect()
    };
    let expected: Vec<Value> = log
        .events
        .iter()
        .filter(|event| wanted.iter().any(|one| event["type"] == *one))
        .cloned()
        .collect();
    assert_eq!(numbers(&snapshots), numbers(&expected));
    for event in &snapshots {
        assert_eq!(event["type"], "state.snapshot");
        schema::snapshot(&event["payload"]);
    }
    assert_eq!(snapshots[0]["payload"]["status"], "running");
    let statuses = snapshots.iter().map(|event| {
        let nodes = event["payload"]["nodeStates"].as_object().expect("an object");
        nodes.values().next().expect("a node")["status"].as_str().expect("a text").to_owned()
    });
    assert_eq!(statuses.collect::<Vec<_>>(), ["pending", "running", "completed", "completed"]);
    let last = snapshots.last().expect("there are some");
    assert_eq!(last["payload"], run.snapshot());
    assert_eq!(listed("values"), json!([last]));
    // One that resumes begins with the state that it has.
    let resumed = streamed("values", Some("1"));
    assert_eq!(resumed[0], snapshots[1]);
    assert_eq!(resumed[1..], snapshots[2..]);
    assert_eq!(streamed("values", Some("4000000000")), std::slice::from_ref(last));
    let all = log.types();
    for wrong in ["-1", "x", ""] {
        let path = format!("/v1/runs/{}/events?bufferMs={wrong}", run.id);
        host.get(&path).fails(400, "validation_error");
    }
    for accept in ["application/json", "text/event-stream"] {
        for mode in ["everything", "", "updates,messages"] {
            let line = format!("GET /v1/runs/{}/events?streamMode={mode}", run.id);
            let refused = host.ask(&Ask::new(&line).header("accept", accept));
            let details = refused.fails(400, "unsupported_stream_mode");
            assert_eq!(details["supported"], json!(["values", "updates", "messages", "debug"]));
        }
    }
    let image = Ask::new(&format!("GET /v1/runs/{}/events", run.id)).header("accept", "image/png");
    host.ask(&image).fails(406, "not_acceptable");
    // What has no weight isn't wanted.
    let path = format!("GET /v1/runs/{}/events", run.id);
    let weighed = Ask::new(&path).header("accept", "text/event-stream;q=0, application/json;q=0.1");
    let listed = host.ask(&weighed).expect(200);
    assert_eq!(listed["events"].as_array().map(Vec::len), Some(all.len()), "{listed}");
    host.ask(&Ask::new(&path).header("accept", "*/*;q=0.0")).fails(406, "not_acceptable");
}

#[test]
fn a_poll_returns_events_after_its_cursor_and_waits_for_them() {
    let host = shared();
    let body = json!({ "workflowId": "conformance-delay", "inputs": { "delayMs": 4_000 } });
    let run = host.run_with(&body);
    run.until_started("wait", 1);
    let now = run.poll(1, "0").expect(200);
    assert_eq!(now, json!({ "events": [], "isComplete": false }), "nothing yet");
    // It comes with the next event, long before its time is over.
    let waited = run.poll(1, "30").expect(200);
    assert_eq!(waited["events"][0]["type"], "node.completed", "{waited}");
    assert_eq!(waited["events"][0]["sequence"], 2, "{waited}");
    let log = run.finished();
    for last in -1..4 {
        let from = usize::try_from(last + 1).expect("from 0 on");
        let found = run.poll(last, "30").expect(200);
        assert_eq!(found, json!({ "events": log.events[from..], "isComplete": true }));
    }
    let path = format!("/v1/runs/{}/events/poll", run.id);
    let all = host.get(&path).expect(200);
    assert_eq!(all, json!({ "events": log.events, "isComplete": true }));
    for query in [
        "lastSequence=x",
        "lastSequence=-2",
        "timeout=-1",
        "timeout=NaN",
        "cursor=1",
        "timeout=1&timeout=2",
    ] {
        host.get(&format!("{path}?{query}")).fails(400, "validation_error");
    }
    assert_eq!(run.poll(3, "1e300").expect(200)["isComplete"], true);
}
