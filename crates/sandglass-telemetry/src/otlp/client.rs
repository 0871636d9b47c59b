//! The HTTP client that sends spans. It wraps that of reqwest only to remember why the last request failed,
//! because the exporter reports no reason, and to follow no redirects.

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

/// Sends requests, and follows no redirects: the headers, which may contain a key, and the spans are only
/// for the configured collector.
#[derive(Debug)]
pub(super) struct Client {
    inner: blocking::Client,
    failure: LastFailure,
}

/// Why the last request failed, with the address of the collector. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct LastFailure {
    /// Scheme, host and port, without the path, which may contain a key.
    pub(super) collector: Arc<str>,
    reason: Arc<Mutex<Option<String>>>,
}

impl Client {
    /// A client whose requests take at most `timeout` each, and which reports failures to `failure`.
    #[allow(clippy::disallowed_methods, reason = "the thread ends with this function")]
    pub(super) fn new(timeout: Duration, failure: LastFailure) -> Result<Self, String> {
        // A blocking client cannot be created on a thread of an async runtime.
        let client = thread::spawn(move || {
            blocking::Client::builder().timeout(timeout).redirect(Policy::none()).build()
        });
        let inner = client.join().map_err(|_| "the HTTP client panicked".to_owned())?;
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
            let response = self.inner.send_bytes(request).await;
            self.failure.set(match &response {
                Ok(response) if response.status().is_success() => None,
                Ok(response) if response.status().is_redirection() => Some(format!(
                    "it responded with {}; redirects are not followed",
                    response.status()
                )),
                Ok(response) => Some(format!("it responded with {}", response.status())),
                Err(error) => Some(reason(&**error)),
            });
            response
        })
    }
}

impl LastFailure {
    /// No failure yet, for requests to `endpoint`.
    pub(super) fn of(endpoint: &str) -> Self {
        let uri = endpoint.parse::<Uri>().ok();
        let collector = uri.and_then(|uri| {
            let host = uri.authority()?.as_str().rsplit('@').next()?.to_owned();
            Some(format!("{}://{host}", uri.scheme_str()?))
        });
        // The address was checked when it was read.
        let collector = collector.unwrap_or_else(|| "its address".to_owned());
        Self { collector: collector.into(), reason: Arc::default() }
    }

    fn set(&self, reason: Option<String>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// A message with the reason why the last request failed, or else `otherwise`.
    pub(super) fn or(&self, otherwise: &dyn std::fmt::Display) -> String {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let collector = &self.collector;
        match &*reason {
            Some(reason) => format!("the collector at {collector}: {reason}"),
            None => format!("the collector at {collector}: {otherwise}"),
        }
    }
}

/// `error`, followed by its sources.
fn chain<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| StdError::source(*error))
}

/// The root cause of `error` as a message.
fn reason(error: &(dyn StdError + 'static)) -> String {
    let is_timeout = |error: &(dyn StdError + 'static)| {
        error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_timeout)
            || kind(error) == Some(io::ErrorKind::TimedOut)
    };
    if chain(error).any(is_timeout) {
        return "it did not respond in time".to_owned();
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

/// The TLS error that `error` is or wraps.
fn tls<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e rustls::Error> {
    // The source of an I/O error is the source of the wrapped error, not the wrapped error itself.
    let wrapped = || error.downcast_ref::<io::Error>()?.get_ref();
    error.downcast_ref().or_else(|| tls(wrapped()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_contain_neither_credentials_nor_the_path() {
        let failure = LastFailure::of("https://user:secret@collector:4318/a-key/v1/traces");
        assert_eq!(&*failure.collector, "https://collector:4318");
        assert_eq!(failure.or(&"gone"), "the collector at https://collector:4318: gone");
    }
}
