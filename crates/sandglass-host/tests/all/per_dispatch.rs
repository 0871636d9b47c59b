//! What an embedder sets for one dispatch: its client, its secrets, its limits and keys of its context; and
//! what clients and secrets learn about who calls.

use std::sync::{Arc, Mutex, PoisonError};

use sandglass_host::{
    Answer, CallOrigin, Context, Dispatch, DispatchLimits, FixedSecrets, GrantedSecrets, Host,
    HttpCall, HttpClient, HttpError, Integration, Manifest, Outcome, Response, Secret, Secrets,
    Settings,
};
use sandglass_model::{
    DispatchId, FailureKind, GuestLimits, LimitBreach, LimitKind, Object, RejectionKind,
    TraceContext,
};
use serde_json::{Value, json};

/// Reads the secret `token`, and sends its context and the secret to a peer.
const CALLS: &str = r#"(module
    (import "env" "host_get_secret" (func $secret (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_http_call"
        (func $http (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 2)
    (data (i32.const 8) "token")
    (data (i32.const 16) "POST")
    (data (i32.const 32) "http://peer.example/")
    (data (i32.const 64) "{\"action\":\"Done\",\"params\":{},\"success\":true}")
    (func $send (param $at i32) (param $len i32)
        (drop (call $http (i32.const 16) (i32.const 4) (i32.const 32) (i32.const 20)
            (i32.const 0) (i32.const 0) (local.get $at) (local.get $len)
            (i32.const 512) (i32.const 256))))
    (func (export "run") (param $context i32) (param $len i32) (result i32)
        (local $size i32)
        (local.set $size
            (call $secret (i32.const 8) (i32.const 5) (i32.const 256) (i32.const 64)))
        (call $send (local.get $context) (local.get $len))
        (call $send (i32.const 256)
            (select (local.get $size) (i32.const 0) (i32.gt_s (local.get $size) (i32.const 0))))
        (call $set (i32.const 64) (i32.const 44))
        i32.const 0))"#;

/// What a client or a store was called with.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    origins: Vec<String>,
    bodies: Vec<String>,
    response_bytes: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
struct Embedder(Arc<Mutex<Seen>>);

impl Embedder {
    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn seen(&self) -> Seen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn described(origin: CallOrigin<'_>) -> String {
    let CallOrigin { tenant, entity, action, dispatch, attempt, integration, module } = origin;
    format!("{tenant} {entity} {action} {dispatch} {attempt} {integration} {module}")
}

impl HttpClient for Embedder {
    fn send<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
        Box::pin(async move {
            call.destinations.allow(&call.request)?;
            let body = call.request.into_body(1 << 20).await?;
            self.note(|seen| {
                seen.origins.push(described(call.origin));
                seen.bodies.push(String::from_utf8_lossy(&body).into_owned());
                seen.response_bytes.push(call.limits.response_bytes);
            });
            Ok(Response { status: 200, ..Response::default() })
        })
    }
}

impl Secrets for Embedder {
    fn secret<'a>(&'a self, name: &'a str, origin: CallOrigin<'a>) -> Answer<'a, Option<Secret>> {
        self.note(|seen| seen.origins.push(format!("{name}: {}", described(origin))));
        Box::pin(std::future::ready(Some(Secret::new(format!("secret of {}", origin.tenant)))))
    }
}

fn host(client: Option<&Embedder>) -> Host {
    let settings = Settings { max_runs: 4, max_memory_bytes: 4 << 20, ..Settings::default() };
    let builder = Host::builder().settings(settings);
    let builder = match client {
        Some(client) => builder.http_client(Arc::new(client.clone())),
        None => builder,
    };
    builder.build().expect("a host")
}

fn small() -> GuestLimits {
    GuestLimits { memory_bytes: 2 << 20, ..GuestLimits::default() }
}

fn manifest() -> Manifest {
    Manifest::named("tools").limits(small()).allow_hosts(["peer.example".parse().expect("a host")])
}

fn dispatch(context: Context) -> Dispatch {
    Dispatch::new("Session/7".parse().expect("valid"), "Begin", context)
}

async fn outcome(host: &Host, guest: &Integration, dispatch: Dispatch) -> Outcome {
    host.dispatch(guest, dispatch).await.expect("it ran")
}

#[tokio::test]
async fn clients_and_secrets_learn_who_calls() {
    let (client, store) = (Embedder::default(), Embedder::default());
    let host = host(Some(&client));
    let manifest = manifest().secrets(Arc::new(store.clone()));
    let guest = host.load(CALLS.as_bytes(), manifest).expect("a guest");
    let id = DispatchId::from_bytes([3; 16]);
    let of_acme = dispatch(Context { tenant: "acme".to_owned(), ..Context::default() })
        .identity(id, TraceContext::root([4; 24]))
        .attempt(2)
        .integration("charge");
    let ended = outcome(&host, &guest, of_acme).await;
    assert!(matches!(ended, Outcome::Completed(_)), "{ended:?}");

    let origin = format!("acme Session/7 Begin {id} 2 charge {}", guest.module());
    assert_eq!(store.seen().origins, [format!("token: {origin}")]);
    assert_eq!(client.seen().origins, [&*origin, &*origin]);
    assert_eq!(client.seen().bodies[1], "secret of acme");
    assert_eq!(client.seen().response_bytes, [1 << 20, 1 << 20]);
}

#[tokio::test]
async fn a_dispatch_has_a_client_and_secrets_of_its_own() {
    let (of_host, own) = (Embedder::default(), Embedder::default());
    let host = host(Some(&of_host));
    let fixed = FixedSecrets::from_iter([("token".to_owned(), Secret::new("of the manifest"))]);
    let manifest = manifest().secrets(Arc::new(fixed));
    let guest = host.load(CALLS.as_bytes(), manifest).expect("a guest");
    let named = GrantedSecrets::new(["token".to_owned()].into(), Arc::new(own.clone()));
    let other = GrantedSecrets::new(["other".to_owned()].into(), Arc::new(own.clone()));
    for dispatch in [
        dispatch(Context::default()).http(Arc::new(own.clone())).secrets(Arc::new(named)),
        dispatch(Context::default()).http(Arc::new(own.clone())).secrets(Arc::new(other)),
        dispatch(Context::default()),
    ] {
        let ended = outcome(&host, &guest, dispatch).await;
        assert!(matches!(ended, Outcome::Completed(_)), "{ended:?}");
    }
    let secrets = |seen: &Seen| [1, 3].map(|at| seen.bodies.get(at).cloned());
    assert_eq!(
        secrets(&own.seen()),
        [Some("secret of default".to_owned()), Some(String::new())],
        "its own secrets, and only those that it may have"
    );
    assert_eq!(secrets(&of_host.seen()), [Some("of the manifest".to_owned()), None]);
}

#[tokio::test]
async fn extra_keys_of_the_context_reach_the_guest_and_replace_none_of_the_host() {
    let client = Embedder::default();
    let host = host(Some(&client));
    let guest = host.load(CALLS.as_bytes(), manifest()).expect("a guest");
    let extra = |key: &str| Object::from([(key.to_owned(), json!({ "path": "/hook" }))]);
    let context = Context { extra: extra("http_request"), ..Context::default() };
    let ended = outcome(&host, &guest, dispatch(context)).await;
    assert!(matches!(ended, Outcome::Completed(_)), "{ended:?}");
    let read: Value = serde_json::from_str(&client.seen().bodies[0]).expect("the context");
    assert_eq!((&read["http_request"]["path"], &read["entity_id"]), (&json!("/hook"), &json!("7")));

    let context = Context { extra: extra("entity_id"), ..Context::default() };
    let Outcome::Rejected(rejection) = outcome(&host, &guest, dispatch(context)).await else {
        panic!("it replaces the id of the entity")
    };
    assert_eq!(rejection.kind, RejectionKind::InvalidDispatch);
    assert!(rejection.message.contains("`entity_id`"), "{rejection}");
    assert_eq!(client.seen().bodies.len(), 2, "the guest did not start");
}

/// Grows its memory to 18 pages, of which one has the context, and traps if it may not; then computes.
const GROWS: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 64) "{\"action\":\"Done\",\"params\":{},\"success\":true}")
    (func (export "run") (param i32 i32) (result i32)
        (local $rounds i32)
        (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then unreachable))
        (loop $again
            (local.set $rounds (i32.add (local.get $rounds) (i32.const 1)))
            (br_if $again (i32.lt_u (local.get $rounds) (i32.const 1000))))
        (call $set (i32.const 64) (i32.const 44))
        i32.const 0))"#;

