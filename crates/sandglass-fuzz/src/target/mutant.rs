//! Guests of this repository, mutated by wasm-mutate or by edits of their bytes.
//!
//! An input selects the guest (two bytes), the seed (eight) and the number of mutations (one).
//! Edits follow. They apply to the parts of a module that have no structure, such as data. If
//! wasm-mutate changes nothing, as with components, they apply to the whole guest.

use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use arbitrary::Unstructured;
use wasm_mutate::WasmMutate;
use wasmparser::{ExternalKind, Parser, Payload};

use super::hostile;

/// Largest guest, in bytes: larger ones take long to compile.
const GUEST_MAX_BYTES: usize = 32 << 10;
/// Largest result of an edit, in bytes.
const EDITED_MAX_BYTES: usize = 64 << 10;
/// Most mutations in sequence.
const ROUNDS_MAX: u8 = 8;
/// What one mutation may cost, in steps of wasm-mutate.
const FUEL: u64 = 1000;

/// The small guests of `guest-fixtures`, ordered by path.
static GUESTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-fixtures");
    let mut files: Vec<_> = ["built", "wat"]
        .iter()
        .flat_map(|folder| fs::read_dir(fixtures.join(folder)).expect("the fixtures are there"))
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "wasm" || ending == "wat"))
        .collect();
    files.sort();
    let guests = files.iter().map(|path| fs::read(path).expect("it can be read"));
    // Some fixtures are intentionally not WebAssembly.
    let guests = guests.filter_map(|bytes| wat::parse_bytes(&bytes).map(Into::into).ok());
    guests.filter(|guest: &Vec<u8>| guest.len() <= GUEST_MAX_BYTES).collect()
});

/// Checks that the host withstands every mutant.
pub(crate) fn run(input: &[u8]) {
    let mut choices = Unstructured::new(input);
    let Ok((which, seed, rounds)) = choices.arbitrary::<(u16, u64, u8)>() else { return };
    let edits: Arc<[u8]> = choices.take_rest().into();
    let original = &GUESTS[usize::from(which) % GUESTS.len()];
    let mut guest = original.clone();
    for round in 0..rounds % (ROUNDS_MAX + 1) {
        let Some(mutated) = mutate(&guest, seed.wrapping_add(round.into()), &edits) else { break };
        guest = mutated;
    }
    if guest == *original {
        edit(&mut guest, &edits);
    }
    hostile::endure(&guest);
}

/// Whether wasm-mutate would panic because it does not support an export (as of 0.263).
fn exports_a_tag(module: &[u8]) -> bool {
    Parser::new(0).parse_all(module).any(|payload| match payload {
        Ok(Payload::ExportSection(exports)) => exports
            .into_iter()
            .any(|export| export.is_ok_and(|export| export.kind == ExternalKind::Tag)),
        _ => false,
    })
}

/// Applies one mutation to `module`; `None` if wasm-mutate finds none.
fn mutate(module: &[u8], seed: u64, edits: &Arc<[u8]>) -> Option<Vec<u8>> {
    if exports_a_tag(module) {
        return None;
    }
    let edits = Arc::clone(edits);
    let mut mutate = WasmMutate::default();
    mutate.seed(seed).fuel(FUEL).raw_mutate_func(Some(Arc::new(move |data, _| {
        edit(data, &edits);
        Ok(())
    })));
    let mut mutations = mutate.run(module).ok()?;
    mutations.next()?.ok()
}

/// Applies an edit for each six bytes of `edits`: its kind (truncate, flip or duplicate), an
/// offset, a length, and a value.
fn edit(bytes: &mut Vec<u8>, edits: &[u8]) {
    for &[which, place_low, place_high, len_low, len_high, value] in edits.as_chunks().0 {
        if bytes.is_empty() {
            return;
        }
        let start = usize::from(u16::from_le_bytes([place_low, place_high])) % bytes.len();
        let end = bytes.len().min(start + usize::from(u16::from_le_bytes([len_low, len_high])));
        match which % 3 {
            0 => bytes.truncate(start),
            1 => bytes[start] ^= value,
            _ if bytes.len() + (end - start) <= EDITED_MAX_BYTES => {
                let range = bytes[start..end].to_vec();
                bytes.splice(start..start, range);
            }
            _ => {}
        }
    }
}
