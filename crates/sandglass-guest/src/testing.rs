//! A simulated host for unit tests of a handler, which run natively.
//!
//! The handler is an ordinary function, so a test calls it. A [`Host`] of the test serves its calls of
//! host functions:
//!
//! ```
//! use sandglass_guest::{Failure, http, json, log, secrets, testing};
//!
//! fn weather(city: &str) -> Result<String, Failure> {
//!     log::info!("asking for {city}");
//!     let key = secrets::get("WEATHER_KEY")?;
//!     let response = http::Request::get("https://weather.example/now").bearer(&key).send()?;
//!     Ok(response.error_for_status()?.text()?.to_owned())
//! }
//!
//! let host = testing::Host::new()
//!     .secret("WEATHER_KEY", "k")
//!     .http(|request| {
//!         assert_eq!(request.url(), "https://weather.example/now");
//!         Ok(http::Response::new(200, "rain by noon"))
//!     });
//! let (result, telemetry) = host.run(|| weather("Bergen"));
//! assert_eq!(result.unwrap(), "rain by noon");
//! assert_eq!(telemetry.lines[0].text, "asking for Bergen");
//! ```
//!
//! It enforces no deadline, no grants and no limits. Only a real host shows how a handler ends at its
//! deadline.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::backend::HOST;
use crate::context::Config;
use crate::glue::block_on;
use crate::log::Level;
use crate::{Context, HostError, ask, http, signal};

type Http = Rc<dyn Fn(&http::Request) -> Result<http::Response, http::Error>>;
type Asks = Rc<dyn Fn(&ask::Request) -> Result<ask::Answer, ask::Error>>;
type Signals = Rc<dyn Fn(&signal::Notice) -> Result<(), signal::Error>>;

/// A simulated host. A handler that is called outside of [`Host::run`] has an empty one: without secrets,
/// with an error for every request, and with a minute left.
pub struct Host {
    pub(crate) remaining: Duration,
    pub(crate) stop_after: Option<u32>,
    pub(crate) now_ms: Option<i64>,
    pub(crate) secrets: BTreeMap<String, String>,
    scratch: Option<BTreeMap<String, Vec<u8>>>,
    pub(crate) http: Option<Http>,
    pub(crate) asks: Option<Asks>,
    pub(crate) signals: Option<Signals>,
    pub(crate) telemetry: Telemetry,
}

/// Everything that a handler logged and reported while it ran, each kind in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telemetry {
    /// Lines of the log.
    pub lines: Vec<Line>,
    /// Wide events.
    pub wide_events: Vec<Value>,
    /// Progress.
    pub progress: Vec<Value>,
    /// Statuses.
    pub statuses: Vec<String>,
    /// Names and values of metrics.
    pub metrics: Vec<(String, f64)>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The severity.
    pub level: Level,
    /// The text.
    pub text: String,
    /// The fields; `None` for a line without any.
    pub fields: Option<Value>,
}

/// The remaining budget unless a test sets another: more than a test takes.
const REMAINING: Duration = Duration::from_secs(60);

impl Host {
    /// An empty host: no secrets, no scratch, and an error for every request, ask and signal.
    #[must_use]
    pub fn new() -> Self {
        Self {
            remaining: REMAINING,
            stop_after: None,
            now_ms: None,
            secrets: BTreeMap::new(),
            scratch: None,
            http: None,
            asks: None,
            signals: None,
            telemetry: Telemetry::default(),
        }
    }

    /// Sets the remaining budget. It stays the same, however long the handler takes.
    #[must_use]
    pub fn remaining(mut self, remaining: Duration) -> Self {
        self.remaining = remaining;
        self
    }

    /// Makes `deadline::should_stop` return `true` after it has returned `false` this many times.
    #[must_use]
    pub fn stop_after(mut self, times: u32) -> Self {
        self.stop_after = Some(times);
        self
    }

    /// Sets the wall-clock time, in milliseconds since 1970 (UTC), instead of the machine's time.
    #[must_use]
    pub fn now_ms(mut self, now_ms: i64) -> Self {
        self.now_ms = Some(now_ms);
        self
    }