fn limited(limits: DispatchLimits) -> Dispatch {
    dispatch(Context::default()).limits(limits)
}

#[tokio::test]
async fn the_limits_of_a_dispatch_are_enforced() {
    let host = host(None);
    let metered = GuestLimits { fuel: Some(u64::MAX), ..small() };
    let guest = host.load(GROWS.as_bytes(), manifest().limits(metered)).expect("a guest");
    let unlimited = DispatchLimits::default();
    let memory = |bytes| DispatchLimits { memory_bytes: Some(bytes), ..unlimited };
    let fuel = |fuel| DispatchLimits { fuel: Some(fuel), ..unlimited };
    let response = |bytes| DispatchLimits { response_bytes: Some(bytes), ..unlimited };
    for limits in [unlimited, memory(18 << 16), fuel(1_000_000), response(44)] {
        let ended = outcome(&host, &guest, limited(limits)).await;
        assert!(matches!(ended, Outcome::Completed(_)), "{limits:?}: {ended:?}");
    }
    for (limits, kind, limit) in [
        (memory(16 << 16), LimitKind::WasmMemory, 16 << 16),
        (fuel(1000), LimitKind::WasmFuel, 1000),
    ] {
        let Outcome::Limit(LimitBreach { kind: observed, limit: stated, .. }) =
            outcome(&host, &guest, limited(limits)).await
        else {
            panic!("{limits:?} are not enforced")
        };
        assert_eq!((observed, stated), (kind, limit));
    }
    let Outcome::Failed(failure) = outcome(&host, &guest, limited(response(43))).await else {
        panic!("the result is larger than the limit")
    };
    assert_eq!(failure.kind, FailureKind::ResultTooLarge);
    let Outcome::Rejected(rejection) = outcome(&host, &guest, limited(memory(1000))).await else {
        panic!("the module begins with more")
    };
    assert_eq!(rejection.kind, RejectionKind::NeedsTooMuch);
}

