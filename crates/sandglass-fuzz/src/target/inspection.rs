//! The inspection of a guest's file, which describes what the file contains.

use std::sync::LazyLock;

use sandglass_host::{Host, Settings};

use crate::promise;

/// Most imports, exports or sections that an inspection lists.
const LISTED_MAX: usize = 1_000;

/// Checks that an inspection is bounded, adds up and can be shown, and that a refusal can be shown.
pub(crate) fn read(input: &[u8]) {
    static HOST: LazyLock<Host> = LazyLock::new(|| {
        let settings = Settings { max_runs: 1, guest_threads: 1, ..Settings::default() };
        Host::builder().settings(settings).build().expect("a host")
    });
    let guest = match HOST.inspect(input) {
        Ok(guest) => guest,
        Err(rejection) => return promise::check_text(&rejection.message),
    };
    let size = &guest.size;
    assert!(size.code + size.data + size.custom <= size.total, "{size:?}");
    assert!(guest.imports.len() <= LISTED_MAX && guest.exports.len() <= LISTED_MAX);
    assert!(size.custom_sections.len() <= LISTED_MAX);
    for import in &guest.imports {
        promise::check_text(&import.module);
        promise::check_text(&import.name);
        promise::check_text(&import.signature);
        assert!(!import.is_known || import.nearest.is_none(), "{import:?}");
        assert_eq!(import.is_known, import.host_function.is_some(), "{import:?}");
    }
    for export in &guest.exports {
        promise::check_text(&export.name);
        promise::check_text(&export.signature);
    }
    guest
        .largest_functions
        .iter()
        .filter_map(|one| one.name.as_ref())
        .for_each(promise::check_text);
    for made in &guest.producers {
        promise::check_text(&made.name);
        promise::check_text(&made.version);
    }
}
