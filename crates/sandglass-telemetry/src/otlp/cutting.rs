//! Cuts long texts of attributes, as OpenTelemetry's limits ask for, on the exporter's thread.

use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::SpanData;

/// Cuts the texts of all attributes of `span`, of its events and of its links to `most`
/// characters.
pub(super) fn cut_values(span: &mut SpanData, most: usize) {
    let of_events = span.events.events.iter_mut().map(|event| &mut event.attributes);
    let of_links = span.links.links.iter_mut().map(|link| &mut link.attributes);
    let all = std::iter::once(&mut span.attributes).chain(of_events).chain(of_links);
    all.flatten().for_each(|attribute| cut(attribute, most));
}

fn cut(attribute: &mut KeyValue, most: usize) {
    match &mut attribute.value {
        Value::String(text) => cut_text(text, most),
        Value::Array(Array::String(texts)) => {
            texts.iter_mut().for_each(|text| cut_text(text, most))
        }
        _ => {}
    }
}

fn cut_text(text: &mut StringValue, most: usize) {
    if let Some((end, _)) = text.as_str().char_indices().nth(most) {
        *text = text.as_str()[..end].to_owned().into();
    }
}
