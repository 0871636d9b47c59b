//! The HTTP API of the protocol.
//!
//! ```text
//! guarded ──▶ door (key) ──▶ owner ──▶ routes ──▶ request: body, checked ──▶ Service
//!                                        └─────▶ view: runs and events, masked ◀── logs of runs
//! ```

pub(crate) mod discovery;
mod door;
pub(crate) mod error;
mod events;
mod owner;
mod path;
pub(crate) mod request;
mod runs;
mod status;
mod view;
mod workflows;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use sandglass_http::key::Digest;
use sandglass_http::{
    Holder, NoRoute, Owners, body, path_fallback, with_fallbacks, with_guards, with_method_fallback,
};
use sandglass_model::HostId;
use sandglass_telemetry::metrics::OpenwopRefusal;
use sandglass_telemetry::prometheus::Exporter;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use self::error::Error;
use crate::code::Code;
use crate::engine::Engine;
use crate::id::hex;
use crate::service::Service;
use sandglass_workflow::quoted;

/// Where the protocol's discovery document is.
pub const DISCOVERY_PATH: &str = "/.well-known/openwop";
/// Where the description of the interface is.
pub const OPENAPI_PATH: &str = "/v1/openapi.json";

/// The protocol's endpoints that this host answers with 501. `:pause` and `:resume` share their route
/// with forks.
const NOT_IMPLEMENTED: [&str; 5] = [
    "/v1/runs:bulk-cancel",
    "/v1/runs/{run}/artifacts/{artifact}",
    "/v1/interrupts/{token}",
    "/v1/webhooks",
    "/v1/webhooks/{webhookId}",
];

/// The path of the metrics, if the interface is served alone.
const METRICS_PATH: &str = "/metrics";
/// The path of the health check, if the interface is served alone.
const HEALTH_PATH: &str = "/healthz";

/// How long a piece of a body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Large bodies that are read at the same time.
const LARGE_BODIES_MAX: usize = 64;

/// The description of the interface: OpenAPI 3.1.
const OPENAPI: &str = include_str!("openapi.json");

/// The interface of an OpenWOP host. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OpenWop(Arc<Interface>);

#[derive(Debug)]
struct Interface {
    service: Arc<Service>,
    key: Digest,
    discovery: Document,
    openapi: Document,
    readers: Arc<Semaphore>,
    snapshot_readers: Arc<Semaphore>,
    polls: Arc<Semaphore>,
    forwarded_readers: Arc<Semaphore>,
    large_bodies: Arc<Semaphore>,
    /// The hosts of the cluster, if it is in one.
    owners: Option<Arc<dyn Owners>>,
    /// The digest of its definitions and packs, and those of other hosts that were warned of.
    library: HeaderValue,
    warned_of: Mutex<BTreeMap<HostId, HeaderValue>>,
    closing: watch::Sender<bool>,
    exporter: Exporter,
}

/// A document that does not change while the host runs.
#[derive(Debug)]
struct Document {
    text: Bytes,
    etag: HeaderValue,
}

impl Document {
    fn new(text: String) -> Self {
        let digest = Sha256::digest(text.as_bytes());
        let etag = format!("\"{}\"", hex(&digest[..16]));
        let etag = HeaderValue::from_str(&etag).expect("digits in quotes");
        Self { text: text.into(), etag }
    }

    fn served(&self, headers: &HeaderMap) -> Response {
        let cached = [
            (header::ETAG, self.etag.clone()),
            (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=60")),
        ];
        if is_known(headers, &self.etag) {
            return (StatusCode::NOT_MODIFIED, cached).into_response();
        }
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        (cached, json, self.text.clone()).into_response()
    }
}

/// Whether the client has the version with this tag (RFC 9110, 13.1.2: a weak comparison).
fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let tags = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut tags = tags.filter_map(|tags| tags.to_str().ok()).flat_map(|tags| tags.split(','));
    tags.any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).as_bytes() == etag.as_bytes()
    })
}

