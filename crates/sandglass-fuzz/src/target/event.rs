//! The body of a record, as it stands in a journal.

use sandglass_model::Event;

use crate::promise;

/// What reads as an event is written and read as the same one.
pub(crate) fn read(input: &[u8]) {
    let Ok(body) = str::from_utf8(input) else { return };
    let event: Event = match serde_json::from_str(body) {
        Ok(event) => event,
        Err(error) => return promise::located(&error),
    };
    let written = serde_json::to_string(&event).expect("an event is JSON");
    let again: Event = serde_json::from_str(&written).expect("it was written as one");
    assert_eq!(again, event, "{written}");
    assert_eq!(again.kind(), event.kind());
}
