//! Spans, events and attributes whose names a guest chose. The caller bounds their number and size.

use opentelemetry::KeyValue;
use opentelemetry::trace::Span as _;

use super::{Kind, Span, Value};

/// An attribute's name, chosen by a guest, and its value.
pub type GuestAttribute<'a> = (&'a str, Value<'a>);

fn key_values(attributes: &[GuestAttribute<'_>]) -> Vec<KeyValue> {
    attributes
        .iter()
        .map(|(name, value)| KeyValue::new((*name).to_owned(), value.owned()))
        .collect()
}

impl Span {
    /// Starts a child of this span, as [`Span::child`] does.
    pub fn guest_child(&self, name: &str, kind: Kind, attributes: &[GuestAttribute<'_>]) -> Self {
        if self.0.is_none() {
            return Self(None);
        }
        self.start_child(name.to_owned().into(), kind, None, key_values(attributes).into_iter())
    }

    /// Adds an event, as [`Span::event`] does.
    pub fn guest_event(&self, name: &str, attributes: &[GuestAttribute<'_>]) {
        let Some(live) = &self.0 else { return };
        live.with(|span| span.add_event(name.to_owned(), key_values(attributes)));
    }

    /// Adds attributes, as [`Span::set`] does.
    pub fn set_guest_attributes(&self, attributes: &[GuestAttribute<'_>]) {
        let Some(live) = &self.0 else { return };
        live.with(|span| span.set_attributes(key_values(attributes)));
    }
}