impl OpenWop {
    /// The interface of `service`, for clients with `key`; its metrics are those of `exporter`. If
    /// `owners` is given, this host owns a part of the runs, and requests about others are forwarded.
    #[must_use]
    pub fn new(
        service: Arc<Service>,
        key: Digest,
        exporter: Exporter,
        owners: Option<Arc<dyn Owners>>,
    ) -> Self {
        let library = HeaderValue::from_str(&service.engine().library.digest());
        let discovery = discovery::document(&service.engine().library, &service.engine().settings);
        let places = |most: usize| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        let interface = Interface {
            key,
            discovery: Document::new(discovery.to_string()),
            openapi: Document::new(OPENAPI.replace("{version}", env!("CARGO_PKG_VERSION"))),
            readers: places(service.engine().settings.max_readers),
            snapshot_readers: places(events::SNAPSHOT_READERS_MAX),
            polls: places(service.engine().settings.max_polls),
            forwarded_readers: places(owner::FORWARDED_READERS_MAX),
            large_bodies: places(LARGE_BODIES_MAX),
            owners,
            library: library.expect("hexadecimal digits"),
            warned_of: Mutex::default(),
            closing: watch::Sender::new(false),
            exporter,
            service,
        };
        Self(Arc::new(interface))
    }

    /// Ends open streams and polls of events; their readers continue at the same event with the next
    /// start of the host.
    pub fn close(&self) {
        self.0.closing.send_replace(true);
    }

    /// The whole interface, to be served alone.
    pub fn router(&self) -> Router {
        let status = Router::new()
            .route(HEALTH_PATH, get(status::health))
            .route(METRICS_PATH, get(status::metrics));
        self.guarded(with_fallbacks(self.routes().merge(status), neither), Holder::Operator)
    }

    /// The routes of the protocol alone, to be served beside others: what neither has is
    /// answered by the others, but for what is below the protocol's.
    pub fn beside(&self) -> Router {
        let below = ["/v1/runs/", "/v1/runs/{run}/", "/v1/runs/{run}/{*below}"].into_iter();
        let router = below
            .fold(self.routes(), |router, path| router.route(path, any(path_fallback(neither))));
        // The others need connections, too.
        self.guarded(with_method_fallback(router, neither), Holder::Client("openwop".into()))
    }

    fn routes(&self) -> Router<Self> {
        // Each of these is about one run, whose owner serves it.
        let owned = Router::new()
            .route("/v1/runs", post(runs::create))
            .route("/v1/runs/{run}", get(runs::read).post(runs::fork).fallback(runs::neither))
            .route("/v1/runs/{run}/cancel", post(runs::cancel))
            .route("/v1/runs/{run}/events", get(events::events))
            .route("/v1/runs/{run}/events/poll", get(events::poll))
            .route("/v1/runs/{run}/interrupts/{node}", post(runs::resolve))
            .route_layer(from_fn_with_state(self.clone(), owner::forward));
        let router = NOT_IMPLEMENTED
            .into_iter()
            .fold(owned, |router, path| router.route(path, any(not_implemented)));
        router
            .route("/v1/workflows/{workflow}", get(workflows::read))
            .route(DISCOVERY_PATH, get(discovered))
            .route(OPENAPI_PATH, get(described))
    }

    /// `holder` is under which name connections of clients with the key count.
    fn guarded(&self, router: Router<Self>, holder: Holder) -> Router {
        let router = router.layer(from_fn_with_state((self.clone(), holder), door::check));
        with_guards(router, || {
            Error::new(Code::Internal, "the host failed to process the request; its log says why")
                .into_response()
        })
        .with_state(self.clone())
    }

    fn service(&self) -> &Arc<Service> {
        &self.0.service
    }

    fn engine(&self) -> &Engine {
        self.0.service.engine()
    }

