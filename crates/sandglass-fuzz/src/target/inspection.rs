//! The inspection of a guest's file, which describes what the file contains.

use std::sync::LazyLock;

use sandglass_host::{Host, Settings};

use crate::promise;

/// Most imports, exports or sections that an inspection lists.
const TOLD_MAX: usize = 1_000;

/// Checks that an inspection is bounded, adds up and can be shown, and that a refusal can be shown.
pub(crate) fn read(input: &[u8]) {
    static HOST: LazyLock<Host> = LazyLock::new(|| {
        let settings = Settings { max_runs: 1, guest_threads: 1, ..Settings::default() };
        Host::builder().settings(settings).build().expect("a host")
    });
    let guest = match HOST.inspect(input) {
        Ok(guest) => guest,
        Err(rejection) => return promise::shown(&rejection.message),
    };
    let size = &guest.size;
    assert!(size.code + size.data + size.custom <= size.total, "{size:?}");
    assert!(guest.imports.len() <= TOLD_MAX && guest.exports.len() <= TOLD_MAX);
    assert!(size.custom_sections.len() <= TOLD_MAX);
    for import in &guest.imports {
        promise::shown(&import.module);
        promise::shown(&import.name);
        promise::shown(&import.signature);
        assert!(!import.is_known || import.nearest.is_none(), "{import:?}");
        assert_eq!(import.is_known, import.host_function.is_some(), "{import:?}");
    }
    for export in &guest.exports {
        promise::shown(&export.name);
        promise::shown(&export.signature);
    }
    guest.largest_functions.iter().filter_map(|one| one.name.as_ref()).for_each(promise::shown);
    for made in &guest.producers {
        promise::shown(&made.name);
        promise::shown(&made.version);
    }
}
