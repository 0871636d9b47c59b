//! The names and the debug information of a guest, as a host resolves frames with them.

use std::sync::LazyLock;

use sandglass_host::{MAX_FRAMES, frames_at};
use wasm_encoder::{CustomSection, Section as _};

use crate::promise;

/// A module with two functions.
static MODULE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    wat::parse_str("(module (func (nop)) (func (nop) (unreachable)))").expect("valid")
});

/// Custom sections, in the order in which an input has their data.
const SECTIONS: [&str; 6] =
    [".debug_abbrev", ".debug_info", ".debug_line", ".debug_ranges", ".debug_str", "name"];

/// Longest name or path that is shown, in bytes.
const SHOWN_MAX_BYTES: usize = 1024;

/// Each part of the input but the last begins with its length, in 16 bits. Frames have bounds and
/// can be shown, whatever the sections state.
pub(crate) fn resolve(input: &[u8]) {
    let (mut module, mut rest) = (MODULE.clone(), input);
    for name in SECTIONS {
        let (data, behind) = part(rest);
        CustomSection { name: name.into(), data: data.into() }.append_to(&mut module);
        rest = behind;
    }
    for offset in [0, MODULE.len() as u64 - 2, MODULE.len() as u64 - 4, u64::MAX] {
        let frames = frames_at(&module, offset);
        assert!((1..=MAX_FRAMES as usize).contains(&frames.len()), "{frames:?}");
        for frame in frames {
            assert_eq!(frame.offset, offset);
            for text in [&frame.function, &frame.module, &frame.file].into_iter().flatten() {
                promise::shown(text);
                assert!(text.len() <= SHOWN_MAX_BYTES, "{text:?}");
            }
        }
    }
}

/// The first part of `input`, and what is behind it.
fn part(input: &[u8]) -> (&[u8], &[u8]) {
    match input.split_first_chunk() {
        Some((len, rest)) => rest.split_at(rest.len().min(u16::from_le_bytes(*len).into())),
        None => (input, &[]),
    }
}
