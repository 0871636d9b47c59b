//! The live view: its content, when it changes, and which keys may see it; and its page.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use sandglass_daemon::{Key, Permission, Settings};
use serde_json::{Value, json};

use crate::client::{connect, request};
use crate::operations::waiting;
use crate::world::{Make, World};

const POLL: &str = "wasi_snapshot_preview1.poll_oneoff";

/// Reads snapshots.
pub(crate) struct Watcher(BufReader<TcpStream>);

impl Watcher {
    pub(crate) fn of(world: &World, headers: &[(&str, &str)]) -> Self {
        let mut stream = connect(world.address);
        stream.write_all(&request("GET", "/v1/live", headers, b"")).expect("it listens");
        let mut watcher = Self(BufReader::new(stream));
        let status = watcher.line().expect("a status");
        assert!(status.contains(" 200 "), "{status}");
        watcher
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).expect("something comes within a minute");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// The next snapshot; `None` at the end.
    fn snapshot(&mut self) -> Option<Value> {
        loop {
            let line = self.line()?;
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(serde_json::from_str(data).expect("JSON"));
            }
        }
    }

    /// The first snapshot for which `holds`.
    #[track_caller]
    pub(crate) fn until(&mut self, holds: impl Fn(&Value) -> bool) -> Value {
        (0..200).find_map(|_| self.snapshot().filter(&holds)).expect("it never held")
    }
}

#[test]
fn the_live_view_shows_a_handler_from_its_start_to_its_kill() {
    let world = World::new();
    let mut watcher = Watcher::of(&world, &[]);
    let first = watcher.snapshot().expect("one at once");
    assert_eq!((&first["in_flight"], &first["handlers"]), (&json!(0), &json!([])));
    assert_eq!((&first["kills"], &first["health"]["healthy"]), (&json!([]), &json!(true)));

    let dispatch = waiting(&world, "1");
    let seen = watcher.until(|snapshot| snapshot["handlers"][0]["doing"] == POLL);
    let handler = &seen["handlers"][0];
    assert_eq!(handler["dispatch"], *dispatch);
    let named = (&handler["entity"], &handler["integration"], &handler["action"]);
    assert_eq!(named, (&"Session/1".into(), &"slow".into(), &"Wait".into()));
    let hour = 3_600_000;
    assert_eq!((&handler["attempt"], &handler["has_ms"]), (&json!(1), &json!(hour)));
    let left = handler["left_ms"].as_i64().expect("a number");
    assert!((hour - 120_000..=hour).contains(&left), "{left}");
    assert!(handler["for_ms"].as_u64().is_some_and(|waits| waits < 120_000), "{handler}");
    assert_eq!((&handler["stuck"], &seen["in_flight"]), (&json!(false), &json!(1)));

    world.post(&format!("/v1/dispatches/{dispatch}/cancel"), "").is(202);
    let gone =
        watcher.until(|snapshot| snapshot["in_flight"] == 0 && snapshot["kills"][0].is_object());
    let kill = &gone["kills"][0];
    assert_eq!((&kill["dispatch"], &kill["by"]), (&json!(dispatch), &json!("operator")));
    assert_eq!((&kill["dying_span"], &kill["entity"]), (&json!(POLL), &json!("Session/1")));
    let once = world.get("/v1/live?once").is(200).json();
    assert_eq!(once["kills"], gone["kills"]);
    assert_eq!(world.get("/v1/live?once=true").is(200).json()["kills"], gone["kills"]);
    world.get("/v1/live?once=no").refuses(400, "bad_query");
    world.get("/v1/live?twice").refuses(400, "bad_query");
}