    /// Adds a secret.
    #[must_use]
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.secrets.insert(name.into(), value.into());
        self
    }

    /// Grants a scratch without a size limit.
    #[must_use]
    pub fn with_scratch(mut self) -> Self {
        self.scratch = Some(BTreeMap::new());
        self
    }

    /// Answers HTTP requests with `answer`.
    #[must_use]
    pub fn http(
        mut self,
        answer: impl Fn(&http::Request) -> Result<http::Response, http::Error> + 'static,
    ) -> Self {
        self.http = Some(Rc::new(answer));
        self
    }

    /// Answers asks with `answer`.
    #[must_use]
    pub fn asks(
        mut self,
        answer: impl Fn(&ask::Request) -> Result<ask::Answer, ask::Error> + 'static,
    ) -> Self {
        self.asks = Some(Rc::new(answer));
        self
    }

    /// Answers signals to other entities with `answer`.
    #[must_use]
    pub fn signals(
        mut self,
        answer: impl Fn(&signal::Notice) -> Result<(), signal::Error> + 'static,
    ) -> Self {
        self.signals = Some(Rc::new(answer));
        self
    }

    /// Runs `handler` with this host, on this thread. Returns its result and its telemetry.
    pub fn run<T>(self, handler: impl FnOnce() -> T) -> (T, Telemetry) {
        // Restores the previous host even after a panic, which a test may expect.
        struct Previous(Option<Host>);
        impl Drop for Previous {
            fn drop(&mut self) {
                if let Some(host) = self.0.take() {
                    HOST.replace(host);
                }
            }
        }
        let mut previous = Previous(Some(HOST.replace(self)));
        let result = handler();
        let host = previous.0.take().map(|host| HOST.replace(host));
        (result, host.map(|host| host.telemetry).unwrap_or_default())
    }

    /// As [`Host::run`], for an asynchronous handler.
    pub fn run_async<T>(self, handler: impl AsyncFnOnce() -> T) -> (T, Telemetry) {
        self.run(|| block_on(handler()))
    }

    pub(crate) fn scratch(
        &mut self,
        key: &str,
    ) -> Result<&mut BTreeMap<String, Vec<u8>>, HostError> {
        if key.is_empty() || key.len() > 256 {
            let size = key.len();
            return Err(HostError::new(format!(
                "a key has 1 to 256 bytes, and this one has {size}"
            )));
        }
        self.scratch.as_mut().ok_or_else(|| {
            HostError::new("the test's host grants no scratch; call `Host::with_scratch`")
        })
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("remaining", &self.remaining)
            .field("secrets", &self.secrets.keys())
            .field("telemetry", &self.telemetry)
            .finish_non_exhaustive()
    }
}

/// A context for tests: of the entity `Test/1`, which took the action `Begin`, without params, state
/// or configuration.
#[must_use]
pub fn context() -> Context {
    Context {
        tenant: "default".to_owned(),
        entity_type: "Test".to_owned(),
        entity_id: "1".to_owned(),
        trigger_action: "Begin".to_owned(),
        trigger_params: to_raw_json(&serde_json::json!({})),
        entity_state: to_raw_json(&serde_json::json!({ "fields": {} })),
        integration_config: Config::default(),
        trace_id: "0".repeat(32),
        agent_id: None,
        session_id: None,
        dispatch_id: "0".repeat(32),
        attempt: 1,
    }
}

impl Context {
    /// Sets the params of the triggering action. For tests.
    ///
    /// # Panics
    /// Panics if they cannot be written as JSON.
    #[must_use]
    pub fn with_params(mut self, params: impl Serialize) -> Self {
        self.trigger_params = to_raw_json(&params);
        self
    }

    /// Sets the entity's state. For tests.
    ///
    /// # Panics
    /// Panics if it cannot be written as JSON.
    #[must_use]
    pub fn with_state(mut self, state: impl Serialize) -> Self {
        self.entity_state = to_raw_json(&state);
        self
    }

    /// Adds a value to the integration's configuration. For tests.
    #[must_use]
    pub fn with_config(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.integration_config.0.push((name.into(), value.into()));
        self
    }

    /// Sets the number of the attempt, from 1. For tests.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }
}

impl http::Request {
    /// The method. For tests.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The URL. For tests.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Names and values of the headers, in order. For tests.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The body. For tests.
    #[must_use]
    pub fn body_bytes(&self) -> &[u8] {
        &self.body
    }
}

impl http::Response {
    /// Adds a header. For tests.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl http::Error {
    /// Creates an error of this kind. For tests.
    #[must_use]
    pub fn of(kind: http::ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, message)
    }
}

impl ask::Request {
    /// The asked entity, as `Type/id`, and the action. For tests.
    #[must_use]
    pub fn target(&self) -> (String, &str) {
        (format!("{}/{}", self.entity_type, self.entity_id), &self.action)
    }
}

impl ask::Answer {
    /// Creates the answer of an entity that is in `state`. For tests.
    ///
    /// # Panics
    /// Panics if the fields cannot be written as JSON.
    #[must_use]
    pub fn of(sequence: u64, state: impl Into<String>, fields: impl Serialize) -> Self {
        let fields = to_raw_json(&fields).get().to_owned();
        Self { sequence, state: state.into(), fields }
    }
}

impl ask::Error {
    /// Creates an error of this kind. For tests.
    #[must_use]
    pub fn of(kind: ask::ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, message)
    }
}

impl signal::Notice {
    /// The entity that receives it, as `Type/id`, and its name. For tests.
    #[must_use]
    pub fn target(&self) -> (String, &str) {
        (format!("{}/{}", self.entity_type, self.entity_id), &self.name)
    }

    /// Its content as the text of a JSON value. For tests.
    #[must_use]
    pub fn payload_json(&self) -> &str {
        // A signal whose content cannot be written is not sent.
        self.payload.as_deref().unwrap_or_default()
    }
}

impl signal::Error {
    /// Creates an error of this kind. For tests.
    #[must_use]
    pub fn of(kind: signal::ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, message)
    }
}

fn to_raw_json(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("the value of a test can be written as JSON")
}
