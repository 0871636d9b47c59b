//! The handler's own spans, children of its span in the trace.
//!
//! A handler may have 256 spans, with 1 MiB of names and values in all; further spans are counted and
//! dropped without an error. Names are cut at 128 bytes, values at 4 KiB. Attributes serialize to an
//! object of at most 64 KiB; `()` means none.

use serde::Serialize;

use crate::host_error::to_json;
use crate::{HostError, backend};

/// An open span. Dropping it ends it. If it is open when the handler ends, it is ended as
/// unfinished.
#[derive(Debug)]
#[must_use = "dropping a span ends it"]
pub struct Span {
    open: Option<backend::Span>,
}

/// Starts a span, as a child of the innermost open span, or of the handler's span if none is open.
///
/// # Errors
/// Errors if the name is empty.
pub fn start(name: &str) -> Result<Span, HostError> {
    start_with(name, ())
}

/// Starts a span with attributes.
///
/// # Errors
/// As [`start`]; also if the attributes are not an object, or too large.
pub fn start_with(name: &str, attributes: impl Serialize) -> Result<Span, HostError> {
    let span = backend::start_span(name, &object(attributes)?)?;
    Ok(Span { open: Some(span) })
}

impl Span {
    /// Adds an event.
    ///
    /// # Errors
    /// Errors if the name is empty, or if the attributes are not an object, or too large.
    pub fn event(&self, name: &str, attributes: impl Serialize) -> Result<(), HostError> {
        self.open()?.add_event(name, &object(attributes)?)
    }

    /// Sets attributes.
    ///
    /// # Errors
    /// Errors if they are not an object, or too large.
    pub fn set(&self, attributes: impl Serialize) -> Result<(), HostError> {
        self.open()?.set_attributes(&object(attributes)?)
    }

    /// Ends the span.
    pub fn end(mut self) {
        self.close(None);
    }

    /// Ends the span as failed, with the reason.
    pub fn fail(mut self, reason: &str) {
        self.close(Some(reason));
    }

    fn open(&self) -> Result<&backend::Span, HostError> {
        self.open.as_ref().ok_or_else(|| HostError::new("the span has ended"))
    }

    fn close(&mut self, error: Option<&str>) {
        if let Some(span) = self.open.take() {
            span.end(error);
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.close(None);
    }
}

fn object(attributes: impl Serialize) -> Result<String, HostError> {
    let attributes = to_json("the attributes", &attributes)?;
    match attributes.as_str() {
        "null" => Ok("{}".to_owned()),
        object if object.starts_with('{') => Ok(attributes),
        _ => Err(HostError::new("the attributes must be an object")),
    }
}
