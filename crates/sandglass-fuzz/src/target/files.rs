//! The files that people write in addition to specs: manifests, scenarios and configurations.

use std::sync::Arc;

use sandglass_host::FixedSecrets;
use sandglass_host::manifest::File;

use crate::promise;

/// Checks that an accepted manifest reads as an equal one, and can be granted.
pub(crate) fn manifest(input: &[u8]) {
    let parsed = File::parse_bytes(input);
    let Ok(source) = str::from_utf8(input) else {
        assert!(parsed.file.is_none(), "it is no text");
        return parsed.diagnostics.iter().for_each(|one| promise::check_text(&one.message));
    };
    promise::check_diagnostics(source, &parsed.diagnostics);
    let Some(file) = parsed.file else {
        return assert!(!parsed.diagnostics.is_empty(), "refused without a message");
    };
    let again = File::parse(source).file.expect("it was accepted");
    assert_eq!(format!("{again:?}"), format!("{file:?}"));
    let granted = file.manifest(Arc::new(FixedSecrets::default()));
    assert_eq!(granted.module_max_bytes(), file.granted.module_max_bytes());
}

/// Checks the diagnostics of a scenario.
pub(crate) fn scenario(input: &[u8]) {
    let Ok(source) = str::from_utf8(input) else { return };
    promise::check_diagnostics(source, &sandglass_scenario::check(source));
}

/// Checks the diagnostics of a configuration.
pub(crate) fn configuration(input: &[u8]) {
    let Ok(source) = str::from_utf8(input) else { return };
    promise::check_diagnostics(source, &sandglass_server::check_configuration(source));
}
