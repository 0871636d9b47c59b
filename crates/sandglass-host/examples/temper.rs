//! The host behind the traits of an existing runtime: an engine that is called as
//! `invoke(hash, context, host, limits, streams)`. Each call brings its own client, secrets, limits,
//! streams and context, and gets a result in that runtime's form.
//!
//! The first part has the types of that runtime, in short; the second is the adapter; the third calls
//! it.
//!
//! `cargo run -p sandglass-host --example temper`

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use sandglass_host::{
    Answer, CallOrigin, Context, Dispatch, DispatchDeadline, DispatchLimits, Failure, FailureKind,
    Host, HttpCall, HttpClient, HttpError, Integration, Manifest, Outcome, Response, Secret,
    Secrets, Settings, Signal, Signals, Streams, TypedFailure,
};
use sandglass_model::{Completion, EntityRef, GuestLimits, LimitKind, Object};
use serde_json::{Value, json};

// ---- The types of the existing runtime. ----

/// What a guest can reach. The runtime makes one for each invocation, with its policies.
trait WasmHost: Send + Sync {
    fn http_call_binary<'a>(
        &'a self,
        method: &'a str,
        url: &'a str,
        headers: &'a [(String, String)],
        body: &'a [u8],
    ) -> Answer<'a, Result<(u16, Vec<u8>), String>>;

    fn get_secret(&self, key: &str) -> Result<String, String>;

    fn emit_progress(&self, event: &str) -> Result<(), String>;
}

struct WasmInvocationContext {
    tenant: String,
    entity_type: String,
    entity_id: String,
    trigger_action: String,
    wasm_module: Option<String>,
    trigger_params: Value,
    entity_state: Value,
    integration_config: BTreeMap<String, String>,
    workflow_run_id: Option<String>,
    http_request: Option<Value>,
}

struct WasmResourceLimits {
    max_fuel: u64,
    max_memory: u64,
    max_duration: Duration,
    max_response_bytes: u64,
}

/// Streams by their names.
type StreamRegistry = BTreeMap<String, Vec<u8>>;

#[derive(Debug, PartialEq)]
struct WasmInvocationResult {
    callback_action: String,
    callback_params: Value,
    success: bool,
    error: Option<String>,
    typed_failure: Option<TypedFailure>,
}

#[derive(Debug, PartialEq)]
enum WasmError {
    ModuleNotFound(String),
    Compilation(String),
    Invocation(String),
    GuestExecution(String),
    InvalidGuestResult(FailureKind),
    FuelExhausted,
    MemoryLimitExceeded { max_bytes: u64 },
    Timeout(Duration),
}

// ---- The adapter. ----

struct WasmEngine {
    host: Host,
    modules: RwLock<BTreeMap<String, Integration>>,
}

impl WasmEngine {
    fn new() -> Result<Self, Box<dyn Error>> {
        let settings = Settings { max_runs: 8, ..Settings::default() };
        Ok(Self { host: Host::builder().settings(settings).build()?, modules: RwLock::default() })
    }

    /// Compiles a module that any invocation may call. What it may reach is decided by the `WasmHost` of
    /// the invocation; the manifest only bounds what limits can set, and makes the module count fuel.
    async fn compile_and_cache(&self, bytes: &[u8]) -> Result<String, WasmError> {
        let limits = GuestLimits { fuel: Some(u64::MAX), ..GuestLimits::default() };
        let manifest = Manifest {
            max_memory_bytes: Some(256 << 20),
            max_response_bytes: Some(64 << 20),
            ..Manifest::named("guest").limits(limits)
        };
        let loaded = self.host.load_async(bytes, manifest).await;
        let loaded = loaded.map_err(|rejection| WasmError::Compilation(rejection.message))?;
        let hash = loaded.module().to_string();
        let mut modules = self.modules.write().unwrap_or_else(PoisonError::into_inner);
        modules.insert(hash.clone(), loaded);
        Ok(hash)
    }

    async fn invoke(
        &self,
        hash: &str,
        context: &WasmInvocationContext,
        host: Arc<dyn WasmHost>,
        limits: &WasmResourceLimits,
        streams: &RwLock<StreamRegistry>,
    ) -> Result<WasmInvocationResult, WasmError> {
        let found = self.modules.read().unwrap_or_else(PoisonError::into_inner).get(hash).cloned();
        let module = found.ok_or_else(|| WasmError::ModuleNotFound(hash.to_owned()))?;
        let entity = EntityRef::new(&*context.entity_type, &*context.entity_id)
            .map_err(|error| WasmError::Invocation(error.to_string()))?;
        let bridge = Arc::new(Bridge(host));
        let given = Streams::new();
        for (name, bytes) in &*streams.read().unwrap_or_else(PoisonError::into_inner) {
            given.put(name.clone(), bytes.clone());
        }
        let dispatch = Dispatch::new(entity, &*context.trigger_action, guest_context(context))
            .integration(context.wasm_module.as_deref().unwrap_or("guest"))
            .deadline(DispatchDeadline::after(limits.max_duration))
            .limits(DispatchLimits {
                memory_bytes: Some(limits.max_memory),
                fuel: Some(limits.max_fuel),
                response_bytes: Some(limits.max_response_bytes),
            })
            .http(Arc::clone(&bridge) as Arc<dyn HttpClient>)
            .secrets(Arc::clone(&bridge) as Arc<dyn Secrets>)
            .signals(bridge)
            .streams(given.clone());
        let outcome = self.host.dispatch(&module, dispatch).await;
        let mut streams = streams.write().unwrap_or_else(PoisonError::into_inner);
        streams.clear();
        for name in given.names() {
            streams.extend(given.take(&name).map(|bytes| (name, bytes.to_vec())));
        }
        result(outcome.map_err(|error| WasmError::Invocation(error.to_string()))?, limits)
    }
}

