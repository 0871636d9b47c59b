//! What stands in for the host in unit tests of a handler, on the machine that they run on.
//!
//! The function that is the handler stays a function, so a test calls it. What it asks of
//! the host is answered by a [`Host`] of the test's own:
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
//! let (answer, told) = host.run(|| weather("Bergen"));
//! assert_eq!(answer.unwrap(), "rain by noon");
//! assert_eq!(told.lines[0].text, "asking for Bergen");
//! ```
//!
//! It enforces nothing: no deadline, no grants and no bounds. How a handler ends at its
//! deadline is seen in a real host alone.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::backend::HOST;
use crate::context::Config;
use crate::log::Level;
use crate::{Context, HostError, ask, http};

type Http = Rc<dyn Fn(&http::Request) -> Result<http::Response, http::Error>>;
type Asks = Rc<dyn Fn(&ask::Request) -> Result<ask::Answer, ask::Error>>;

/// A host of a test's own. A handler that is called without one has a host that was given
/// nothing: it has no secrets, answers no requests, and leaves a minute.
pub struct Host {
    pub(crate) remaining: Duration,
    pub(crate) stop_after: Option<u32>,
    pub(crate) now_ms: Option<i64>,
    pub(crate) secrets: BTreeMap<String, String>,
    scratch: Option<BTreeMap<String, Vec<u8>>>,
    pub(crate) http: Option<Http>,
    pub(crate) asks: Option<Asks>,
    pub(crate) told: Told,
}

/// What a handler told while it ran, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
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
    /// How much it matters.
    pub level: Level,
    /// The line.
    pub text: String,
    /// Its fields, where it has some.
    pub fields: Option<Value>,
}

/// What is left of the budget of a test that says nothing else: more than it takes.
const REMAINING: Duration = Duration::from_secs(60);

impl Host {
    /// A host that was given nothing.
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
            told: Told::default(),
        }
    }

    /// With this much of the budget left, however long the handler takes.
    #[must_use]
    pub fn remaining(mut self, remaining: Duration) -> Self {
        self.remaining = remaining;
        self
    }

    /// Says `true` to `deadline::should_stop` once it has said `false` this often.
    #[must_use]
    pub fn stop_after(mut self, times: u32) -> Self {
        self.stop_after = Some(times);
        self
    }

    /// With this wall time, in milliseconds since 1970 (UTC), in the place of the machine's.
    #[must_use]
    pub fn now_ms(mut self, now_ms: i64) -> Self {
        self.now_ms = Some(now_ms);
        self
    }

    /// With a secret.
    #[must_use]
    pub fn secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.secrets.insert(name.into(), value.into());
        self
    }

    /// With a scratch, of any size.
    #[must_use]
    pub fn with_scratch(mut self) -> Self {
        self.scratch = Some(BTreeMap::new());
        self
    }

    /// Answers requests by `answer`.
    #[must_use]
    pub fn http(
        mut self,
        answer: impl Fn(&http::Request) -> Result<http::Response, http::Error> + 'static,
    ) -> Self {
        self.http = Some(Rc::new(answer));
        self
    }

    /// Answers asks by `answer`.
    #[must_use]
    pub fn asks(
        mut self,
        answer: impl Fn(&ask::Request) -> Result<ask::Answer, ask::Error> + 'static,
    ) -> Self {
        self.asks = Some(Rc::new(answer));
        self
    }

    /// Runs `handler` with this host, on this thread, and says what it told.
    pub fn run<T>(self, handler: impl FnOnce() -> T) -> (T, Told) {
        // Also after a panic, which may be what a test wants.
        struct Before(Option<Host>);
        impl Drop for Before {
            fn drop(&mut self) {
                if let Some(host) = self.0.take() {
                    HOST.replace(host);
                }
            }
        }
        let mut before = Before(Some(HOST.replace(self)));
        let answer = handler();
        let host = before.0.take().map(|host| HOST.replace(host));
        (answer, host.map(|host| host.told).unwrap_or_default())
    }

    pub(crate) fn scratch(
        &mut self,
        key: &str,
    ) -> Result<&mut BTreeMap<String, Vec<u8>>, HostError> {
        if key.is_empty() || key.len() > 256 {
            let size = key.len();
            return Err(HostError::new(format!("a key has from 1 to 256 bytes, and not {size}")));
        }
        self.scratch.as_mut().ok_or_else(|| {
            HostError::new("the test's host granted no scratch: `Host::with_scratch` does")
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
            .field("told", &self.told)
            .finish_non_exhaustive()
    }
}

/// A context for tests: of the entity `Test/1`, which took the action `Begin`, without
/// params, state and configuration.
#[must_use]
pub fn context() -> Context {
    Context {
        tenant: "default".to_owned(),
        entity_type: "Test".to_owned(),
        entity_id: "1".to_owned(),
        trigger_action: "Begin".to_owned(),
        trigger_params: json_of(&serde_json::json!({})),
        entity_state: json_of(&serde_json::json!({ "fields": {} })),
        integration_config: Config::default(),
        trace_id: "0".repeat(32),
        agent_id: None,
        session_id: None,
        dispatch_id: "0".repeat(32),
        attempt: 1,
    }
}

impl Context {
    /// With these params of the action that started the handler. For tests.
    ///
    /// # Panics
    /// They can't be written as JSON.
    #[must_use]
    pub fn with_params(mut self, params: impl Serialize) -> Self {
        self.trigger_params = json_of(&params);
        self
    }

    /// With this state of the entity. For tests.
    ///
    /// # Panics
    /// It can't be written as JSON.
    #[must_use]
    pub fn with_state(mut self, state: impl Serialize) -> Self {
        self.entity_state = json_of(&state);
        self
    }

    /// With a value of the integration's configuration. For tests.
    #[must_use]
    pub fn with_config(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.integration_config.0.push((name.into(), value.into()));
        self
    }

    /// As the attempt of this number, from 1. For tests.
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

    /// Names and values of the headers, in their order. For tests.
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
    /// With one more header. For tests.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl http::Error {
    /// An error of this kind. For tests.
    #[must_use]
    pub fn of(kind: http::ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, message)
    }
}

impl ask::Request {
    /// Who is asked, as `Type/id`, and for what action. For tests.
    #[must_use]
    pub fn target(&self) -> (String, &str) {
        (format!("{}/{}", self.entity_type, self.entity_id), &self.action)
    }
}

impl ask::Answer {
    /// An answer of an entity that is in `state`. For tests.
    ///
    /// # Panics
    /// The fields can't be written as JSON.
    #[must_use]
    pub fn of(sequence: u64, state: impl Into<String>, fields: impl Serialize) -> Self {
        let fields = json_of(&fields).get().to_owned();
        Self { sequence, state: state.into(), fields }
    }
}

impl ask::Error {
    /// An error of this kind. For tests.
    #[must_use]
    pub fn of(kind: ask::ErrorKind, message: impl Into<String>) -> Self {
        Self::new(kind, message)
    }
}

fn json_of(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("what a test gives can be written as JSON")
}
