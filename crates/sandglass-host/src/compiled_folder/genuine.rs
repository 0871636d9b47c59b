//! Tells machine code that this host has compiled from any other bytes, and makes
//! modules of it. It opens no file.
//!
//! Machine code is run as it is, outside of every sandbox, so what is read back must be
//! what was written, bit for bit, by somebody who may write it. A sealed entry is
//!
//! ```text
//! tag: HMAC-SHA256 by the folder's key of all that follows | MAGIC | id of the entry | code
//! ```

use std::hash::{Hash as _, Hasher};

use ring::hmac;
use sandglass_model::ModuleHash;
use sha2::{Digest as _, Sha256};
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

/// Size of the folder's key, in bytes: as many as the tag has, which is what HMAC advises.
pub(crate) const KEY_BYTES: usize = 32;

const TAG_BYTES: usize = 32;
const ID_BYTES: usize = 32;

/// What follows the tag, with the version of this form.
const MAGIC: [u8; 16] = *b"sandglass code 1";

const HEADER_BYTES: usize = TAG_BYTES + MAGIC.len() + ID_BYTES;

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

/// Code that Wasmtime has compiled in this process, or in a helper that this process started.
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

    /// The module that it is.
    ///
    /// # Errors
    /// It is too large for `engine`'s pool, or was compiled by an engine with other settings.
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn module(&self, engine: &Engine) -> wasmtime::Result<Module> {
        // SAFETY: wasmtime asks for its own unmodified output, which alone a `Fresh` is made
        // of, here or by `Genuine::into_fresh`; it is never changed. Whether its settings are the
        // engine's, wasmtime looks itself.
        unsafe { Module::deserialize(engine, &self.0) }
    }

    /// The component that it is.
    ///
    /// # Errors
    /// As [`Fresh::module`].
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn component(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: as for modules; wasmtime itself tells the two kinds apart.
        unsafe { Component::deserialize(engine, &self.0) }
    }
}

/// Code that a host with this folder's key has compiled and sealed, unchanged since; or a helper
/// with the key that it was started with.
pub(crate) struct Genuine {
    sealed: Vec<u8>,
}

impl Genuine {
    /// The module that it is.
    ///
    /// # Errors
    /// It is for another machine, or too large for `engine`'s pool.
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn module(&self, engine: &Engine) -> wasmtime::Result<Module> {
        // SAFETY: wasmtime asks for the unmodified output of `Engine::precompile_module`, of
        // any version. A `Genuine` is made by `Seal::open` alone, of bytes with a tag that only
        // `Seal::seal` makes, with a key that only this user can read; and that one seals
        // nothing but a `Fresh`, which is such output.
        unsafe { Module::deserialize(engine, self.code()) }
    }

    /// The component that it is.
    ///
    /// # Errors
    /// As [`Genuine::module`].
    #[allow(unsafe_code, reason = "there is no other way back from compiled code")]
    pub(crate) fn component(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: as for modules, with `Engine::precompile_component`; wasmtime itself tells the
        // two kinds apart.
        unsafe { Component::deserialize(engine, self.code()) }
    }

    /// The same, for another key to seal.
    pub(crate) fn into_fresh(self) -> Fresh {
        let mut code = self.sealed;
        code.drain(..HEADER_BYTES.min(code.len()));
        Fresh(code)
    }

    fn code(&self) -> &[u8] {
        self.sealed.get(HEADER_BYTES..).unwrap_or_default()
    }
}

/// Why sealed bytes are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotGenuine {
    #[error("it isn't what was written there, or another key sealed it")]
    Forged,
    #[error("it is another entry than its name says")]
    Misplaced,
}

/// The key of a folder or of a helper, in use.
pub(crate) struct Seal(hmac::Key);

impl Seal {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// `code` as a file holds it.
    pub(crate) fn seal(&self, entry: &Entry, code: &Fresh) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(HEADER_BYTES + code.0.len());
        sealed.extend([0; TAG_BYTES]);
        sealed.extend(MAGIC);
        sealed.extend(entry.0);
        sealed.extend(&code.0);
        let (tag, content) = sealed.split_at_mut(TAG_BYTES);
        tag.copy_from_slice(hmac::sign(&self.0, content).as_ref());
        sealed
    }

    /// The code in `sealed`.
    ///
    /// # Errors
    /// It was not sealed by this key as this entry, or has changed since.
    pub(crate) fn open(&self, entry: &Entry, sealed: Vec<u8>) -> Result<Genuine, NotGenuine> {
        let (tag, content) = sealed.split_at_checked(TAG_BYTES).ok_or(NotGenuine::Forged)?;
        hmac::verify(&self.0, content, tag).map_err(|_| NotGenuine::Forged)?;
        // Nothing else was ever sealed; but it may be of another version of this host, or
        // have been given another entry's name.
        let id = content.strip_prefix(&MAGIC).and_then(<[u8]>::first_chunk);
        if id != Some(&entry.0) {
            return Err(NotGenuine::Misplaced);
        }
        Ok(Genuine { sealed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: Entry = Entry([7; ID_BYTES]);

    fn sealed() -> (Seal, Vec<u8>) {
        let seal = Seal::new(&[1; KEY_BYTES]);
        let sealed = seal.seal(&ENTRY, &Fresh(b"machine code".to_vec()));
        (seal, sealed)
    }

    #[test]
    fn what_was_sealed_is_opened_as_it_was() {
        let (seal, sealed) = sealed();
        let genuine = seal.open(&ENTRY, sealed).expect("unchanged");
        assert_eq!(genuine.code(), b"machine code");
    }

    #[test]
    fn no_bit_can_change_and_no_byte_go_or_come() {
        let (seal, sealed) = sealed();
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(seal.open(&ENTRY, changed).err(), Some(NotGenuine::Forged), "{at}");
            }
        }
        for end in 0..sealed.len() {
            assert_eq!(
                seal.open(&ENTRY, sealed[..end].to_vec()).err(),
                Some(NotGenuine::Forged),
                "{end}"
            );
        }
        let longer = [sealed.as_slice(), &[0]].concat();
        assert_eq!(seal.open(&ENTRY, longer).err(), Some(NotGenuine::Forged));
    }

    #[test]
    fn another_key_and_another_name_open_nothing() {
        let (seal, sealed) = sealed();
        let other = Seal::new(&[2; KEY_BYTES]);
        assert_eq!(other.open(&ENTRY, sealed.clone()).err(), Some(NotGenuine::Forged));
        let misplaced = seal.open(&Entry([8; ID_BYTES]), sealed);
        assert_eq!(misplaced.err(), Some(NotGenuine::Misplaced));
    }
}