#[tokio::test]
async fn a_dispatch_exceeds_neither_its_manifest_nor_its_host() {
    let host = host(None);
    let limits = GuestLimits { memory_bytes: 16 << 16, fuel: Some(1000), ..small() };
    let much = |memory| DispatchLimits {
        memory_bytes: Some(memory),
        fuel: Some(u64::MAX),
        response_bytes: None,
    };
    let limit_of = async |manifest: Manifest, limits| {
        let guest = host.load(GROWS.as_bytes(), manifest).expect("a guest");
        match outcome(&host, &guest, limited(limits)).await {
            Outcome::Limit(breach) => (breach.kind, breach.limit),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        limit_of(manifest().limits(limits), much(u64::MAX)).await,
        (LimitKind::WasmMemory, 16 << 16)
    );
    // A manifest may leave it open how much a dispatch sets.
    let open = Manifest { max_memory_bytes: Some(18 << 16), ..manifest().limits(limits) };
    assert_eq!(limit_of(open.clone(), much(u64::MAX)).await, (LimitKind::WasmFuel, 1000));
    assert_eq!(limit_of(open, much(16 << 16)).await, (LimitKind::WasmMemory, 16 << 16));
    let open = Manifest { max_memory_bytes: Some(u64::MAX), ..manifest() };
    let guest = host.load(GROWS.as_bytes(), open).expect("a guest");
    let beyond = DispatchLimits { memory_bytes: Some(u64::MAX), ..DispatchLimits::default() };
    let ended = outcome(&host, &guest, limited(beyond)).await;
    assert!(matches!(ended, Outcome::Completed(_)), "bounded by the host: {ended:?}");
}

#[tokio::test]
async fn fuel_is_not_limited_without_being_counted() {
    let host = host(None);
    let guest = host.load(GROWS.as_bytes(), manifest()).expect("a guest");
    let limits = DispatchLimits { fuel: Some(1), ..DispatchLimits::default() };
    let Outcome::Rejected(rejection) = outcome(&host, &guest, limited(limits)).await else {
        panic!("its code counts no fuel")
    };
    assert_eq!(rejection.kind, RejectionKind::InvalidDispatch);
    assert!(rejection.message.contains("fuel"), "{rejection}");
}

#[tokio::test]
async fn a_failure_has_the_parts_that_its_guest_declared() {
    let declared = json!({
        "version": 1,
        "category": "budget",
        "code": "QuotaExhausted",
        "retryability": "never",
        "outcome": "not_applied",
        "details": {},
    });
    let result = json!({ "success": false, "typed_failure": declared }).to_string();
    let guest = format!(
        r#"(module
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) {result:?})
        (func (export "run") (param i32 i32) (result i32)
            (call $set (i32.const 8) (i32.const {len})) i32.const 0))"#,
        len = result.len()
    );
    let host = host(None);
    let guest = host.load(guest.as_bytes(), manifest()).expect("a guest");
    let Outcome::Failed(failure) = outcome(&host, &guest, dispatch(Context::default())).await
    else {
        panic!("a failure")
    };
    let typed = failure.typed().expect("it is typed");
    assert_eq!((&*typed.category, &*typed.code), ("budget", "QuotaExhausted"));
    assert_eq!(typed.retryability.as_deref(), Some("never"));
}

