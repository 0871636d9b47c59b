//! Who is let in, and to what.

use sandglass_daemon::{Key, Keys, Permission};

use crate::client::Answer;
use crate::world::{Make, World};

const ANN: &str = "anns-key-opens-everything";
const BOB: &str = "bobs-key-is-for-looking";
const EVE: &str = "eves-key-is-for-one-tenant";

fn keyed() -> World {
    let keys: Keys = [
        Key::new("ann", ANN).expect("a key"),
        Key::new("bob", BOB).expect("a key").may([Permission::Read]),
        Key::new("eve", EVE).expect("a key").tenant("acme"),
    ]
    .into_iter()
    .collect();
    World::of(Make { keys, ..Make::default() })
}

impl World {
    #[track_caller]
    fn with(&self, key: &str, method: &str, target: &str) -> Answer {
        let bearer = format!("Bearer {key}");
        self.ask(method, target, &[("authorization", &bearer), ("host", "elsewhere.example")], b"")
    }
}

#[test]
fn without_a_key_only_open_paths_are_served() {
    let world = keyed();
    world.get("/healthz").is(200);
    world.get("/openapi.json").is(200);
    world.get("/").is(200);
    for target in
        ["/metrics", "/v1/modules", "/v1/events", "/v1/dispatches?in_flight=true", "/unknown"]
    {
        let refused = world.get(target);
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        refused.refuses(401, "unauthorized");
        world.with("no-such-key-anywhere", "GET", target).refuses(401, "unauthorized");
    }
    world.with(ANN, "GET", "/metrics").is(200);
    world.with(ANN, "GET", "/unknown").refuses(404, "unknown_path");
}

#[test]
fn a_key_permits_only_what_it_lists() {
    let world = keyed();
    world.with(ANN, "POST", "/v1/entities/Session/1").is(201);
    world.with(BOB, "GET", "/v1/entities/Session/1").is(200);
    world.with(BOB, "POST", "/v1/entities/Session/2").refuses(403, "forbidden");
    world.with(BOB, "POST", "/v1/entities/Session/1/actions/Touch").refuses(403, "forbidden");
    let signal = "/v1/entities/Session/1/signals/PartnerReplied";
    world.with(BOB, "POST", signal).refuses(403, "forbidden");
    world.with(ANN, "POST", signal).is(204);
    let unknown = format!("/v1/dispatches/{}/cancel", "0".repeat(32));
    world.with(BOB, "POST", &unknown).refuses(403, "forbidden");
    world.with(ANN, "POST", &unknown).refuses(404, "unknown_dispatch");
}

#[test]
fn only_a_key_that_may_read_learns_which_values_a_guard_has_read() {
    let blind = "a-key-that-only-acts";
    let keys = [
        Key::new("ann", ANN).expect("a key"),
        Key::new("carl", blind).expect("a key").may([Permission::Act]),
    ];
    let world = World::of(Make { keys: keys.into_iter().collect(), ..Make::default() });
    world.with(ANN, "POST", "/v1/entities/Session/1").is(201);
    let refused = "Session/1 refuses: the guard of `Settle` doesn't hold in state `Idle`";
    for (key, message) in [
        (blind, refused.to_owned()),
        (ANN, format!("{refused}: `sum > 0` does not hold (sum is 0)")),
    ] {
        let answer = world.with(key, "POST", "/v1/entities/Session/1/actions/Settle");
        assert_eq!(answer.refuses(409, "not_taken")["message"], message);
    }
}

