//! The corpus: typical specs, samples and records, and inputs that once broke a promise.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use sandglass_fuzz::TARGETS;

/// Largest input, in bytes. Small inputs are easier to understand, and all of them are in the
/// repository.
const INPUT_MAX_BYTES: u64 = 16 << 10;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|why| panic!("{}: {why}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    files.sort();
    files
}

#[test]
fn every_input_that_is_kept_keeps_the_promises_of_its_target() {
    for target in TARGETS {
        let inputs = files(&corpus().join(target.name));
        assert!(!inputs.is_empty(), "`{}` has no corpus", target.name);
        for input in inputs {
            let bytes = fs::read(&input).expect("it can be read");
            assert!(bytes.len() as u64 <= INPUT_MAX_BYTES, "{} is too large", input.display());
            let ran = std::panic::catch_unwind(|| target.run(&bytes));
            assert!(ran.is_ok(), "{} breaks a promise", input.display());
        }
    }
}

#[test]
fn every_folder_of_the_corpus_is_of_a_target() {
    let targets: BTreeSet<&OsStr> = TARGETS.iter().map(|target| target.name.as_ref()).collect();
    for folder in files(&corpus()) {
        let name = folder.file_name().expect("it has one");
        assert!(targets.contains(name), "no target reads {}", folder.display());
    }
}
