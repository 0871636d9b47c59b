//! Levels of the log are read strictly.

use sandglass_telemetry::logs;
use tracing::Level;

#[test]
fn levels_are_simple_or_by_target() {
    let simple = logs::levels("debug").expect("a level");
    assert!(simple.would_enable("anything", &Level::DEBUG));
    assert!(!simple.would_enable("anything", &Level::TRACE));
    let by_target = logs::levels("warn, sandglass_host=trace").expect("two levels");
    assert!(by_target.would_enable("sandglass_host::ticker", &Level::TRACE));
    assert!(!by_target.would_enable("hyper", &Level::INFO));
}

#[test]
fn an_invalid_level_is_an_error_that_states_the_valid_ones() {
    for bad in ["loud", "sandglass_host=loud\u{1b}", "warn,lod", "a=b=c", "", "=,"] {
        let error = logs::levels(bad).expect_err(bad).to_string();
        assert!(error.contains("is not a log level: use off, error,"), "{error}");
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }
}
