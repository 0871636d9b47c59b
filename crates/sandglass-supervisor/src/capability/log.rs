//! The lines that guests log, by a host call or to WASI's standard output and error: bounded in
//! number and size, each one line, without control characters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_model::text::is_unprintable;
use sandglass_model::{DispatchId, TelemetryDropped, TraceContext};
use sandglass_telemetry::metrics::DroppedTelemetry;
use sandglass_telemetry::trace::names;
use serde_json::Value;

use super::Guest;
use super::run_telemetry::RunTelemetry;
use crate::covered;
use crate::secret::REDACTED;

/// Most lines of one run. Further ones are counted and dropped: a flood must not fill a disk or slow
/// down other handlers.
const MAX_LINES: u32 = 10_000;

/// Longest line, in bytes; the rest of it is cut.
pub const LINE_MAX_BYTES: u32 = 8 * 1024;

/// Largest fields of a line, and largest wide event, in bytes of JSON; data belongs in the result.
pub const FIELDS_MAX_BYTES: u32 = 64 * 1024;

/// The level of a guest's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is doubtful.
    Warn,
    /// Progress, for operators.
    Info,
    /// Details, for debugging.
    Debug,
    /// All details.
    Trace,
}

impl Level {
    /// The level of this name, in any case; `Info` for an unknown name.
    pub fn of(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "error" | "fatal" => Self::Error,
            "warn" | "warning" => Self::Warn,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => Self::Info,
        }
    }

    /// The level of this number in OpenWOP; `Info` for an unknown number.
    pub const fn numbered(number: i32) -> Self {
        match number {
            0 => Self::Trace,
            1 => Self::Debug,
            3 => Self::Warn,
            4 => Self::Error,
            _ => Self::Info,
        }
    }
}

/// The log of one run. Clones write to the same log.
#[derive(Clone, Debug)]
pub struct GuestLog {
    telemetry: Arc<RunTelemetry>,
    dispatch: DispatchId,
    trace: TraceContext,
}

// Lines are written at once, within the rate of the tenant.
covered!(GuestLog: telemetry, dispatch, trace);

impl GuestLog {
    /// The log of one run.
    pub fn new(
        telemetry: Arc<RunTelemetry>,
        (dispatch, trace): (DispatchId, TraceContext),
    ) -> Self {
        Self { telemetry, dispatch, trace }
    }

    /// Whether further lines are dropped, so that the caller need not read them.
    pub fn is_full(&self) -> bool {
        self.telemetry.lines.load(Ordering::Relaxed) > MAX_LINES
    }

    /// Writes a line, within the rates of the tenant.
    pub fn write(&self, level: Level, message: String) {
        if self.has_room() {
            self.emit_within_rate(level, &self.line(message), None);
        }
    }

    /// Writes the start of a line whose rest is not kept, as [`GuestLog::write`] does.
    pub fn write_start(&self, level: Level, start: String) {
        self.write(level, self.telemetry.redactor.start_of_text(start));
    }

    /// How much telemetry of the run was dropped, lines and everything else.
    pub fn dropped(&self) -> TelemetryDropped {
        self.telemetry.dropped()
    }

    /// Writes a line with fields as JSON, within the rates of the tenant.
    pub fn write_fields(&self, level: Level, message: String, fields: Value) {
        if self.has_room() {
            let fields = one_line(&self.telemetry.redactor.json(fields).to_string());
            self.emit_within_rate(level, &self.line(message), Some(&fields));
        }
    }

    /// Writes a line if the rate of the tenant allows it. The first line of a run that is dropped is reported.
    fn emit_within_rate(&self, level: Level, message: &str, fields: Option<&str>) {
        let bytes = message.len() + fields.map_or(0, str::len);
        if self.telemetry.rates.log.take(&self.telemetry.tenant, bytes) {
            return self.emit(level, message, fields);
        }
        self.telemetry.drop_one(DroppedTelemetry::LogLine);
        if !self.telemetry.is_over_rate.swap(true, Ordering::Relaxed) {
            let dropped = "the handlers of this tenant log too much: lines are dropped";
            self.emit(Level::Warn, dropped, None);
        }
    }

    /// Counts one more line, and returns whether it may be written. The first excess line is reported.
    fn has_room(&self) -> bool {
        let more = |lines: u32| Some(lines.saturating_add(1));
        let lines = &self.telemetry.lines;
        // The closure always returns a value, so this never fails.
        let before = lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        let line = before.unwrap_or_else(|lines| lines).saturating_add(1);
        if line == MAX_LINES + 1 {
            let dropped = "the guest logs too much: its further lines are dropped";
            self.emit(Level::Warn, dropped, None);
        }
        if line > MAX_LINES {
            self.telemetry.drop_one(DroppedTelemetry::LogLine);
        }
        line <= MAX_LINES
    }

    fn line(&self, message: String) -> String {
        cut(&self.telemetry.redactor.text(message), LINE_MAX_BYTES)
    }

