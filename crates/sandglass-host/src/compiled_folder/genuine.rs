//! Tells machine code that this host has compiled from any other bytes, and makes
//! modules of it. It opens no file of the folder.
//!
//! Machine code is run as it is, outside of every sandbox, so what is read back must be
//! what was written, bit for bit, by somebody who may write it. A sealed entry is
//!
//! ```text
//! code | MAGIC | id of the entry | tag
//!
//! tag: HMAC-SHA256, by the key of the folder, of SHA-256 of the code, MAGIC and the id
//! ```
//!
//! It is copied into a file in memory before it is checked. What runs is a mapping of that
//! file, so that code never has to fit the heap, and pages that no guest uses take no memory.

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

/// Size of the folder's key, in bytes: as many as the tag has, which is what HMAC advises.
pub(crate) const KEY_BYTES: usize = 32;

const TAG_BYTES: usize = 32;
const ID_BYTES: usize = 32;

/// What follows the code, with the version of this form.
const MAGIC: [u8; 16] = *b"sandglass code 2";

/// Size of what a tag is of, beside the code's hash, in bytes.
const LABEL_BYTES: usize = MAGIC.len() + ID_BYTES;

/// What is read at once, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// Size of what follows the code, in bytes.
pub(crate) const TRAILER_BYTES: usize = LABEL_BYTES + TAG_BYTES;

/// The two kinds of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Module,
    Component,
}

/// Which code is meant: of which bytes, as what, compiled how and by what.
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

/// Hashes what can only be hashed by the standard library's trait.
struct Digesting(Sha256);

impl Hasher for Digesting {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Nobody asks for it: the whole digest is what counts.
    fn finish(&self) -> u64 {
        0
    }
}

/// Code that Wasmtime has compiled in this process.
pub(crate) struct Fresh(Vec<u8>);

impl Fresh {
    /// Compiles a module, as `engine` does.
    ///
    /// # Errors
    /// It is none that the engine takes.
    pub(crate) fn module_of(engine: &Engine, binary: &[u8]) -> wasmtime::Result<Self> {
        engine.precompile_module(binary).map(Self)
    }

    /// Compiles a component, as `engine` does.
    ///
    /// # Errors
    /// As [`Fresh::module_of`].
    pub(crate) fn component_of(engine: &Engine, binary: &[u8]) -> wasmtime::Result<Self> {
        engine.precompile_component(binary).map(Self)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Code that Wasmtime has compiled, unchanged since: in this process, or by a host or a helper
/// that has sealed it. It is in a file in memory that nobody else has.
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

    /// The module that it is.
    ///
    /// # Errors
    /// It is for another machine, or too large for `engine`'s pool.
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn module(&self, engine: &Engine) -> wasmtime::Result<Module> {
        // SAFETY: wasmtime asks for the unmodified output of `Engine::precompile_module`, of
        // any version, in a file that nobody changes. A `Code` is made of a `Fresh`, which is such
        // output; or by `Seal::open`, of bytes with a tag that only a `Seal` makes of a `Fresh` or
        // of a `Code`, with a key that only this user can read. Its file has no name, and is
        // never written after that.
        unsafe { Module::deserialize_open_file(engine, self.0.try_clone()?) }
    }

    /// The component that it is.
    ///
    /// # Errors
    /// As [`Code::module`].
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn component(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // Wasmtime opens the files of components itself.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        if Path::new(&path).exists() {
            // SAFETY: as for modules, with `Engine::precompile_component`; wasmtime itself tells
            // the two kinds apart. The path is that of the same file.
            return unsafe { Component::deserialize_file(engine, path) };
        }
        let mut bytes = Vec::new();
        self.bytes()?.read_to_end(&mut bytes)?;
        // SAFETY: as above.
        unsafe { Component::deserialize(engine, bytes) }
    }

    /// All its bytes, from the first.
    ///
    /// # Errors
    /// The system can't read memory.
    pub(crate) fn bytes(&self) -> io::Result<impl Read> {
        (&self.0).rewind()?;
        Ok(&self.0)
    }

    pub(crate) fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

/// Why sealed bytes are not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotGenuine {
    #[error("it isn't what was written there, or another key sealed it")]
    Forged,
    #[error("it is another entry than its name says")]
    Misplaced,
    #[error("it can't be read: {0}")]
    Io(#[from] io::Error),
}

/// The key of a folder or of a helper, in use.
pub(crate) struct Seal(hmac::Key);

impl Seal {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// What follows `code` where it is kept as `entry`.
    ///
    /// # Errors
    /// `code` can't be read.
    pub(crate) fn trailer(&self, entry: &Entry, code: impl Read) -> io::Result<Vec<u8>> {
        let label = [MAGIC.as_slice(), &entry.0].concat();
        let tag = hmac::sign(&self.0, &signed(code, &label)?);
        Ok([&label, tag.as_ref()].concat())
    }

    /// The code in `sealed`, a file in memory that nobody else has.
    ///
    /// # Errors
    /// It was not sealed by this key as this entry, or has changed since; or the file can't be
    /// read.
    pub(crate) fn open(&self, entry: &Entry, mut sealed: File) -> Result<Code, NotGenuine> {
        let bytes = sealed.metadata()?.len();
        let code_bytes = bytes.checked_sub(TRAILER_BYTES as u64).ok_or(NotGenuine::Forged)?;
        let mut trailer = [0; TRAILER_BYTES];
        sealed.read_exact_at(&mut trailer, code_bytes)?;
        let (label, tag) = trailer.split_at(LABEL_BYTES);
        sealed.rewind()?;
        let signed = signed((&sealed).take(code_bytes), label)?;
        hmac::verify(&self.0, &signed, tag).map_err(|_| NotGenuine::Forged)?;
        // Nothing else was ever sealed; but it may be of another version of this host, or
        // have been given another entry's name.
        if label.strip_prefix(&MAGIC) != Some(&entry.0) {
            return Err(NotGenuine::Misplaced);
        }
        sealed.set_len(code_bytes)?;
        Ok(Code(sealed))
    }
}

/// What a tag is of: the hash of `code`, and its label.
fn signed(mut code: impl Read, label: &[u8]) -> io::Result<Vec<u8>> {
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

    fn sealed() -> (Seal, Vec<u8>) {
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
    fn what_was_sealed_is_opened_as_it_was() {
        let (seal, sealed) = sealed();
        assert_eq!(open(&seal, &ENTRY, &sealed).expect("unchanged"), CODE);
    }

    #[test]
    fn no_bit_can_change_and_no_byte_go_or_come() {
        let (seal, sealed) = sealed();
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
    fn another_key_and_another_name_open_nothing() {
        let (seal, sealed) = sealed();
        assert_forged(&Seal::new(&[2; KEY_BYTES]), &sealed);
        let misplaced = open(&seal, &Entry([8; ID_BYTES]), &sealed);
        assert!(matches!(misplaced, Err(NotGenuine::Misplaced)), "{misplaced:?}");
    }
}