    /// One of at most `most` permits of `places`.
    fn place(
        &self,
        places: &Arc<Semaphore>,
        most: usize,
        of: OpenwopRefusal,
    ) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(places).try_acquire_owned().map_err(|_| {
            self.engine().metrics().openwop_refused(of);
            let of = of.as_str();
            Error::new(
                Code::RateLimited,
                format!("there are {most} {of} of events, which is the limit"),
            )
        })
    }

    fn reader(&self) -> Result<ReaderPlace, Error> {
        let most = self.engine().settings.max_readers;
        let place = self.place(&self.0.readers, most, OpenwopRefusal::Readers)?;
        let place = ReaderPlace { host: self.clone(), place: Some(place) };
        place.report();
        Ok(place)
    }

    fn polling(&self) -> Result<OwnedSemaphorePermit, Error> {
        let most = self.engine().settings.max_polls;
        self.place(&self.0.polls, most, OpenwopRefusal::Polls)
    }

    /// A slot for a body that is larger than [`body::LARGE_BYTES`].
    fn large_body(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.0.large_bodies).try_acquire_owned().map_err(|_| {
            let message = format!(
                "{LARGE_BODIES_MAX} large bodies are already being read, which is the limit; try again \
                 later"
            );
            Error::new(Code::RateLimited, message)
        })
    }

    /// The bytes of a body.
    async fn bytes(&self, headers: &HeaderMap, sent: Body) -> Result<Bytes, Error> {
        let max_bytes = self.engine().settings.max_request_body_bytes;
        let limits = body::Limits { max_bytes, timeout: BODY_TIMEOUT };
        body::bytes(headers, sent, limits, || self.large_body()).await
    }

    /// The object in a body; an empty one if there is no body.
    async fn object(&self, headers: &HeaderMap, sent: Body) -> Result<Map<String, Value>, Error> {
        let bytes = self.bytes(headers, sent).await?;
        // Duplicate keys are rejected, because parsers differ in which one they use.
        let fields = body::json(headers, &bytes, body::DuplicateKeys::Rejected);
        fields.map(Option::unwrap_or_default).map_err(|error| match error {
            body::Error::DuplicateKey { pointer, key } => {
                Error::invalid(&pointer, format!("the key {} is duplicated", quoted(&key)))
            }
            error => body_error(&error),
        })
    }
}

/// The permit of a reader of events.
struct ReaderPlace {
    host: OpenWop,
    place: Option<OwnedSemaphorePermit>,
}

impl ReaderPlace {
    /// Reports how many readers there are.
    fn report(&self) {
        let most = self.host.engine().settings.max_readers;
        let readers = most.saturating_sub(self.host.0.readers.available_permits());
        self.host.engine().metrics().openwop_readers(readers);
    }
}

impl Drop for ReaderPlace {
    fn drop(&mut self) {
        drop(self.place.take());
        self.report();
    }
}

/// The error for a path or method that the interface does not serve.
fn neither(unserved: NoRoute) -> Response {
    let code = match unserved {
        NoRoute::Path { .. } => Code::NotFound,
        NoRoute::Method { .. } => Code::MethodNotAllowed,
    };
    Error::new(code, unserved.to_string()).into_response()
}

/// The error for an endpoint of the protocol that this host does not have.
async fn not_implemented() -> Error {
    let message = "this host does not implement the endpoint; `unimplementedEndpoints` of its \
                   discovery document lists those";
    Error::new(Code::NotImplemented, message)
}

impl From<body::Error> for Error {
    fn from(error: body::Error) -> Self {
        body_error(&error)
    }
}

/// The error for a body that cannot be read.
fn body_error(error: &body::Error) -> Error {
    let code = match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
        StatusCode::REQUEST_TIMEOUT => Code::SlowRequest,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        _ => Code::Validation,
    };
    Error::new(code, error.to_string())
}

async fn discovered(State(host): State<OpenWop>, headers: HeaderMap) -> Response {
    host.0.discovery.served(&headers)
}

async fn described(State(host): State<OpenWop>, headers: HeaderMap) -> Response {
    host.0.openapi.served(&headers)
}

/// A response with this status and body.
fn answer(status: StatusCode, body: impl Serialize) -> Response {
    (status, Json(body)).into_response()
}
