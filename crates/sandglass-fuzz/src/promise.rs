//! The promises that hold for every message, frame and diagnostic.

use std::fmt::Display;

use sandglass_host::MAX_FRAMES;
use sandglass_model::Frame;
use sandglass_source::{DIAGNOSTICS_MAX, Diagnostic, is_unprintable};

/// Longest message that is shown to people, in bytes. A message may contain a name, which has a
/// bound of its own, and a list of some names.
const MESSAGE_MAX_BYTES: usize = 16 << 10;

/// Longest name or path in a frame, in bytes.
const SHOWN_MAX_BYTES: usize = 1024;

/// Checks that a message can be shown on a terminal.
#[track_caller]
pub(crate) fn check_text(message: &impl Display) {
    let text = message.to_string();
    assert!(!text.contains(is_unprintable), "it has control characters: {text:?}");
    assert!(text.len() <= MESSAGE_MAX_BYTES, "it has {} bytes: {text:?}", text.len());
}

/// Checks that frames are bounded, and can be shown.
#[track_caller]
pub(crate) fn check_frames(frames: &[Frame]) {
    assert!(frames.len() <= MAX_FRAMES as usize, "{} frames", frames.len());
    for frame in frames {
        for text in [&frame.function, &frame.module, &frame.file].into_iter().flatten() {
            check_text(text);
            assert!(text.len() <= SHOWN_MAX_BYTES, "{text:?}");
        }
    }
}

/// Checks that each diagnostic can be shown, and has a location inside the source.
#[track_caller]
pub(crate) fn check_diagnostics(source: &str, diagnostics: &[Diagnostic]) {
    assert!(diagnostics.len() <= DIAGNOSTICS_MAX, "{} diagnostics", diagnostics.len());
    for one in diagnostics {
        check_text(&one.message);
        one.help.iter().for_each(check_text);
        assert!(source.get(one.span.clone()).is_some(), "no place of the source: {one:?}");
        let before = &source[..one.span.start];
        assert_eq!(one.line, before.matches('\n').count() + 1, "{one:?}");
        let line = before.rsplit('\n').next().unwrap_or_default();
        assert_eq!(one.column, line.chars().count() + 1, "{one:?}");
    }
}

/// Checks that a JSON error has a location.
#[track_caller]
pub(crate) fn check_location(error: &serde_json::Error) {
    assert!(error.line() > 0 || error.column() == 0, "{error:?}");
}