fn guest_context(context: &WasmInvocationContext) -> Context {
    let text = |key: &str, value: &Option<String>| Some((key.to_owned(), json!(value.as_ref()?)));
    let http_request = context.http_request.clone();
    Context {
        tenant: context.tenant.clone(),
        params: object(&context.trigger_params),
        entity_state: context.entity_state.clone(),
        config: context.integration_config.clone(),
        extra: text("wasm_module", &context.wasm_module)
            .into_iter()
            .chain(text("workflow_run_id", &context.workflow_run_id))
            .chain(http_request.map(|request| ("http_request".to_owned(), request)))
            .collect(),
        ..Context::default()
    }
}

fn object(value: &Value) -> Object {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn result(
    outcome: Outcome,
    limits: &WasmResourceLimits,
) -> Result<WasmInvocationResult, WasmError> {
    match outcome {
        Outcome::Completed(Completion { action, params, .. }) => Ok(WasmInvocationResult {
            callback_action: action.unwrap_or_default(),
            callback_params: json!(params),
            success: true,
            error: None,
            typed_failure: None,
        }),
        Outcome::Failed(failure) => failed(failure),
        Outcome::TimedOut(_) => Err(WasmError::Timeout(limits.max_duration)),
        Outcome::Limit(breach) => Err(match breach.kind {
            LimitKind::WasmFuel => WasmError::FuelExhausted,
            _ => WasmError::MemoryLimitExceeded { max_bytes: breach.limit },
        }),
        Outcome::Trapped(trap) => Err(WasmError::GuestExecution(trap.message)),
        Outcome::Rejected(rejection) => Err(WasmError::Invocation(rejection.message)),
        other => Err(WasmError::Invocation(other.error().unwrap_or_default().1)),
    }
}

fn failed(failure: Failure) -> Result<WasmInvocationResult, WasmError> {
    let typed_failure = failure.typed();
    if typed_failure.is_none() && failure.kind != FailureKind::GuestFailure {
        return Err(WasmError::InvalidGuestResult(failure.kind));
    }
    let error = typed_failure.is_none().then_some(failure.message);
    Ok(WasmInvocationResult {
        callback_action: error.as_ref().map_or("", |_| "callback").to_owned(),
        callback_params: error.as_ref().map_or(Value::Null, |error| json!({ "error": error })),
        success: false,
        error,
        typed_failure,
    })
}

/// Passes the calls of a guest to the `WasmHost` of its invocation.
struct Bridge(Arc<dyn WasmHost>);

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bridge")
    }
}

impl HttpClient for Bridge {
    /// The policy of the `WasmHost` decides, not `HttpCall::destinations`. The host drops this future at the
    /// deadline, and refuses a response that is too large.
    fn send<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
        const BODY_MAX_BYTES: u64 = 64 << 20;
        Box::pin(async move {
            let request = call.request;
            let (method, url) = (request.method().to_owned(), request.url().to_owned());
            let headers = request.headers();
            let headers: Vec<_> =
                headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let body = request.into_body(BODY_MAX_BYTES).await?;
            let sent = self.0.http_call_binary(&method, &url, &headers, &body);
            let (status, body) =
                call.limits.bound(async { sent.await.map_err(HttpError::Transport) }).await?;
            Ok(Response { status, body, ..Response::default() })
        })
    }
}

impl Secrets for Bridge {
    fn secret<'a>(&'a self, name: &'a str, origin: CallOrigin<'a>) -> Answer<'a, Option<Secret>> {
        let secret = self.0.get_secret(name).inspect_err(|why| {
            tracing::warn!(tenant = origin.tenant, entity = %origin.entity, name, why, "no secret");
        });
        Box::pin(std::future::ready(secret.ok().map(Secret::new)))
    }
}

impl Signals for Bridge {
    fn signal(&self, signal: Signal) {
        if let Signal::Progress(event) = signal
            && let Err(why) = self.0.emit_progress(&event.to_string())
        {
            tracing::warn!(why, "progress is lost");
        }
    }
}

// ---- An invocation. ----

