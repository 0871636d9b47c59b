//! The names and the debug information of a guest, which a host uses to resolve frames.

use std::sync::LazyLock;

use sandglass_host::frames_at;
use wasm_encoder::{CustomSection, Section as _};

use crate::promise;

/// A module with two functions.
static MODULE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    wat::parse_str("(module (func (nop)) (func (nop) (unreachable)))").expect("valid")
});

/// The custom sections, in the order of their data in an input.
const SECTIONS: [&str; 6] =
    [".debug_abbrev", ".debug_info", ".debug_line", ".debug_ranges", ".debug_str", "name"];

/// Checks that frames are bounded and can be shown, whatever the sections contain.
pub(crate) fn resolve(input: &[u8]) {
    let module = [MODULE.as_slice(), &sections(input).0].concat();
    for offset in [0, MODULE.len() as u64 - 2, MODULE.len() as u64 - 4, u64::MAX] {
        let frames = frames_at(&module, offset);
        assert!(!frames.is_empty());
        assert!(frames.iter().all(|frame| frame.offset == offset), "{frames:?}");
        promise::check_frames(&frames);
    }
}

/// The custom sections whose data `input` begins with, and the bytes that follow. The data of each
/// section begins with its length, in 16 bits.
pub(super) fn sections(input: &[u8]) -> (Vec<u8>, &[u8]) {
    let (mut sections, mut rest) = (Vec::new(), input);
    for name in SECTIONS {
        let (data, behind) = part(rest);
        CustomSection { name: name.into(), data: data.into() }.append_to(&mut sections);
        rest = behind;
    }
    (sections, rest)
}

/// The first part of `input`, and the bytes that follow it.
fn part(input: &[u8]) -> (&[u8], &[u8]) {
    match input.split_first_chunk() {
        Some((len, rest)) => rest.split_at(rest.len().min(u16::from_le_bytes(*len).into())),
        None => (input, &[]),
    }
}
