//! Keeps compiled code on disk for the next start, in a folder that only this user can use, up to a
//! size. Code that cannot be read back is compiled again, so no error of the disk fails a load.
//!
//! ```text
//! sandglass.key        32 random bytes, made with the folder
//! 3f..a9.code          one entry, sealed with that key; its modification time is its last use
//! .77..02.new          a file that is being written, or was when a process ended
//! ```

mod files;
mod genuine;
mod memory;

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandglass_model::{Clock, Entropy as _, SystemEntropy};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::CompiledCode;

use files::{Folder, Unfit};
pub(crate) use genuine::{Code, Entry, Fresh, KEY_BYTES, NotGenuine, Seal, TRAILER_BYTES};
pub(crate) use memory::file_in_memory;

/// The name of the folder's key: one that no other program uses.
const KEY: &str = "sandglass.key";

/// The suffix of entries.
const CODE: &str = ".code";

/// The suffix of files that are being written.
const NEW: &str = ".new";

/// Largest entry that is read or written, in bytes: eight times the largest component that is allowed
/// by default. Code of toolchains' components is 2 to 6 times as large. It is in memory while it is used.
pub(crate) const ENTRY_MAX_BYTES: u64 = 256 << 20;

/// Age at which a file that was being written counts as left over: no write takes as long.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(3600);

/// Why a folder cannot keep compiled code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("{0}")]
    Unfit(#[from] Unfit),
    #[error("its key cannot be created or read: {0}")]
    Key(io::Error),
}

impl Unusable {
    /// Whether the reason is only a full or read-only disk, which costs time and no safety.
    pub(crate) fn is_for_lack_of_room(&self) -> bool {
        let (Self::Unfit(Unfit::Io(error)) | Self::Key(error)) = self else { return false };
        matches!(
            error.kind(),
            io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::ReadOnlyFilesystem
        )
    }
}

/// The file of an entry was not genuine, and is removed.
struct Discarded;

