//! A request, as it is put together.

use serde::Serialize;

use super::{Error, ErrorKind, Response};
use crate::backend;

/// A request. It is sent by [`Request::send`], or with others by [`batch`](super::batch).
#[derive(Clone, Debug)]
#[must_use = "a request is sent by `send`"]
pub struct Request {
    pub(crate) method: String,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) response_max_bytes: usize,
    /// Why it can't be sent.
    pub(crate) invalid: Option<String>,
}

/// Largest response of a request that says nothing else: the host's own bound for an
/// integration that was granted no other.
const RESPONSE_MAX_BYTES: usize = 1 << 20;

impl Request {
    /// A request by any method but `CONNECT`, to an absolute URL of the scheme http or
    /// https, of at most 64 KiB.
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

    /// With one more header; at most 100. Those that belong to the connection or to the
    /// host can't be set: the request is then refused.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With the header `authorization: Bearer TOKEN`.
    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// With `body`. In a batch it is a text, for core modules.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// With what `body` serializes to as its body, and its type as a header. What can't be
    /// written as JSON makes the request fail when it is sent.
    pub fn json(mut self, body: impl Serialize) -> Self {
        match serde_json::to_vec(&body) {
            Ok(body) => self.body = body,
            Err(error) => {
                self.invalid = Some(format!("the body can't be written as JSON: {error}"));
            }
        }
        self.header("content-type", "application/json")
    }

    /// Takes a response of at most this many bytes: 1 MiB unless this is called. The
    /// integration's own bound holds besides; this is for one that was granted more. A core
    /// module sets as much memory aside while the call lasts.
    pub fn response_max_bytes(mut self, bytes: usize) -> Self {
        self.response_max_bytes = bytes;
        self
    }

    /// Sends it, and waits for the whole response. Any status is an answer.
    ///
    /// # Errors
    /// It can't be sent as it is, may not be sent there, failed, took too long, or its
    /// response is too large.
    pub fn send(self) -> Result<Response, Error> {
        if let Some(why) = self.invalid {
            return Err(Error::new(ErrorKind::InvalidRequest, why));
        }
        let most = self.response_max_bytes;
        let response = backend::send(self)?;
        match response.body().len() {
            size if size > most => Err(Error::too_large(most)),
            _ => Ok(response),
        }
    }
}

impl Error {
    pub(crate) fn too_large(most: usize) -> Self {
        Self::new(ErrorKind::TooLarge, format!("the response is larger than {most} bytes"))
    }
}
