//! The body of a record, as a journal stores it.

use sandglass_model::Event;

use crate::promise;

/// Checks that a body that reads as an event is written and read as an equal one.
pub(crate) fn read(input: &[u8]) {
    let Ok(body) = str::from_utf8(input) else { return };
    let event: Event = match serde_json::from_str(body) {
        Ok(event) => event,
        Err(error) => return promise::check_location(&error),
    };
    let written = serde_json::to_string(&event).expect("an event is JSON");
    let again: Event = serde_json::from_str(&written).expect("it was written as one");
    assert_eq!(again, event, "{written}");
    assert_eq!(again.kind(), event.kind());
}