/// A folder of compiled code.
pub(crate) struct CompiledFolder {
    folder: Folder,
    seal: Seal,
    max_bytes: u64,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl CompiledFolder {
    /// Opens the folder at `path`, and creates it if necessary. It keeps `max_bytes`.
    ///
    /// # Errors
    /// Others can use it, or it cannot be written.
    pub(crate) fn open(
        path: &Path,
        max_bytes: u64,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
    ) -> Result<Self, Unusable> {
        let folder = Folder::open(path, &new_name().map_err(Unfit::Io)?)?;
        let seal = Seal::new(&key(&folder).map_err(Unusable::Key)?);
        Ok(Self { folder, seal, max_bytes, clock, metrics })
    }

    /// The code of `entry`, if it is there and genuine. A file that is not genuine is removed, with a
    /// warning.
    pub(crate) fn find(&self, entry: &Entry) -> Option<Code> {
        let (code, found) = match self.look_up(entry) {
            Ok(Some(code)) => (Some(code), CompiledCode::Hit),
            Ok(None) => (None, CompiledCode::Miss),
            Err(Discarded) => (None, CompiledCode::Unusable),
        };
        self.metrics.compiled_code(found);
        code
    }

    /// Whether there is a file for `entry`, which may not be genuine.
    pub(crate) fn has(&self, entry: &Entry) -> bool {
        self.folder.path().join(file_name(entry)).exists()
    }

    fn look_up(&self, entry: &Entry) -> Result<Option<Code>, Discarded> {
        let name = file_name(entry);
        let file = match self.folder.open_file(&name, ENTRY_MAX_BYTES) {
            Ok(file) => file,
            Err(Unfit::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(unfit) => return Err(self.discard(&name, &unfit)),
        };
        match self.open_entry(entry, &file) {
            Ok(code) => {
                // An error only changes which entry is removed first.
                let _ = file.set_modified(self.now());
                Ok(Some(code))
            }
            Err(why) => Err(self.discard(&name, &why)),
        }
    }

    fn open_entry(&self, entry: &Entry, file: &fs::File) -> Result<Code, NotGenuine> {
        let mut sealed = file_in_memory()?;
        // If the file grows meanwhile, it is cut, so that its seal does not match.
        io::copy(&mut file.take(ENTRY_MAX_BYTES), &mut sealed)?;
        self.seal.open(entry, sealed)
    }

    /// Keeps `code` as `entry`. If the folder becomes too large, the entries that were used longest
    /// ago are removed.
    pub(crate) fn keep(&self, entry: &Entry, code: &Code) {
        let name = file_name(entry);
        if let Err(error) = self.write(entry, &name, code) {
            let path = self.folder.path().join(&name);
            tracing::warn!(file = ?path, "compiled code cannot be kept: {error}");
        }
        self.make_room();
    }

    fn write(&self, entry: &Entry, name: &str, code: &Code) -> io::Result<()> {
        let bytes = code.size()?.saturating_add(TRAILER_BYTES as u64);
        let max_bytes = self.max_bytes.min(ENTRY_MAX_BYTES);
        if bytes > max_bytes {
            let why = format!("it has {bytes} bytes, and {max_bytes} are allowed");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let trailer = self.seal.trailer(entry, code.bytes()?)?;
        self.folder.replace(&new_name()?, name, code.bytes()?.chain(trailer.as_slice()))
    }

    fn discard(&self, name: &str, why: &dyn std::fmt::Display) -> Discarded {
        let path = self.folder.path().join(name);
        tracing::warn!(file = ?path, "compiled code is not used, and compiled again: {why}");
        // If it cannot be removed, it is replaced later.
        let _ = fs::remove_file(path);
        Discarded
    }

    fn make_room(&self) {
        let mut kept = Vec::new();
        let now = self.now();
        for file in self.folder.files() {
            if file.name.ends_with(CODE) {
                kept.push(file);
            } else if file.name.ends_with(NEW)
                && now.duration_since(file.modified).is_ok_and(|age| age > LEFT_OVER_AFTER)
            {
                let _ = fs::remove_file(self.folder.path().join(file.name));
            }
        }
        kept.sort_by_key(|file| file.modified);
        let mut bytes: u64 = kept.iter().map(|file| file.bytes).sum();
        for oldest in kept {
            if bytes <= self.max_bytes {
                return;
            }
            // Another process may have removed it.
            let _ = fs::remove_file(self.folder.path().join(oldest.name));
            bytes = bytes.saturating_sub(oldest.bytes);
        }
    }

    fn now(&self) -> SystemTime {
        let since = u64::try_from(self.clock.wall().as_millis()).unwrap_or(0);
        SystemTime::UNIX_EPOCH + Duration::from_millis(since)
    }
}

impl std::fmt::Debug for CompiledFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CompiledFolder").field(&self.folder.path()).finish()
    }
}

/// The folder's key. One that others may know, or that is damaged, is replaced; all that it has sealed
/// is lost with it.
fn key(folder: &Folder) -> io::Result<[u8; KEY_BYTES]> {
    match read_key(folder) {
        Ok(key) => return Ok(key),
        Err(Unfit::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Err(unfit) => {
            let path = folder.path().join(KEY);
            tracing::warn!(file = ?path, "the key is not used, and replaced: {unfit}");
            fs::remove_file(path)?;
        }
    }
    let mut key = [0; KEY_BYTES];
    SystemEntropy.fill(&mut key).map_err(io::Error::other)?;
    folder.create(&new_name()?, KEY, key.as_slice())?;
    // Another process may have created it first.
    read_key(folder).map_err(|unfit| match unfit {
        Unfit::Io(error) => error,
        other => io::Error::other(other),
    })
}

fn file_name(entry: &Entry) -> String {
    format!("{}{CODE}", entry.name())
}

/// A random name for a file that is being written.
fn new_name() -> io::Result<String> {
    let mut random = [0; 8];
    SystemEntropy.fill(&mut random).map_err(io::Error::other)?;
    Ok(format!(".{:016x}{NEW}", u64::from_ne_bytes(random)))
}

fn read_key(folder: &Folder) -> Result<[u8; KEY_BYTES], Unfit> {
    let file = folder.open_file(KEY, KEY_BYTES as u64)?;
    let mut bytes = Vec::new();
    file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    bytes.try_into().map_err(|_| Unfit::Size)
}

#[cfg(test)]
mod tests;
