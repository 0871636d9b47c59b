//! Values that only scenario files have, such as entities and short waits.

use std::time::Duration;

use sandglass_model::EntityRef;
use sandglass_source::{Diagnostics, Table, toml_value, wrong_type};
use toml::de::DeValue;

use super::WAIT_MAX;

pub(super) fn text(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<String> {
    table.text(key, out).map(|text| text.to_string())
}

pub(super) fn required_text(
    table: &Table<'_, '_>,
    key: &str,
    out: &mut Diagnostics<'_>,
) -> Option<String> {
    table.required_text(key, out).map(|text| text.to_string())
}

/// An entity, written `TYPE/ID`.
pub(super) fn entity(
    table: &Table<'_, '_>,
    key: &str,
    out: &mut Diagnostics<'_>,
) -> Option<EntityRef> {
    let text = table.text(key, out)?;
    text.parse().map_err(|error| out.error(text.span(), format!("{error}"))).ok()
}

pub(super) fn required_entity(
    table: &Table<'_, '_>,
    key: &str,
    out: &mut Diagnostics<'_>,
) -> Option<EntityRef> {
    table.require(key, out);
    entity(table, key, out)
}

/// A whole number of at least 0.
pub(super) fn count(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
    table.count(key, 0..=u64::MAX, out)
}

pub(super) fn number(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<f64> {
    let value = table.value(key)?;
    let number = match value.get_ref() {
        DeValue::Integer(_) | DeValue::Float(_) => toml_value::to_json(value.get_ref()).as_f64(),
        _ => None,
    };
    if number.is_none() {
        out.error(&value.span(), wrong_type(key, &table.label, "a number", value));
    }
    number
}

/// A duration from zero to [`WAIT_MAX`].
pub(super) fn duration(
    table: &Table<'_, '_>,
    key: &str,
    out: &mut Diagnostics<'_>,
) -> Option<Duration> {
    table.duration_within(key, Duration::ZERO..=WAIT_MAX, out)
}