/// A guest whose memory has one page, with a further `part`. It completes if its context is behind that
/// page, whole, and its memory has `pages` pages.
fn finds_its_context(part: &str, pages: u64) -> String {
    format!(
        r#"(module
        (import "env" "host_set_result" (func $result (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"action\":\"Finish\",\"success\":true}}")
        {part}
        (func (export "run") (param $at i32) (param $len i32) (result i32)
          (if (i32.ne (local.get $at) (i32.const 65536)) (then (unreachable)))
          (if (i32.ne (memory.size) (i32.const {pages})) (then (unreachable)))
          (if (i32.ne (i32.load8_u (local.get $at)) (i32.const 0x7b)) (then (unreachable)))
          (local.set $at (i32.add (local.get $at) (i32.sub (local.get $len) (i32.const 1))))
          (if (i32.ne (i32.load8_u (local.get $at)) (i32.const 0x7d)) (then (unreachable)))
          (call $result (i32.const 8) (i32.const 34))
          (i32.const 0)))"#
    )
}

#[tokio::test]
async fn the_context_is_behind_the_declared_memory_however_large_it_is() {
    let host = host(None);
    // With a start function, the host adds the memory for the context only after it.
    for part in ["", "(func $nothing) (start $nothing)"] {
        for (bytes, pages) in [(10, 2), (60_000, 2), (70_000, 3), (200_000, 5)] {
            let guest = finds_its_context(part, pages);
            let guest = host.load(guest.as_bytes(), manifest()).expect("a guest");
            let text = ("text".to_owned(), "x".repeat(bytes).into());
            let context = Context { params: [text].into(), ..Context::default() };
            let report = host.run(&guest, dispatch(context)).await.expect("it ran");
            assert!(matches!(report.outcome, Outcome::Completed(_)), "{part} {bytes} {report:?}");
            assert_eq!(report.peak_memory_bytes, pages * (64 << 10), "{part} {bytes}");
        }
    }
}

#[tokio::test]
async fn a_context_that_exceeds_the_memory_limit_is_the_same_breach_with_and_without_its_page() {
    let host = host(None);
    let mut ends = Vec::new();
    for part in ["", "(func $nothing) (start $nothing)"] {
        let limits = GuestLimits { memory_bytes: 2 * (64 << 10), ..GuestLimits::default() };
        let guest = finds_its_context(part, 2);
        let guest = host.load(guest.as_bytes(), manifest().limits(limits)).expect("a guest");
        let text = ("text".to_owned(), "x".repeat(100_000).into());
        let context = Context { params: [text].into(), ..Context::default() };
        ends.push(outcome(&host, &guest, dispatch(context)).await);
    }
    assert!(matches!(ends[0], Outcome::Limit(_)), "{ends:?}");
    assert_eq!(ends[0], ends[1]);
}
