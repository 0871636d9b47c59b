//! Runs a target in libFuzzer, which uses coverage to find inputs. `SANDGLASS_FUZZ_TARGET` names
//! the target.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use sandglass_fuzz::Target;

static TARGET: OnceLock<&Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("SANDGLASS_FUZZ_TARGET").unwrap_or_default();
        let target = Target::find(&name).unwrap_or_else(|| panic!("no target `{name}`"));
        TARGET.get_or_init(|| target);
    },
    |input: &[u8]| {
        TARGET.get().expect("it is set at the start").run(input);
    }
);
