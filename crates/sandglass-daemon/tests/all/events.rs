//! The stream of events: complete, in order, and resumable.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use sandglass_daemon::{Key, Permission, Settings};
use sandglass_journal::{Journals, MemoryJournal};
use sandglass_model::{Cursor, EntityRef, Partition, Position};
use serde_json::Value;

use crate::client::{connect, request};
use crate::world::{Make, World};

/// Reads events. It skips the lines of chunks, and every other line that does not belong to an event.
pub(crate) struct Reader(BufReader<TcpStream>);

impl Reader {
    pub(crate) fn of(world: &World, headers: &[(&str, &str)], query: &str) -> Self {
        let mut stream = connect(world.address);
        let target = format!("/v1/events{query}");
        stream.write_all(&request("GET", &target, headers, b"")).expect("it listens");
        let mut reader = Self(BufReader::new(stream));
        let status = reader.line().expect("a status");
        assert!(status.contains(" 200 "), "{status}");
        reader
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).expect("something comes within a minute");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// The position, type and record of the next event; `None` at the end.
    fn event(&mut self) -> Option<(u64, String, Value)> {
        let (id, kind, data) = self.event_at_cursor()?;
        Some((id.parse().unwrap_or_default(), kind, data))
    }

    /// The id, type and record of the next event; `None` at the end.
    pub(crate) fn event_at_cursor(&mut self) -> Option<(String, String, Value)> {
        let (mut id, mut kind) = (None, String::new());
        loop {
            let line = self.line()?;
            if let Some(value) = line.strip_prefix("id: ") {
                id = Some(value.to_owned());
            } else if let Some(value) = line.strip_prefix("event: ") {
                value.clone_into(&mut kind);
            } else if let Some(value) = line.strip_prefix("data: ") {
                let data = serde_json::from_str(value).expect("JSON");
                // Only the end of a stream has none.
                return Some((id.unwrap_or_default(), kind, data));
            }
        }
    }
}

fn touch(world: &World, times: usize) {
    for _ in 0..times {
        world.post("/v1/entities/Session/1/actions/Touch", "").is(200);
    }
}

#[test]
fn each_record_is_sent_once_in_order_and_a_reconnect_continues_after_it() {
    let world = World::new();
    let mut live = Reader::of(&world, &[], "");
    world.post("/v1/entities/Session/1", "").is(201);
    touch(&world, 5);
    // Only new records: the specs were recorded before.
    let seen: Vec<_> = (0..6).map(|_| live.event().expect("the stream continues")).collect();
    let kinds: Vec<&str> = seen.iter().map(|(_, kind, _)| kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["created", "transition", "transition", "transition", "transition", "transition"]
    );
    assert!(seen.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
    assert!(seen.iter().all(|(id, kind, record)| record["position"] == *id && record["event"]["type"] == *kind));
    let middle = seen[2].0.to_string();
    let mut again = Reader::of(&world, &[("last-event-id", &middle)], "?after=0");
    assert_eq!(again.event().as_ref(), Some(&seen[3]));
    let mut all = Reader::of(&world, &[], "?after=0");
    for number in 1..=3 {
        let registered = all.event().map(|(id, kind, _)| (id, kind));
        assert_eq!(
            registered,
            Some((number, "spec_registered".to_owned())),
            "there are three specs"
        );
    }
    assert_eq!(all.event().as_ref(), Some(&seen[0]));
}

#[test]
fn a_reader_that_does_not_follow_receives_all_records_and_then_the_end() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    touch(&world, 2);
    let expected: [(&str, &[u64]); 3] = [
        ("?after=0&follow=false", &[1, 2, 3, 4, 5, 6]),
        ("?after=5&follow=false", &[6]),
        ("?follow=false", &[]),
    ];
    for (query, expected) in expected {
        let mut reader = Reader::of(&world, &[], query);
        let events: Vec<_> = std::iter::from_fn(|| reader.event()).collect();
        let (end, records) = events.split_last().expect("an end");
        assert_eq!((end.1.as_str(), &end.2), ("end", &serde_json::json!({})));
        let ids: Vec<u64> = records.iter().map(|(id, ..)| *id).collect();
        assert_eq!(ids, expected, "{query}");
    }
}

