//! Distinguishes machine code that this host has compiled from any other bytes, and loads it. It opens
//! no file of the folder.
//!
//! Machine code is executed as it is, outside of every sandbox, so what is read back must be bit for
//! bit what a process with the folder's key has written. A sealed entry is
//!
//! ```text
//! code | MAGIC | id of the entry | tag
//!
//! tag: HMAC-SHA256, by the key of the folder, of SHA-256 of the code, MAGIC and the id
//! ```
//!
//! It is copied to a file in memory before it is checked, so that nothing can change it afterwards.
//! What is executed is a mapping of that file: code never has to fit on the heap, and pages that no
//! guest uses take no memory.

use std::fs::File;
use std::hash::{Hash as _, Hasher};
use std::io::{self, Read, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ring::hmac;
use sandglass_model::ModuleHash;
use sha2::{Digest as _, Sha256};
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use super::memory::file_in_memory;
use crate::module::Kind;

/// Size of the folder's key, in bytes: that of the tag, as HMAC advises.
pub(crate) const KEY_BYTES: usize = 32;

const TAG_BYTES: usize = 32;
const ID_BYTES: usize = 32;

/// The mark after the code, with the version of this form.
const MAGIC: [u8; 16] = *b"sandglass code 3";

/// Size of what a tag covers in addition to the hash of the code, in bytes.
const LABEL_BYTES: usize = MAGIC.len() + ID_BYTES;

/// How much is read at once, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Size of what follows the code, in bytes.
pub(crate) const TRAILER_BYTES: usize = LABEL_BYTES + TAG_BYTES;

/// Identifies code: by the hash and the kind of the module, the version of this crate and of Wasmtime,
/// and the settings of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry([u8; ID_BYTES]);

impl Entry {
    /// The code of the module of this hash, as `engine` compiles it.
    pub(crate) fn of(engine: &Engine, module: ModuleHash, kind: Kind) -> Self {
        let mut id = Digesting(Sha256::new());
        id.write(&MAGIC);
        id.write(env!("CARGO_PKG_VERSION").as_bytes());
        id.write(&[0, kind as u8]);
        id.write(module.to_string().as_bytes());
        engine.precompile_compatibility_hash().hash(&mut id);
        Self(id.0.finalize().into())
    }

    /// In hexadecimal digits.
    pub(super) fn name(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Adapts a digest to the standard library's trait, which is all that Wasmtime offers.
struct Digesting(Sha256);

impl Hasher for Digesting {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: the whole digest counts.
    fn finish(&self) -> u64 {
        0
    }
}

/// Code that Wasmtime has compiled in this process.
pub(crate) struct Fresh(Vec<u8>);

impl Fresh {
    /// Compiles a module or a component for `engine`.
    ///
    /// # Errors
    /// The engine does not accept it.
    pub(crate) fn compile(engine: &Engine, kind: Kind, binary: &[u8]) -> wasmtime::Result<Self> {
        match kind {
            Kind::CoreModule => engine.precompile_module(binary),
            Kind::Component => engine.precompile_component(binary),
        }
        .map(Self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Code that Wasmtime has compiled and nothing has changed since: in this process, or in a host or a
/// helper that has sealed it. It is in a file in memory that only this process has.
pub(crate) struct Code(File);

impl Code {
    /// Moves `code` off the heap.
    ///
    /// # Errors
    /// There is no memory or descriptor for it.
    pub(crate) fn of(code: Fresh) -> io::Result<Self> {
        let mut file = file_in_memory()?;
        file.write_all(&code.0)?;
        Ok(Self(file))
    }

    /// Loads it as a module.
    ///
    /// # Errors
    /// It is for another machine, or too large for `engine`'s pool.
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn module(&self, engine: &Engine) -> wasmtime::Result<Module> {
        // SAFETY: Wasmtime requires the unmodified output of `Engine::precompile_module`, of any
        // version, in a file that does not change. A `Code` is made from a `Fresh`, which is such
        // output; or by `Seal::open`, from bytes with a tag that only a `Seal` makes for a `Fresh` or
        // a `Code`, with a key that only this user can read. Its file has no name, and is never
        // written after that.
        unsafe { Module::deserialize_open_file(engine, self.0.try_clone()?) }
    }

    /// Loads it as a component.
    ///
    /// # Errors
    /// As [`Code::module`].
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn component(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // Wasmtime opens the files of components itself.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        if Path::new(&path).exists() {
            // SAFETY: as for modules, with `Engine::precompile_component`; Wasmtime itself
            // distinguishes the two kinds. The path is that of the same file.
            return unsafe { Component::deserialize_file(engine, path) };
        }
        let mut bytes = Vec::new();
        self.bytes()?.read_to_end(&mut bytes)?;
        // SAFETY: as above.
        unsafe { Component::deserialize(engine, bytes) }
    }

    /// All its bytes.
    ///
    /// # Errors
    /// The system cannot read the file in memory.
    pub(crate) fn bytes(&self) -> io::Result<impl Read> {
        (&self.0).rewind()?;
        Ok(&self.0)
    }

    pub(crate) fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Why sealed bytes are not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotGenuine {
    #[error("it is not what was written there, or another key sealed it")]
    Forged,
    #[error("it is another entry than its name says")]
    Misplaced,
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// The key of a folder or of a helper, in use.
pub(crate) struct Seal(hmac::Key);

impl Seal {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// What follows `code` in the sealed form of `entry`.
    ///
    /// # Errors
    /// `code` cannot be read.
    pub(crate) fn trailer(&self, entry: &Entry, code: impl Read) -> io::Result<Vec<u8>> {
        let label = [MAGIC.as_slice(), &entry.0].concat();
        let tag = hmac::sign(&self.0, &signed_bytes(code, &label)?);
        Ok([&label, tag.as_ref()].concat())
    }

    /// The code in `sealed`, a file in memory that only this process has.
    ///
    /// # Errors
    /// It was not sealed by this key as this entry, or has changed since; or the file cannot be read.
    pub(crate) fn open(&self, entry: &Entry, mut sealed: File) -> Result<Code, NotGenuine> {
        let bytes = sealed.metadata()?.len();
        let code_bytes = bytes.checked_sub(TRAILER_BYTES as u64).ok_or(NotGenuine::Forged)?;
        let mut trailer = [0; TRAILER_BYTES];
        sealed.read_exact_at(&mut trailer, code_bytes)?;
        let (label, tag) = trailer.split_at(LABEL_BYTES);
        sealed.rewind()?;
        let signed = signed_bytes((&sealed).take(code_bytes), label)?;
        hmac::verify(&self.0, &signed, tag).map_err(|_| NotGenuine::Forged)?;
        // The seal is genuine, but it may be of another version of this host, or the file may have
        // been renamed to the name of another entry.
        if label.strip_prefix(&MAGIC) != Some(&entry.0) {
            return Err(NotGenuine::Misplaced);
        }
        sealed.set_len(code_bytes)?;
        Ok(Code(sealed))
    }
}

/// What a tag covers: the hash of `code`, and its label.
fn signed_bytes(mut code: impl Read, label: &[u8]) -> io::Result<Vec<u8>> {
    let mut hash = Sha256::new();
    let mut piece = [0; PIECE_BYTES];
    loop {
        match code.read(&mut piece)? {
            0 => return Ok([&hash.finalize(), label].concat()),
            bytes => hash.update(piece.get(..bytes).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = Entry([7; ID_BYTES]);
    const CODE: &[u8] = b"machine code";

    fn seal_code() -> (Seal, Vec<u8>) {
        let seal = Seal::new(&[1; KEY_BYTES]);
        let trailer = seal.trailer(&ENTRY, CODE).expect("memory can be read");
        (seal, [CODE, &trailer].concat())
    }

    fn open(seal: &Seal, entry: &Entry, sealed: &[u8]) -> Result<Vec<u8>, NotGenuine> {
        let mut file = file_in_memory().expect("a descriptor");
        file.write_all(sealed).expect("memory");
        let code = seal.open(entry, file)?;
        let mut bytes = Vec::new();
        code.bytes()?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[track_caller]
    fn assert_forged(seal: &Seal, sealed: &[u8]) {
        let opened = open(seal, &ENTRY, sealed);
        assert!(matches!(opened, Err(NotGenuine::Forged)), "{opened:?} of {sealed:?}");
    }

    #[test]
    fn sealed_code_is_opened_unchanged() {
        let (seal, sealed) = seal_code();
        assert_eq!(open(&seal, &ENTRY, &sealed).expect("unchanged"), CODE);
    }

    #[test]
    fn sealed_code_with_a_changed_missing_or_additional_byte_is_forged() {
        let (seal, sealed) = seal_code();
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                assert_forged(&seal, &changed);
            }
        }
        for end in 0..sealed.len() {
            assert_forged(&seal, &sealed[..end]);
            assert_forged(&seal, &sealed[end + 1..]);
        }
        assert_forged(&seal, &[sealed.as_slice(), &[0]].concat());
        assert_forged(&seal, &[&[0], sealed.as_slice()].concat());
    }

    #[test]
    fn another_key_or_entry_does_not_open_sealed_code() {
        let (seal, sealed) = seal_code();
        assert_forged(&Seal::new(&[2; KEY_BYTES]), &sealed);
        let misplaced = open(&seal, &Entry([8; ID_BYTES]), &sealed);
        assert!(matches!(misplaced, Err(NotGenuine::Misplaced)), "{misplaced:?}");
    }
}