#[test]
fn only_keys_that_may_operate_stop_and_resume_sessions() {
    let actor = "a-key-that-acts-and-reads";
    let may = [Permission::Read, Permission::Act, Permission::Deploy];
    let keys = [
        Key::new("ann", ANN).expect("a key"),
        Key::new("carl", actor).expect("a key").may(may),
        Key::new("eve", EVE).expect("a key").tenant("acme"),
    ];
    let world = World::of(Make { keys: keys.into_iter().collect(), ..Make::default() });
    world.with(actor, "POST", "/v1/entities/Bounded/1").is(201);
    let before = world.with(actor, "GET", "/v1/entities/Bounded/1/history").is(200).json();
    for what in ["cancel", "resume"] {
        let target = format!("/v1/sessions/Bounded/1/{what}");
        let refused = world.with(actor, "POST", &target).refuses(403, "forbidden");
        let message = refused["message"].as_str().expect("a text");
        assert!(message.starts_with("the key of `carl` may not `operate`"), "{message}");
        // Who may, but not there, learns no more than that nothing is there.
        world.with(EVE, "POST", &target).refuses(404, "unknown_entity");
    }
    let after = world.with(actor, "GET", "/v1/entities/Bounded/1/history").is(200).json();
    assert_eq!(before, after, "nothing was recorded");
    assert_eq!(world.with(actor, "GET", "/v1/sessions/Bounded/1").is(200).json()["run_seq"], 1);

    let bearer = format!("Bearer {ANN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let target = "/v1/sessions/Bounded/1/cancel";
    // No name in the request counts.
    let named = br#"{"reason": "enough", "by": "carl"}"#;
    world.ask("POST", target, &headers, named).refuses(400, "bad_body");
    world.ask("POST", target, &headers, br#"{"reason": "enough"}"#).is(202);
    let history = world.with(ANN, "GET", "/v1/entities/Bounded/1/history").is(200).json();
    let stopping = history["entries"].as_array().expect("a page").iter();
    let mut stopping = stopping.filter(|record| record["event"]["type"] == "run.stopping");
    let cause = &stopping.next().expect("it was stopped")["event"]["cause"];
    assert_eq!((&cause["by"], &cause["reason"]), (&"ann".into(), &"enough".into()));
}

#[test]
fn refused_cancels_are_counted() {
    let world = keyed();
    let counted = |of: &str| {
        let text =
            String::from_utf8(world.with(ANN, "GET", "/metrics").is(200).body).expect("text");
        let series = format!("temper_cancels_refused_total{{of=\"{of}\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned));
        found.unwrap_or_else(|| panic!("no {series} in {text}"))
    };
    let dispatch = format!("/v1/dispatches/{}/cancel", "0".repeat(32));
    let session = "/v1/sessions/Bounded/1/cancel";
    world.with(ANN, "POST", session).refuses(404, "unknown_entity");
    world.with(BOB, "POST", "/v1/sessions/Bounded/1/resume").refuses(403, "forbidden");
    assert_eq!((counted("session"), counted("dispatch")), ("0".to_owned(), "0".to_owned()));
    world.with(BOB, "POST", session).refuses(403, "forbidden");
    world.with(BOB, "POST", session).refuses(403, "forbidden");
    world.with(BOB, "POST", &dispatch).refuses(403, "forbidden");
    assert_eq!((counted("session"), counted("dispatch")), ("2".to_owned(), "1".to_owned()));
}

#[test]
fn a_key_that_may_not_read_gets_no_outcomes() {
    let text = "a-key-that-may-only-act";
    let key = Key::new("actor", text).expect("a key").may([Permission::Act]);
    let world = World::of(Make { keys: [key].into_iter().collect(), ..Make::default() });
    world.with(text, "POST", "/v1/entities/Session/1").is(201);
    let act = "/v1/entities/Session/1/actions/Touch";
    world.with(text, "POST", &format!("{act}?wait=settled")).refuses(403, "forbidden");
    world.with(text, "POST", act).is(200);
    world.with(text, "POST", "/v1/entities/Session/1/signals/PartnerReplied").is(204);
    world.with(text, "GET", "/v1/entities/Session/1").refuses(403, "forbidden");
}

#[test]
fn a_key_of_one_tenant_sees_only_that_tenant() {
    let world = keyed();
    world.with(ANN, "POST", "/v1/entities/Session/anns").is(201);
    let wait = world.with(ANN, "POST", "/v1/entities/Session/anns/actions/Wait").is(200).json();
    let dispatch = wait["dispatches"][0].as_str().expect("a dispatch");
    let born = world.with(EVE, "POST", "/v1/entities/Session/eves").is(201).json();
    assert_eq!(born["tenant"], "acme");
    world.with(EVE, "GET", "/v1/entities/Session/eves/history").is(200);
    for (method, target) in [
        ("GET", "/v1/entities/Session/anns"),
        ("GET", "/v1/entities/Session/anns/history"),
        ("POST", "/v1/entities/Session/anns/actions/Touch"),
        ("POST", "/v1/entities/Session/anns/signals/PartnerReplied"),
    ] {
        world.with(EVE, method, target).refuses(404, "unknown_entity");
    }
    for target in
        [format!("/v1/dispatches/{dispatch}"), format!("/v1/dispatches/{dispatch}/cancel")]
    {
        let method = if target.ends_with("cancel") { "POST" } else { "GET" };
        world.with(EVE, method, &target).refuses(404, "unknown_dispatch");
    }
    for target in ["/v1/events", "/v1/dispatches?in_flight=true", "/metrics"] {
        world.with(EVE, "GET", target).refuses(403, "forbidden");
    }
    let bearer = format!("Bearer {EVE}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    world.with(EVE, "POST", "/v1/entities/Session/eves/signals/PartnerReplied").is(204);
    let other = world.ask("POST", "/v1/entities/Session/x", &headers, br#"{"tenant": "other"}"#);
    other.refuses(403, "forbidden");
}

#[test]
fn keys_can_be_replaced_while_the_daemon_is_running() {
    let world = keyed();
    world
        .daemon
        .set_keys([Key::new("new", "a-new-key-of-a-client").expect("a key")].into_iter().collect());
    world.with(ANN, "GET", "/metrics").refuses(401, "unauthorized");
    world.with("a-new-key-of-a-client", "GET", "/metrics").is(200);
}

#[test]
fn without_keys_pages_of_other_sites_are_refused() {
    let world = World::new();
    let asked =
        |headers: &[(&str, &str)]| world.ask("POST", "/v1/entities/Session/1", headers, b"");
    asked(&[("host", "rebound.example")]).refuses(403, "cross_site");
    asked(&[("origin", "http://evil.example")]).refuses(403, "cross_site");
    asked(&[("origin", "null")]).refuses(403, "cross_site");
    asked(&[("sec-fetch-site", "cross-site")]).refuses(403, "cross_site");
    asked(&[("host", "127.0.0.1:7341"), ("origin", "http://127.0.0.1:7341")]).is(201);
}