#[test]
fn a_reader_of_one_format_receives_the_same_forms_live_and_later() {
    let world = World::new();
    let mut live = Reader::of(&world, &[], "?as=watchdog");
    let mut audit = Reader::of(&world, &[], "?as=audit");
    let short = r#"{"limits": {"run_timeout": "50ms"}}"#;
    let mut seen = Vec::new();
    for id in ["1", "2"] {
        world.post(&format!("/v1/entities/Bounded/{id}"), short).is(201);
        seen.push(live.event().expect("the stream continues"));
        let (_, kind, stop) = audit.event().expect("the stream continues");
        assert_eq!((kind.as_str(), &stop["status"]), ("audit", &"blocked".into()));
    }
    let (first, kind, form) = &seen[0];
    assert_eq!(
        (kind, &form["event_kind"]),
        (&"runtime.watchdog.cancel".to_owned(), &kind.as_str().into())
    );
    assert_eq!(
        (&form["aggregate_type"], &form["aggregate_id"]),
        (&"runtime_control".into(), &"Bounded/1".into())
    );
    // What follows in the session does not change the form of what was before.
    world.post("/v1/sessions/Bounded/1/resume", r#"{"limits": {"run_timeout": "1h"}}"#).is(200);
    world.post("/v1/entities/Bounded/1/actions/Close", "").is(200);
    let mut resumed = Reader::of(&world, &[("last-event-id", &first.to_string())], "?as=watchdog");
    assert_eq!(resumed.event().as_ref(), Some(&seen[1]));
    let mut all = Reader::of(&world, &[], "?as=watchdog&after=0&follow=false");
    assert_eq!([all.event(), all.event()].map(Option::unwrap_or_default), seen[..]);
    assert_eq!(all.event().map(|(_, kind, _)| kind), Some("end".to_owned()));
    assert_eq!(all.event(), None);
}

#[test]
fn warnings_and_failures_have_forms_too() {
    let world = World::new();
    let mut silence = Reader::of(&world, &[], "?as=silence");
    let mut audit = Reader::of(&world, &[], "?as=audit");
    world.post("/v1/entities/Bounded/1", r#"{"limits": {"inactivity_warn": "2s"}}"#).is(201);
    world.post("/v1/entities/Bounded/1/actions/Work", "").is(200);
    let (_, kind, silent) = silence.event().expect("the stream continues");
    assert_eq!((kind.as_str(), &silent["phase"]), ("sdk_silence", &"Working".into()));
    let last = &silent["last_event"];
    assert_eq!(
        (&last["tool_name"], &last["handler"]),
        (&"wasi_snapshot_preview1.poll_oneoff".into(), &"slow".into())
    );
    world.post("/v1/sessions/Bounded/1/cancel", r#"{"reason": "enough"}"#).is(202);
    let forms = [audit.event(), audit.event()].map(|event| event.expect("the stream continues").2);
    let failed = forms.iter().find(|form| form["tool"] == "slow").expect("the handler");
    assert_eq!(failed["error_type"], "cancelled");
    let stopped = forms.iter().find(|form| form["status"] == "cancelled").expect("the stop");
    assert_eq!((&stopped["by"], &stopped["reason"]), (&"local".into(), &"enough".into()));
}

#[test]
fn a_slow_reader_misses_no_record() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let mut slow = Reader::of(&world, &[], "?after=0");
    // More than all buffers on the way can hold.
    let large = "x".repeat(900 << 10);
    for _ in 0..30 {
        let params = format!(r#"{{"params": {{"text": "{large}"}}}}"#);
        world.post("/v1/entities/Session/1/actions/Touch", &params).is(200);
    }
    let ids: Vec<u64> = (0..32).map(|_| slow.event().expect("the stream continues").0).collect();
    assert_eq!(ids, (1..=32).collect::<Vec<u64>>());
}

#[test]
fn readers_are_bounded_and_kept_alive_and_disconnected_at_shutdown() {
    let settings = Settings {
        max_subscribers: 2,
        keep_alive: Duration::from_millis(20),
        ..Settings::default()
    };
    let mut world = World::of(Make { settings, ..Make::default() });
    let mut first = Reader::of(&world, &[], "");
    let second = Reader::of(&world, &[], "");
    let refused = world.get("/v1/events");
    assert_eq!(refused.header("retry-after"), Some("1"));
    refused.refuses(429, "busy");
    let alive = (0..100).find_map(|_| first.line().filter(|line| line.starts_with(':')));
    assert!(alive.is_some(), "there is no keep-alive");
    drop(second);
    // The slot is free once a failed keep-alive has shown that the reader is gone.
    let again = (0..1_000)
        .find(|_| world.ask("GET", "/v1/events", &[("last-event-id", "99")], b"").status == 409);
    assert!(again.is_some(), "the slot stays taken");
    world.shutdown(Duration::from_secs(30));
    assert_eq!(first.event(), None);
}

#[test]
fn removing_a_key_ends_its_stream_and_no_other() {
    let key = |owner: &str| Key::new(owner, &format!("a-key-that-{owner}-has")).expect("a key");
    let keys = ["ann", "bob", "eve"].map(key).into_iter().collect();
    let world = World::of(Make { keys, ..Make::default() });
    let reader = |owner: &str| {
        let bearer = format!("Bearer a-key-that-{owner}-has");
        Reader::of(&world, &[("authorization", &bearer)], "")
    };
    let (mut ann, mut bob, mut eve) = (reader("ann"), reader("bob"), reader("eve"));
    world.daemon.set_keys([key("ann"), key("eve").may([Permission::Act])].into_iter().collect());
    assert_eq!((bob.event(), eve.event()), (None, None));
    let bearer = [("authorization", "Bearer a-key-that-ann-has")];
    world.ask("POST", "/v1/entities/Session/1", &bearer, b"").is(201);
    assert_eq!(ann.event().map(|(_, kind, _)| kind), Some("created".to_owned()));
}

/// The partitions and positions of records. Records of one millisecond and of different partitions
/// have no order.
fn places(events: &[(String, String, Value)]) -> BTreeSet<(u64, u64)> {
    let number = |record: &Value, name: &str| record[name].as_u64().expect("a number");
    let place = |record: &Value| (number(record, "partition"), number(record, "position"));
    let places: BTreeSet<_> = events.iter().map(|(_, _, record)| place(record)).collect();
    assert_eq!(places.len(), events.len(), "each of them once");
    places
}

#[test]
fn a_partitioned_journal_is_followed_at_a_cursor() {
    let journals = Journals::partitioned(|_| Arc::new(MemoryJournal::new()));
    let world = World::of(Make { journals: Some(journals), ..Make::default() });
    let mut live = Reader::of(&world, &[], "");
    const SESSIONS: usize = 20;
    for number in 0..SESSIONS {
        world.post(&format!("/v1/entities/Session/{number}"), "").is(201);
        world.post(&format!("/v1/entities/Session/{number}/actions/Touch"), "").is(200);
    }
    let events = |reader: &mut Reader, count: usize| -> Vec<(String, String, Value)> {
        (0..count).map(|_| reader.event_at_cursor().expect("the stream continues")).collect()
    };
    let seen = events(&mut live, 2 * SESSIONS);
    let mut positions = BTreeMap::<u64, u64>::new();
    for (id, kind, record) in &seen {
        assert_eq!(record["event"]["type"], *kind);
        let name: EntityRef = record["entity"].as_str().expect("a name").parse().expect("valid");
        let partition = record["partition"].as_u64().expect("its partition");
        assert_eq!(partition, u64::from(Partition::of(&name).number()));
        let position = record["position"].as_u64().expect("its position");
        let before = positions.insert(partition, position);
        assert!(before.is_none_or(|before| before + 1 == position), "{id}");
    }
    assert!(positions.len() > 10, "{positions:?}");
    // A client that reconnects continues behind what it has received, wherever that was.
    for at in [0, 7, SESSIONS, 2 * SESSIONS - 2] {
        let mut again = Reader::of(&world, &[("last-event-id", &seen[at].0)], "?after=0");
        let found = events(&mut again, seen.len() - at - 1);
        assert!(places(&found) == places(&seen[at + 1..]), "behind {}", seen[at].0);
    }
    // Three specs in each partition come first.
    let mut all = Reader::of(&world, &[], "?after=0&follow=false");
    let specs = events(&mut all, 3 * usize::from(Partition::COUNT));
    assert!(specs.iter().all(|(_, kind, _)| kind == "spec_registered"));
    assert_eq!(places(&events(&mut all, seen.len())), places(&seen));
    assert_eq!(all.event().map(|(_, kind, _)| kind), Some("end".to_owned()));
    // The cursor behind every record ends at once; those of other journals are refused.
    let last = &seen[seen.len() - 1].0;
    let mut over = Reader::of(&world, &[], &format!("?after={last}&follow=false"));
    assert_eq!(over.event().map(|(_, kind, _)| kind), Some("end".to_owned()));
    let beyond = Cursor::new((0..Partition::COUNT).map(|_| Position(1_000)));
    for foreign in ["7".to_owned(), beyond.to_string()] {
        world.get(&format!("/v1/events?after={foreign}")).refuses(409, "ahead_of_journal");
    }
    world.get("/v1/events?after=p!").refuses(400, "bad_query");
    let headers = [("last-event-id", "pAAAA")];
    world.ask("GET", "/v1/events", &headers, b"").refuses(400, "bad_header");
}
