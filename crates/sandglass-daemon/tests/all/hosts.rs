//! What a client sees of all hosts of a cluster, whichever it has asked: records, handlers in flight,
//! sessions and the live view.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use sandglass_daemon::{Route, Settings};
use sandglass_journal::{
    Across, Answer, Journals, MemoryJournal, Merged, Select, Selected, SelectedPlace,
};
use sandglass_model::{Clock as _, Cursor, DispatchId, EntityRef, Position, SystemClock};
use serde_json::{Value, json};

use crate::cluster::{ANN, EVE, keyed_pair};
use crate::events::Reader;
use crate::live::Watcher;
use crate::operations::waiting;
use crate::peers::{Fault, OWNER, Pair, ROUTER};
use crate::world::{Make, World};

/// Counts how often the ends of journals are looked for.
#[derive(Debug)]
struct Counting {
    journals: Journals,
    ends: AtomicUsize,
}

impl Across for Counting {
    fn read_behind(
        &self,
        after: Cursor,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Answer<'_, Merged> {
        Box::pin(self.journals.read_behind(after, kinds, limit))
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        Box::pin(self.journals.find_dispatch(dispatch))
    }

    fn end(&self) -> Answer<'_, Cursor> {
        self.ends.fetch_add(1, Ordering::Relaxed);
        Box::pin(self.journals.end())
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        Box::pin(self.journals.select(which, after, limit))
    }
}

#[test]
fn a_reader_receives_the_records_of_other_hosts_soon_and_each_once_wherever_it_reconnects() {
    let journals = Journals::partitioned(|_| Arc::new(MemoryJournal::new()));
    let counting = Arc::new(Counting { journals: journals.clone(), ends: AtomicUsize::new(0) });
    let journals = journals.read_across(Arc::clone(&counting) as Arc<dyn Across>);
    let make = || Make { journals: Some(journals.clone()), ..Make::default() };
    let pair = Pair::of(make, None, None);
    let ends = || counting.ends.load(Ordering::Relaxed);
    let before = (ends(), Arc::strong_count(&counting));
    let create = |number: usize| {
        pair.owner.post(&format!("/v1/entities/Session/{number}"), "").is(201);
    };
    create(100);
    assert_eq!(ends(), before.0, "nobody reads");

    // Each record is written at one host and read at the other, which has a keep-alive of 15 s.
    let mut reader = Reader::of(&pair.router, &[], "");
    let clock = SystemClock::new();
    let mut seen = Vec::new();
    let mut take = |reader: &mut Reader| {
        let (id, _, record) = reader.event_at_cursor().expect("the stream continues");
        seen.push(record["entity"].clone());
        id
    };
    let begun = clock.now();
    for number in 0..5 {
        create(number);
        take(&mut reader);
    }
    let took = clock.now().since(begun);
    assert!(took < Duration::from_secs(10), "{took:?}");
    // A second reader makes no second task.
    let tasks = Arc::strong_count(&counting);
    let mut last = {
        let mut other = Reader::of(&pair.router, &[], "?after=0");
        other.event_at_cursor().expect("a record");
        assert!(Arc::strong_count(&counting) <= tasks + 2, "the reader itself and its read");
        create(5);
        take(&mut reader)
    };
    drop(reader);
    for number in 6..16 {
        create(number);
        let world = if number % 2 == 0 { &pair.owner } else { &pair.router };
        let mut reader = Reader::of(world, &[("last-event-id", &last)], "");
        last = take(&mut reader);
    }
    let expected: Vec<Value> = (0..16).map(|number| json!(format!("Session/{number}"))).collect();
    assert_eq!(seen, expected);
}

#[test]
fn nothing_is_looked_for_after_the_last_reader() {
    let journals = Journals::partitioned(|_| Arc::new(MemoryJournal::new()));
    let counting = Arc::new(Counting { journals: journals.clone(), ends: AtomicUsize::new(0) });
    let journals = journals.read_across(Arc::clone(&counting) as Arc<dyn Across>);
    let make = || Make {
        journals: Some(journals.clone()),
        // A daemon finds out by this that a reader is gone.
        settings: Settings { keep_alive: Duration::from_millis(50), ..Settings::default() },
        ..Make::default()
    };
    let pair = Pair::of(make, None, None);
    let idle = Arc::strong_count(&counting);
    let mut reader = Reader::of(&pair.router, &[], "?after=0");
    reader.event_at_cursor().expect("a record");
    assert!(Arc::strong_count(&counting) > idle);
    drop(reader);
    let is_idle = |_: &usize| {
        pair.router.get("/healthz").is(200);
        Arc::strong_count(&counting) == idle
    };
    assert!((0..10_000).find(is_idle).is_some(), "it still looks");
}