/// Sends its context and a secret to a peer, and returns what its config names.
const GUEST: &str = r#"(module
    (import "env" "host_get_secret" (func $secret (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_emit_progress" (func $emit (param i32 i32) (result i32)))
    (import "env" "host_http_call"
        (func $http (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "token")
    (data (i32.const 16) "POST")
    (data (i32.const 32) "https://peer.example/")
    (data (i32.const 64) "{\"step\":1}")
    (data (i32.const 80) "{\"action\":\"ChargeSucceeded\",\"params\":{\"paid\":true},\"success\":true}")
    (func (export "run") (param $context i32) (param $len i32) (result i32)
        (drop (call $emit (i32.const 64) (i32.const 10)))
        (drop (call $secret (i32.const 8) (i32.const 5) (i32.const 256) (i32.const 64)))
        (drop (call $http (i32.const 16) (i32.const 4) (i32.const 32) (i32.const 21)
            (i32.const 0) (i32.const 0) (local.get $context) (local.get $len)
            (i32.const 512) (i32.const 256)))
        (call $set (i32.const 80) (i32.const 66))
        i32.const 0))"#;

const DECLINES: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":false,\"typed_failure\":{\"version\":1,\"category\":\"budget\",\"code\":\"QuotaExhausted\",\"retryability\":\"never\",\"outcome\":\"not_applied\",\"details\":{}}}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 8) (i32.const 151)) i32.const 0))"#;

const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

/// What the guest of one invocation did.
#[derive(Default)]
struct Recorded(Mutex<Vec<String>>);

impl Recorded {
    fn note(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

impl WasmHost for Recorded {
    fn http_call_binary<'a>(
        &'a self,
        method: &'a str,
        url: &'a str,
        _: &'a [(String, String)],
        body: &'a [u8],
    ) -> Answer<'a, Result<(u16, Vec<u8>), String>> {
        let context: Value = serde_json::from_slice(body).unwrap_or_default();
        self.note(format!("{method} {url} from {}", context["wasm_module"]));
        Box::pin(std::future::ready(Ok((200, b"{}".to_vec()))))
    }

    fn get_secret(&self, key: &str) -> Result<String, String> {
        self.note(format!("secret {key}"));
        Ok("hunter2".to_owned())
    }

    fn emit_progress(&self, event: &str) -> Result<(), String> {
        self.note(format!("progress {event}"));
        Ok(())
    }
}

fn context() -> WasmInvocationContext {
    WasmInvocationContext {
        tenant: "acme".to_owned(),
        entity_type: "Order".to_owned(),
        entity_id: "7".to_owned(),
        trigger_action: "Charge".to_owned(),
        wasm_module: Some("charge_card".to_owned()),
        trigger_params: json!({ "amount": 100 }),
        entity_state: json!({ "status": "Charging" }),
        integration_config: BTreeMap::new(),
        workflow_run_id: None,
        http_request: None,
    }
}

fn limits() -> WasmResourceLimits {
    WasmResourceLimits {
        max_fuel: 1_000_000_000,
        max_memory: 64 << 20,
        max_duration: Duration::from_secs(120),
        max_response_bytes: 1 << 20,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (engine, context) = (WasmEngine::new()?, context());
    let streams = RwLock::new(StreamRegistry::from([("upload".to_owned(), vec![1, 2, 3])]));
    let recorded = Arc::new(Recorded::default());
    let invoke = async |guest: &str, limits: WasmResourceLimits| {
        let hash = engine.compile_and_cache(guest.as_bytes()).await?;
        let host = Arc::clone(&recorded) as Arc<dyn WasmHost>;
        engine.invoke(&hash, &context, host, &limits, &streams).await
    };

    let charged = invoke(GUEST, limits()).await.expect("a result");
    assert_eq!((&*charged.callback_action, charged.success), ("ChargeSucceeded", true));
    let calls = std::mem::take(&mut *recorded.0.lock().unwrap_or_else(PoisonError::into_inner));
    let expected = [
        "progress {\"step\":1}",
        "secret token",
        "POST https://peer.example/ from \"charge_card\"",
    ];
    assert_eq!(calls, expected);
    assert_eq!(streams.read().unwrap_or_else(PoisonError::into_inner)["upload"], [1, 2, 3]);

    let declined = invoke(DECLINES, limits()).await.expect("a result");
    let failure = declined.typed_failure.expect("a typed failure");
    assert_eq!((&*failure.category, &*failure.code), ("budget", "QuotaExhausted"));

    let timeout = Duration::from_millis(50);
    let stopped =
        invoke(SPINS, WasmResourceLimits { max_duration: timeout, max_fuel: u64::MAX, ..limits() })
            .await;
    assert_eq!(stopped, Err(WasmError::Timeout(timeout)));
    let spent = invoke(SPINS, WasmResourceLimits { max_fuel: 10_000, ..limits() }).await;
    assert_eq!(spent, Err(WasmError::FuelExhausted));
    let large = invoke(SPINS, WasmResourceLimits { max_memory: 1000, ..limits() }).await;
    assert!(matches!(large, Err(WasmError::Invocation(_))), "{large:?}");

    engine.host.shutdown().await;
    writeln!(std::io::stdout(), "{}\n{calls:?}\n{stopped:?}\n{spent:?}", charged.callback_action)?;
    Ok(())
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
