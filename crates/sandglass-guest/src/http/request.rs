//! Builds and sends a request.

use std::pin::Pin;

use serde::Serialize;

use super::{Error, ErrorKind, Response};
use crate::backend;
use crate::glue::block_on;

/// A request. [`Request::send`] sends it, and so does `.await`; [`batch`](super::batch) sends several.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is sent or awaited"]
pub struct Request {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) response_max_bytes: usize,
    /// Why it cannot be sent; `None` if it can.
    pub(crate) invalid: Option<String>,
}

/// Largest response unless the request sets another limit. It is the host's limit for an integration that was
/// granted no other.
const RESPONSE_MAX_BYTES: usize = 1 << 20;

impl Request {
    /// A request with any method except `CONNECT` to an absolute http or https URL of at most 64 KiB.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            response_max_bytes: RESPONSE_MAX_BYTES,
            invalid: None,
        }
    }

    /// A `GET`.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// A `HEAD`.
    pub fn head(url: impl Into<String>) -> Self {
        Self::new("HEAD", url)
    }

    /// A `POST`.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// A `PUT`.
    pub fn put(url: impl Into<String>) -> Self {
        Self::new("PUT", url)
    }

    /// A `PATCH`.
    pub fn patch(url: impl Into<String>) -> Self {
        Self::new("PATCH", url)
    }

    /// A `DELETE`.
    pub fn delete(url: impl Into<String>) -> Self {
        Self::new("DELETE", url)
    }

    /// Adds a header; a request has at most 100. Headers that belong to the connection or to the host
    /// cannot be set: such a request is refused.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Adds the header `authorization: Bearer TOKEN`.
    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// Sets the body. In a batch of a core module it is UTF-8.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the body to `body` as JSON, and the header `content-type`. If it cannot be written as JSON, sending
    /// the request fails.
    pub fn json(mut self, body: impl Serialize) -> Self {
        match serde_json::to_vec(&body) {
            Ok(body) => self.body = body,
            Err(error) => {
                self.invalid = Some(format!("the body cannot be written as JSON: {error}"));
            }
        }
        self.header("content-type", "application/json")
    }

    /// Limits the body of the response, 1 MiB by default. The integration's limit also applies, so a
    /// larger value helps only if it was granted more. A core module reserves that much memory during
    /// the call.
    pub fn response_max_bytes(mut self, bytes: usize) -> Self {
        self.response_max_bytes = bytes;
        self
    }

    /// Sends the request, and waits for the whole response. A status of failure is not an error.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn send(self) -> Result<Response, Error> {
        block_on(self.transmit())
    }

    async fn transmit(self) -> Result<Response, Error> {
        if let Some(why) = self.invalid {
            return Err(Error::new(ErrorKind::InvalidRequest, why));
        }
        let max_bytes = self.response_max_bytes;
        let response = backend::send(self).await?;
        match response.body().len() {
            size if size > max_bytes => Err(Error::too_large(max_bytes)),
            _ => Ok(response),
        }
    }
}

/// Sends the request as [`Request::send`] does. With the feature `async`, other tasks of the handler go on
/// meanwhile.
impl IntoFuture for Request {
    type Output = Result<Response, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.transmit())
    }
}

impl Error {
    pub(crate) fn too_large(max_bytes: usize) -> Self {
        Self::new(ErrorKind::TooLarge, format!("the response is larger than {max_bytes} bytes"))
    }
}