    fn emit(&self, level: Level, message: &str, fields: Option<&str>) {
        let Self { telemetry, dispatch, trace, .. } = self;
        let integration = &telemetry.integration;
        let (trace_id, span_id) = (trace.trace_id, trace.span_id);
        macro_rules! emit {
            ($level:ident) => {
                tracing::event!(
                    target: "sandglass::guest", tracing::Level::$level,
                    %integration, %dispatch, %trace_id, %span_id, fields, "{message}"
                )
            };
        }
        match level {
            Level::Error => emit!(ERROR),
            Level::Warn => emit!(WARN),
            Level::Info => emit!(INFO),
            Level::Debug => emit!(DEBUG),
            Level::Trace => emit!(TRACE),
        }
    }
}

impl Guest {
    /// Takes a wide event, which describes a whole piece of work. It becomes a line of the log, and an
    /// event of the dispatch's span.
    pub fn wide_event(&mut self, event: serde_json::Map<String, Value>) {
        let operation = event.get("operation").and_then(Value::as_str);
        let name = operation.unwrap_or(names::WIDE_EVENT).to_owned();
        let failed = event.get("success") == Some(&Value::Bool(false));
        let level = if failed { Level::Warn } else { Level::Info };
        self.spans.add_dispatch_event(&name, flatten(&event));
        self.log.write_fields(level, name, Value::Object(event));
    }
}

/// Flattens a wide event into attributes: the members of its groups by their own names, and the rest.
fn flatten(event: &serde_json::Map<String, Value>) -> Vec<(String, Value)> {
    const GROUPS: [&str; 3] = ["tags", "attributes", "measurements"];
    let mut parts = Vec::new();
    for (name, value) in event {
        match value {
            Value::Object(group) if GROUPS.contains(&name.as_str()) => {
                parts.extend(group.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
            value => parts.push((name.clone(), value.clone())),
        }
    }
    parts
}

/// The longest prefix of `text` that has at most `max` bytes, and ends neither in a character nor in the
/// replacement of a secret.
pub(crate) fn prefix(text: &str, max: usize) -> &str {
    let end = text.floor_char_boundary(max);
    if end == text.len() {
        return text;
    }
    // A replacement that begins before `from` ends at `end` or before.
    let from = text.ceil_char_boundary((end + 1).saturating_sub(REDACTED.len()));
    let around = &text[from..text.floor_char_boundary(end + REDACTED.len())];
    &text[..around.find(REDACTED).map_or(end, |at| end.min(from + at))]
}

/// Cuts `text` to at most `max` bytes, as [`prefix`] does.
pub(crate) fn truncate(text: &mut String, max: usize) {
    text.truncate(prefix(text, max).len());
}

/// Returns `text`, which has no secrets any more, as one line of at most `max` bytes.
pub fn cut(text: &str, max: u32) -> String {
    let max = max as usize;
    let mut line = one_line(prefix(text, max));
    // Escapes may have made it longer.
    truncate(&mut line, max);
    line
}

/// Returns `text` with unprintable characters replaced by escapes.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end_matches(['\n', '\r']).chars() {
        if is_unprintable(c) { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(one_line("a\u{1b}[31m\nb\r\n"), "a\\u{1b}[31m\\nb");
        assert_eq!(one_line("a\u{202e}b\u{2028}c\u{2066}"), "a\\u{202e}b\\u{2028}c\\u{2066}");
    }

    #[test]
    fn escapes_do_not_make_a_line_longer_than_allowed() {
        assert_eq!(cut("\u{1b}\u{1b}", 7), "\\u{1b}\\");
        assert_eq!(cut("aé", 2), "a");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let mut text = "aé".to_owned();
        truncate(&mut text, 2);
        assert_eq!(text, "a");
    }

    #[test]
    fn the_replacement_of_a_secret_is_not_cut() {
        let (text, end) = ("é[redacted]é", "é[redacted]".len());
        for max in 2..=text.len() {
            let kept = match max {
                max if max < end => "é",
                max if max < text.len() => "é[redacted]",
                _ => text,
            };
            assert_eq!(prefix(text, max), kept, "{max}");
        }
        assert_eq!(cut("a[redacted]", 5), "a");
    }

    #[test]
    fn a_wide_event_is_flattened_into_attributes() {
        let event = json!({"operation": "x", "tags": {"a": 1}, "details": {"b": 2}});
        let Value::Object(event) = event else { unreachable!("an object") };
        let parts = flatten(&event);
        for part in [("operation", json!("x")), ("a", json!(1)), ("details", json!({"b": 2}))] {
            assert!(parts.contains(&(part.0.to_owned(), part.1.clone())), "{part:?}");
        }
    }

    #[test]
    fn levels_are_known_by_name() {
        assert_eq!(Level::of("WARN"), Level::Warn);
        assert_eq!(Level::of("notice"), Level::Info);
    }
}