#[test]
fn the_live_view_shows_the_status_of_sessions_and_blocked_ones() {
    let world = World::new();
    let mut watcher = Watcher::of(&world, &[]);
    let first = watcher.snapshot().expect("one at once");
    assert_eq!((&first["blocked"], &first["blocked_sessions"]), (&json!(0), &json!([])));

    waiting(&world, "1");
    let seen = watcher.until(|snapshot| snapshot["in_flight"] == 1);
    assert!(seen["handlers"][0]["session"].is_null(), "it is not a session: {seen}");

    let hour = r#"{"limits": {"run_timeout": "2h", "inactivity_warn": "100ms"}}"#;
    world.post("/v1/entities/Bounded/silent", hour).is(201);
    world.post("/v1/entities/Bounded/silent/actions/Work", "").is(200);
    let session = |snapshot: &Value| {
        let handlers = snapshot["handlers"].as_array().expect("a list").iter();
        let mut found = handlers.filter(|handler| handler["entity"] == "Bounded/silent");
        found.next().map_or(Value::Null, |handler| handler["session"].clone())
    };
    let silent = session(&watcher.until(|snapshot| session(snapshot)["status"] == "SILENT"));
    assert_eq!((&silent["run_seq"], &silent["stuck"]), (&json!(1), &json!(true)));
    let left = silent["budget_left_ms"].as_u64().expect("a number");
    assert!((7_080_000..7_200_000).contains(&left), "{left}");

    let short = r#"{"limits": {"run_timeout": "50ms"}}"#;
    world.post("/v1/entities/Bounded/2", short).is(201);
    let blocked = watcher.until(|snapshot| snapshot["blocked"] == 1);
    let blocked = &blocked["blocked_sessions"][0];
    let named = (&blocked["session"], &blocked["run_seq"], &blocked["directive"]);
    assert_eq!(named, (&json!("Bounded/2"), &json!(1), &json!("wait")));
    assert_eq!(blocked["stop_reason_code"], "watchdog_wall_clock_exceeded");
    assert!(blocked["at"].as_i64().is_some_and(|at| at > 0), "{blocked}");
    // The document describes the snapshot.
    world.get("/v1/live?once").is(200);
    let resume = r#"{"limits": {"run_timeout": "1h"}}"#;
    world.post("/v1/sessions/Bounded/2/resume", resume).is(200);
    watcher.until(|snapshot| snapshot["blocked"] == 0 && snapshot["blocked_sessions"] == json!([]));
}

#[test]
fn the_live_view_sends_only_changes_and_ends_at_shutdown() {
    let settings = Settings { keep_alive: Duration::from_millis(300), ..Settings::default() };
    let mut world = World::of(Make { settings, ..Make::default() });
    waiting(&world, "1");
    let mut watcher = Watcher::of(&world, &[]);
    let states_keep_alive = |line: String| line == "sandglass-keep-alive-ms: 300";
    assert!((0..20).any(|_| watcher.line().is_some_and(states_keep_alive)), "in the head");
    watcher.until(|snapshot| snapshot["handlers"][0]["doing"] == POLL);
    // Time passes and there are keep-alive comments, but no snapshots.
    let mut lives = 0;
    while lives < 5 {
        let line = watcher.line().expect("the stream continues");
        assert!(!line.starts_with("data: "), "{line}");
        lives += usize::from(line.starts_with(':'));
    }
    world.shutdown(Duration::from_millis(200));
    while watcher.snapshot().is_some() {}
}

#[test]
fn watchers_and_readers_of_events_share_a_bound() {
    let settings = Settings { max_subscribers: 1, ..Settings::default() };
    let world = World::of(Make { settings, ..Make::default() });
    let _watcher = Watcher::of(&world, &[]);
    world.get("/v1/live").refuses(429, "busy");
    world.get("/v1/events").refuses(429, "busy");
    world.get("/v1/live?once").is(200);
}

#[test]
fn only_a_key_that_may_read_all_tenants_can_watch_until_it_is_removed() {
    let key = |owner: &str| Key::new(owner, &format!("a-key-that-{owner}-has")).expect("a key");
    let eve = key("eve").tenant("acme");
    let actor = key("actor").may([Permission::Act]);
    let keys = [key("ann"), key("bob"), eve, actor].into_iter().collect();
    let world = World::of(Make { keys, ..Make::default() });
    world.get("/v1/live?once").refuses(401, "unauthorized");
    let asked = |owner: &str| {
        let bearer = format!("Bearer a-key-that-{owner}-has");
        world.ask("GET", "/v1/live?once", &[("authorization", &bearer)], b"")
    };
    asked("eve").refuses(403, "forbidden");
    asked("actor").refuses(403, "forbidden");
    asked("ann").is(200);
    let mut bob = Watcher::of(&world, &[("authorization", "Bearer a-key-that-bob-has")]);
    bob.snapshot().expect("one at once");
    world.daemon.set_keys([key("ann")].into_iter().collect());
    while bob.snapshot().is_some() {}
}

#[test]
fn the_page_needs_no_key_and_has_a_strict_policy() {
    let key = Key::new("ann", "a-key-that-ann-has").expect("a key");
    let world = World::of(Make { keys: [key].into_iter().collect(), ..Make::default() });
    let page = world.get("/").is(200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").expect("there is one");
    for rule in ["default-src 'none'", "frame-ancestors 'none'", "connect-src 'self'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe") && policy.matches("'sha256-").count() == 2, "{policy}");
    for (name, value) in [
        ("x-frame-options", "DENY"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(page.header(name), Some(value));
    }
}
