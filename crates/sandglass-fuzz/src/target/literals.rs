//! Short texts with a grammar of their own: durations, sizes, names, ids and destinations.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use sandglass_host::{AskTarget, Destination};
use sandglass_model::{DispatchId, EntityRef, ModuleHash, TraceContext};
use sandglass_source::{duration, size};

use crate::promise;

/// Passes the same text to each grammar.
pub(crate) fn read(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    text.parse::<Destination>().err().iter().for_each(promise::check_text);
    for quantity in [duration::from_text(text), size::parse(text)] {
        quantity.err().iter().for_each(promise::check_text);
    }
    round_trip::<AskTarget>(text);
    round_trip::<DispatchId>(text);
    round_trip::<EntityRef>(text);
    round_trip::<ModuleHash>(text);
    round_trip::<TraceContext>(text);
}

/// Checks that an accepted text is written and read as an equal value.
fn round_trip<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(read) => {
            let written = read.to_string();
            assert_eq!(written.parse::<T>().ok(), Some(read), "{written:?}");
        }
        Err(refused) => promise::check_text(&refused),
    }
}
