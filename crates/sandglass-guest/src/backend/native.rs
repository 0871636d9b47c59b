//! The backend for native unit tests: the simulated host of a test serves the host functions.

use std::cell::RefCell;

use crate::host_error::to_json;
use crate::log::Level;
use crate::metrics::Kind;
use crate::testing::{Host, Line};
use crate::{Context, HostError, ask, http, signal};

thread_local! {
    /// The simulated host of this thread.
    pub(crate) static HOST: RefCell<Host> = RefCell::new(Host::new());
}

fn with<T>(act: impl FnOnce(&mut Host) -> T) -> T {
    HOST.with_borrow_mut(act)
}

pub(crate) fn read_context_json(context: &Context) -> Result<String, HostError> {
    to_json("the context", context)
}

#[allow(clippy::disallowed_methods, reason = "the machine's time, unless a test sets another")]
pub(crate) fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let real = || since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
    with(|host| host.now_ms).unwrap_or_else(real)
}

pub(crate) fn remaining_ms() -> u64 {
    with(|host| u64::try_from(host.remaining.as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn should_stop() -> bool {
    with(|host| match &mut host.stop_after {
        None => false,
        Some(0) => true,
        Some(times) => {
            *times -= 1;
            false
        }
    })
}

pub(crate) fn log(level: Level, line: &str) {
    with(|host| host.telemetry.lines.push(Line { level, text: line.to_owned(), fields: None }));
}

pub(crate) fn log_fields(level: Level, line: &str, fields: &str) -> Result<(), HostError> {
    let fields = Some(parse(fields)?);
    with(|host| host.telemetry.lines.push(Line { level, text: line.to_owned(), fields }));
    Ok(())
}

pub(crate) fn wide_event(event: &str) -> Result<(), HostError> {
    let event = parse(event)?;
    with(|host| host.telemetry.wide_events.push(event));
    Ok(())
}

pub(crate) fn progress(progress: &str) -> Result<(), HostError> {
    let progress = parse(progress)?;
    with(|host| host.telemetry.progress.push(progress));
    Ok(())
}

pub(crate) fn status(line: &str) {
    with(|host| host.telemetry.statuses.push(line.to_owned()));
}

pub(crate) async fn secret(name: &str) -> Result<String, HostError> {
    with(|host| host.secrets.get(name).cloned()).ok_or_else(|| {
        HostError::new(format!(
            "the test's host has no secret `{name}`; add it with `Host::secret`"
        ))
    })
}

pub(crate) fn metric(
    name: &str,
    _kind: Kind,
    value: f64,
    _labels: &[(&str, &str)],
) -> Result<(), HostError> {
    with(|host| host.telemetry.metrics.push((name.to_owned(), value)));
    Ok(())
}

/// A span, which is discarded.
#[derive(Debug)]
pub(crate) struct Span;

pub(crate) fn start_span(name: &str, _attributes: &str) -> Result<Span, HostError> {
    if name.trim().is_empty() {
        return Err(HostError::new("the span has no name"));
    }
    Ok(Span)
}

impl Span {
    #[allow(clippy::unused_self, reason = "the other backends need it")]
    pub(crate) fn add_event(&self, name: &str, _attributes: &str) -> Result<(), HostError> {
        if name.trim().is_empty() {
            return Err(HostError::new("the event has no name"));
        }
        Ok(())
    }

    #[allow(clippy::unused_self, reason = "the other backends need it")]
    pub(crate) fn set_attributes(&self, _attributes: &str) -> Result<(), HostError> {
        Ok(())
    }

    pub(crate) fn end(self, _error: Option<&str>) {}
}

pub(crate) fn scratch_get(key: &str) -> Result<Option<Vec<u8>>, HostError> {
    with(|host| Ok(host.scratch(key)?.get(key).cloned()))
}

pub(crate) fn scratch_set(key: &str, value: &[u8]) -> Result<(), HostError> {
    with(|host| {
        host.scratch(key)?.insert(key.to_owned(), value.to_vec());
        Ok(())
    })
}

pub(crate) fn scratch_delete(key: &str) -> Result<bool, HostError> {
    with(|host| Ok(host.scratch(key)?.remove(key).is_some()))
}

pub(crate) async fn send(request: http::Request) -> Result<http::Response, http::Error> {
    // Called without a borrow of the host, because the closure may use the host itself.
    let answer = with(|host| host.http.clone());
    match answer {
        Some(answer) => answer(&request),
        None => Err(http::Error::new(
            http::ErrorKind::NotAllowed,
            "the test's host answers no requests; set an answer with `Host::http`",
        )),
    }
}

pub(crate) async fn sleep(_duration: std::time::Duration) {}

pub(crate) fn send_batch(
    requests: Vec<http::Request>,
) -> Result<Vec<Result<http::Response, http::Error>>, http::Error> {
    Ok(requests.into_iter().map(http::Request::send).collect())
}

pub(crate) async fn ask(request: &ask::Request) -> Result<ask::Answer, ask::Error> {
    let answer = with(|host| host.asks.clone());
    match answer {
        Some(answer) => answer(request),
        None => Err(ask::Error::new(
            ask::ErrorKind::NotAllowed,
            "the test's host answers no asks; set an answer with `Host::asks`",
        )),
    }
}

pub(crate) async fn signal(notice: &signal::Notice) -> Result<(), signal::Error> {
    let answer = with(|host| host.signals.clone());
    match answer {
        Some(answer) => answer(notice),
        None => Err(signal::Error::new(
            signal::ErrorKind::NotAllowed,
            "the test's host takes no signals; set an answer with `Host::signals`",
        )),
    }
}

fn parse(json: &str) -> Result<serde_json::Value, HostError> {
    serde_json::from_str(json).map_err(|error| HostError::new(error.to_string()))
}
