//! The HTTP client that sends spans: it goes nowhere but to the address that it was given,
//! and keeps why the last request came to nothing, which the exporter itself doesn't tell.

use std::error::Error as StdError;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use hyper::Uri;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::blocking;
use reqwest::redirect::Policy;

/// Sends requests, and follows no redirect: the headers, with a key among them, and the spans
/// are for the collector that was named and for nobody that it names.
#[derive(Debug)]
pub(super) struct Client {
    inner: blocking::Client,
    failure: LastFailure,
}

/// Why the last request came to nothing, with whom it was sent to. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct LastFailure {
    /// Scheme, host and port: a path may hold a key.
    collector: Arc<str>,
    reason: Arc<Mutex<Option<String>>>,
}

impl Client {
    /// A client whose requests take at most `timeout` each, and which tells `failure`.
    #[allow(clippy::disallowed_methods, reason = "the thread ends with this function")]
    pub(super) fn new(timeout: Duration, failure: LastFailure) -> Result<Self, String> {
        // A blocking client can't be made on a thread of an async runtime.
        let made = thread::spawn(move || {
            blocking::Client::builder().timeout(timeout).redirect(Policy::none()).build()
        });
        let inner = made.join().map_err(|_| "the HTTP client panicked".to_owned())?;
        Ok(Self { inner: inner.map_err(|error| reason(&error))?, failure })
    }
}

impl HttpClient for Client {
    fn send_bytes<'s, 'f>(
        &'s self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let answer = self.inner.send_bytes(request).await;
            self.failure.set(match &answer {
                Ok(response) if response.status().is_success() => None,
                Ok(response) if response.status().is_redirection() => {
                    Some(format!("it answered {}: redirects are not followed", response.status()))
                }
                Ok(response) => Some(format!("it answered {}", response.status())),
                Err(error) => Some(reason(&**error)),
            });
            answer
        })
    }
}

impl LastFailure {
    /// None yet, of requests to `endpoint`.
    pub(super) fn of(endpoint: &str) -> Self {
        let uri = endpoint.parse::<Uri>().ok();
        let collector = uri.and_then(|uri| {
            let host = uri.authority()?.as_str().rsplit('@').next()?.to_owned();
            Some(format!("{}://{host}", uri.scheme_str()?))
        });
        // The address was checked where it was read.
        let collector = collector.unwrap_or_else(|| "its address".to_owned());
        Self { collector: collector.into(), reason: Arc::default() }
    }

    fn set(&self, reason: Option<String>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Where the collector is.
    pub(super) fn collector(&self) -> &str {
        &self.collector
    }

    /// Why the last request failed, or else `otherwise`, in words.
    pub(super) fn or(&self, otherwise: &dyn std::fmt::Display) -> String {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let collector = &self.collector;
        match &*reason {
            Some(reason) => format!("the collector at {collector}: {reason}"),
            None => format!("the collector at {collector}: {otherwise}"),
        }
    }
}

/// `error`, and what caused it, one after the other.
fn chain<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| StdError::source(*error))
}

/// What is at the bottom of `error`, in words.
fn reason(error: &(dyn StdError + 'static)) -> String {
    let is_timeout = |error: &(dyn StdError + 'static)| {
        error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_timeout)
            || kind(error) == Some(io::ErrorKind::TimedOut)
    };
    if chain(error).any(is_timeout) {
        return "it did not answer in time".to_owned();
    }
    if chain(error).any(|error| kind(error) == Some(io::ErrorKind::ConnectionRefused)) {
        return "it refused the connection".to_owned();
    }
    if let Some(tls) = chain(error).find_map(tls) {
        return format!("TLS: {tls}");
    }
    chain(error).last().unwrap_or(error).to_string()
}

fn kind(error: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    error.downcast_ref::<io::Error>().map(io::Error::kind)
}

/// The error of TLS that `error` is, or that is wrapped in it.
fn tls<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e rustls::Error> {
    // What an error of I/O wraps isn't its source, but the source of its source.
    let wrapped = || error.downcast_ref::<io::Error>()?.get_ref();
    error.downcast_ref().or_else(|| tls(wrapped()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_a_login_nor_a_path_is_told() {
        let failure = LastFailure::of("https://user:secret@collector:4318/a-key/v1/traces");
        assert_eq!(failure.collector(), "https://collector:4318");
        assert_eq!(failure.or(&"gone"), "the collector at https://collector:4318: gone");
    }
}
