//! What a server answered.

use serde::de::DeserializeOwned;

use super::{Error, ErrorKind};
use crate::context::read_body;

/// A whole response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// A response of no server's: for tests of what comes after one.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether the status is one of success, from 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The response, where its status is one of success.
    ///
    /// # Errors
    /// It isn't: an error of the kind [`ErrorKind::Status`].
    pub fn error_for_status(self) -> Result<Self, Error> {
        let status = self.status;
        if self.is_success() {
            return Ok(self);
        }
        Err(Error::new(ErrorKind::Status(status), format!("the server answered {status}")))
    }

    /// Names and values of the headers, in their order. A core module is told of none.
    #[must_use]
    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    /// The first header of this name, in any case. A core module is told of none.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let (_, value) = headers.find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(value)
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, to keep.
    #[must_use]
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// The body as a text.
    ///
    /// # Errors
    /// It is no UTF-8: an error of the kind [`ErrorKind::UnexpectedBody`].
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.body).map_err(|error| {
            let place = error.valid_up_to();
            let why = format!("the response's body is no UTF-8 (byte {place})");
            Error::new(ErrorKind::UnexpectedBody, why)
        })
    }

    /// What the body says as JSON.
    ///
    /// # Errors
    /// It is no JSON, or not as `T` has it: an error of the kind
    /// [`ErrorKind::UnexpectedBody`], which names the field.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        read_body(&self.body).map_err(|why| {
            let why = format!("the response's body is not the JSON that was wanted: {why}");
            Error::new(ErrorKind::UnexpectedBody, why)
        })
    }
}