#[test]
fn no_host_is_asked_and_nothing_is_looked_for_without_a_cluster() {
    let world = World::new();
    waiting(&world, "1");
    let live = world.get("/v1/live?once").is(200).json();
    for field in ["hosts", "missing"] {
        assert_eq!(live.get(field), None);
    }
    assert_eq!(live["handlers"][0].get("host"), None);
    for (target, list) in
        [("/v1/dispatches?in_flight=true", "dispatches"), ("/v1/sessions", "sessions")]
    {
        let page = world.get(target).is(200).json();
        assert_eq!((page.get("missing"), page[list][0].get("host")), (None, None));
    }
}

/// Two hosts with a handler in flight each, of `Session/a` and of `Session/b`; and its dispatches.
fn working() -> (Pair, [String; 2]) {
    let pair = Pair::new();
    pair.connect();
    let there = waiting(&pair.owner, "a");
    pair.peers.set_route(Route::Here);
    let here = waiting(&pair.router, "b");
    (pair, [there, here])
}

fn of(page: &Value, list: &str, field: &str) -> Vec<Value> {
    page[list].as_array().expect("a list").iter().map(|one| one[field].clone()).collect()
}

#[test]
fn lists_have_the_entries_of_all_hosts_on_each_of_them() {
    let (pair, dispatches) = working();
    let mut sorted = dispatches;
    sorted.sort();
    for world in [&pair.router, &pair.owner] {
        let page = world.get("/v1/dispatches?in_flight=true").is(200).json();
        assert_eq!(of(&page, "dispatches", "dispatch"), sorted);
        assert_eq!((&page["missing"], &page["next"]), (&json!([]), &Value::Null));
        let page = world.get("/v1/sessions").is(200).json();
        assert_eq!(of(&page, "sessions", "session"), ["Session/a", "Session/b"]);
        assert_eq!(of(&page, "sessions", "host"), [json!(OWNER), json!(ROUTER)]);
        for (path, list, key) in [
            ("/v1/dispatches?in_flight=true", "dispatches", "dispatch"),
            ("/v1/sessions?", "sessions", "session"),
        ] {
            let all = of(&world.get(path).is(200).json(), list, key);
            let first = world.get(&format!("{path}&limit=1")).is(200).json();
            assert_eq!((of(&first, list, key).as_slice(), &first["next"]), (&all[..1], &all[0]));
            let next = first["next"].as_str().expect("a key");
            let second = world.get(&format!("{path}&limit=1&after={next}")).is(200).json();
            assert_eq!(
                (of(&second, list, key).as_slice(), &second["next"]),
                (&all[1..], &Value::Null)
            );
        }
    }
    // Another host gets what is here.
    let by = ROUTER.to_string();
    let forwarded = [("sandglass-forwarded-by", by.as_str())];
    let page = pair.owner.ask("GET", "/v1/sessions", &forwarded, b"").is(200).json();
    assert_eq!(of(&page, "sessions", "session"), ["Session/a"]);
    let live = pair.owner.ask("GET", "/v1/live?once", &forwarded, b"").is(200).json();
    assert_eq!(
        (of(&live, "handlers", "entity"), live.get("missing")),
        (vec![json!("Session/a")], None)
    );
}

