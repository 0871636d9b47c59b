//! Truncates long texts of attributes to OpenTelemetry's limit, on the exporter's thread.

use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SpanData;

/// Truncates the texts of all attributes of `span`, its events and its links to `most` characters.
pub(super) fn truncate_values(span: &mut SpanData, most: usize) {
    let of_events = span.events.events.iter_mut().map(|event| &mut event.attributes);
    let of_links = span.links.links.iter_mut().map(|link| &mut link.attributes);
    let all = std::iter::once(&mut span.attributes).chain(of_events).chain(of_links);
    all.flatten().for_each(|attribute| truncate(attribute, most));
}

fn truncate(attribute: &mut KeyValue, most: usize) {
    match &mut attribute.value {
        Value::String(text) => truncate_text(text, most),
        Value::Array(Array::String(texts)) => {
            texts.iter_mut().for_each(|text| truncate_text(text, most))
        }
        _ => {}
    }
}

fn truncate_text(text: &mut StringValue, most: usize) {
    if let Some((end, _)) = text.as_str().char_indices().nth(most) {
        *text = text.as_str()[..end].to_owned().into();
    }
}
