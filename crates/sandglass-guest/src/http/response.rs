//! The response to a request.

use serde::de::DeserializeOwned;

use super::{Error, ErrorKind};
use crate::context::read_body;

/// A response with its whole body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// Creates a response, for tests of code that processes one.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the status is 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Returns the response if its status is a success.
    ///
    /// # Errors
    /// [`ErrorKind::Status`] if it is not.
    pub fn error_for_status(self) -> Result<Self, Error> {
        let status = self.status;
        if self.is_success() {
            return Ok(self);
        }
        Err(Error::new(ErrorKind::Status(status), format!("the server answered {status}")))
    }

    /// Names and values of the headers, in order; empty in a core module.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The first header of this name, ignoring case; always `None` in a core module.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Takes the body out of the response.
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The body as text.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedBody`] if it is not UTF-8.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.body).map_err(|error| {
            let position = error.valid_up_to();
            let why = format!("the response's body is not UTF-8 (at byte {position})");
            Error::new(ErrorKind::UnexpectedBody, why)
        })
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedBody`] if it is not a valid `T`; the message names the field.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        read_body(&self.body).map_err(|why| {
            let why = format!("the response's body does not have the expected form: {why}");
            Error::new(ErrorKind::UnexpectedBody, why)
        })
    }
}