#[test]
fn hosts_that_do_not_respond_are_named() {
    let (pair, _) = working();
    let missing = json!([{"host": OWNER, "name": "owner"}]);
    for (target, list) in [
        ("/v1/dispatches?in_flight=true", "dispatches"),
        ("/v1/sessions", "sessions"),
        ("/v1/live?once", "handlers"),
    ] {
        let (guard, dropped) = mpsc::channel();
        let other = axum::http::Response::new(axum::body::Body::from("[]"));
        for fault in
            [Fault::Hangs(guard), Fault::TimedOut, Fault::RequestLost, Fault::Instead(other)]
        {
            pair.fail([fault]);
            let page = pair.router.get(target).is(200).json();
            assert_eq!(
                of(&page, list, "entity").len().max(of(&page, list, "session").len()),
                1,
                "{page}"
            );
            assert_eq!(page["missing"], missing, "{page}");
        }
        assert!(dropped.recv().is_err(), "the request was ended");
    }
    pair.fail([Fault::Refused]);
    pair.router.get("/v1/sessions").is(200);
    assert_eq!(pair.peers.table().suspected, [OWNER]);
}

#[test]
fn a_list_is_of_the_tenant_of_the_client_on_all_hosts() {
    let pair = keyed_pair();
    pair.connect();
    for (key, id) in [(ANN, "n"), (EVE, "e")] {
        pair.owner.send(key, "POST", &format!("/v1/entities/Session/{id}"), &[]).is(201);
        pair.owner
            .send(key, "POST", &format!("/v1/entities/Session/{id}/actions/Wait"), &[])
            .is(200);
    }
    let sessions = |key: &str| {
        let page = pair.router.send(key, "GET", "/v1/sessions", &[]).is(200).json();
        of(&page, "sessions", "session")
    };
    assert_eq!(sessions(ANN), ["Session/e", "Session/n"]);
    assert_eq!(sessions(EVE), ["Session/e"]);
    // The live view is for all tenants.
    pair.router.send(EVE, "GET", "/v1/live?once", &[]).refuses(403, "forbidden");
    let live = pair.router.send(ANN, "GET", "/v1/live?once", &[]).is(200).json();
    assert_eq!((&live["in_flight"], &live["missing"]), (&json!(2), &json!([])));
    let bearer = format!("Bearer {ANN}");
    let mut watcher = Watcher::of(&pair.router, &[("authorization", &bearer)]);
    watcher.until(|live| live["in_flight"] == 2 && live["missing"] == json!([]));
}

#[test]
fn the_live_view_is_of_all_hosts() {
    let (mut pair, [there, here]) = working();
    let mut watcher = Watcher::of(&pair.router, &[]);
    let live = watcher.until(|live| {
        live["in_flight"] == 2 && live["handlers"].as_array().is_some_and(|all| all.len() == 2)
    });
    let mut found: Vec<(Value, Value)> =
        of(&live, "handlers", "dispatch").into_iter().zip(of(&live, "handlers", "host")).collect();
    found.sort_by_key(|(dispatch, _)| dispatch.to_string());
    let mut expected = vec![(json!(there), json!(OWNER)), (json!(here), json!(ROUTER))];
    expected.sort_by_key(|(dispatch, _)| dispatch.to_string());
    assert_eq!(found, expected);
    assert_eq!(of(&live, "hosts", "name"), ["owner", "router"]);
    assert_eq!(of(&live, "hosts", "state"), ["live", "live"]);
    assert_eq!(of(&live, "hosts", "partitions"), [64, 0]);
    assert_eq!(live["missing"], json!([]));
    // A host in which nothing happens does not send its snapshot again.
    let is_conditional = |sent: &crate::peers::Sent| sent.headers.contains_key("if-none-match");
    pair.peers.until(|table| table.sent.iter().any(is_conditional));

    pair.owner.post(&format!("/v1/dispatches/{there}/cancel"), "").is(202);
    let live = watcher.until(|live| live["in_flight"] == 1 && live["kills"][0].is_object());
    let kill = &live["kills"][0];
    assert_eq!((&kill["dispatch"], &kill["host"]), (&json!(there), &json!(OWNER)));
    assert_eq!(of(&live, "handlers", "dispatch"), [json!(here)]);
    let once = pair.router.get("/v1/live?once").is(200).json();
    assert_eq!((&once["kills"], &once["hosts"]), (&live["kills"], &live["hosts"]));

    thread::scope(|scope| {
        let owner = &mut pair.owner;
        scope.spawn(move || owner.shutdown(Duration::from_secs(1)));
        let live = watcher.until(|live| live["missing"] != json!([]));
        assert_eq!(live["missing"], json!([{"host": OWNER, "name": "owner"}]));
        assert_eq!(live["in_flight"], 1);
    });
}
