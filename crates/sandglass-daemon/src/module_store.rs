//! Uploaded modules, stored in a folder beside the journal: one file for each, named by the hash of its
//! bytes, and an index of the current ones, which is replaced atomically. A crash leaves the old index,
//! and at most a file that no index names.
//!
//! ```text
//! runs.db.modules/
//!   index.json          {"modules": {"run_tools": {"hash": "9f..", "by": "ann", "at": 1700000000000}}}
//!   9f...               the bytes
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use sandglass_model::{ModuleHash, WallTime};
use serde::{Deserialize, Serialize};

const INDEX: &str = "index.json";
/// Largest index that is read, in bytes: thousands of modules.
const INDEX_MAX_BYTES: u64 = 4 << 20;

/// Why uploaded modules cannot be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file cannot be read or written.
    #[error("failed to read or write `{}`, which stores uploaded modules: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A file does not have the content that was written.
    #[error("`{}` is damaged ({what}); remove it, and upload the module again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// The uploaded modules, by name.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    modules: BTreeMap<String, StoredModule>,
}

/// An uploaded module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredModule {
    pub(crate) hash: ModuleHash,
    pub(crate) by: String,
    pub(crate) at: WallTime,
}

/// The folder of uploaded modules.
#[derive(Clone, Debug)]
pub(crate) struct ModuleStore {
    folder: PathBuf,
}

impl ModuleStore {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Reads all modules with their bytes.
    pub(crate) fn read(&self) -> Result<BTreeMap<String, (StoredModule, Vec<u8>)>, StoreError> {
        let index = self.index()?;
        let mut modules = BTreeMap::new();
        for (name, module) in index.modules {
            let path = self.file(module.hash);
            let bytes =
                fs::read(&path).map_err(|why| StoreError::Io { path: path.clone(), why })?;
            if ModuleHash::of(&bytes) != module.hash {
                let what = "its bytes have another hash than its name".to_owned();
                return Err(StoreError::Damaged { path, what });
            }
            modules.insert(name, (module, bytes));
        }
        Ok(modules)
    }

    /// Stores this version of the module `name` durably. If that fails, the previous version stays.
    pub(crate) fn store(
        &self,
        name: &str,
        module: StoredModule,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let created = fs::create_dir_all(&self.folder);
        created.map_err(|why| StoreError::Io { path: self.folder.clone(), why })?;
        let mut index = self.index()?;
        let file = self.file(module.hash);
        self.replace(&file, bytes)?;
        index.modules.insert(name.to_owned(), module);
        let text = serde_json::to_vec_pretty(&index).expect("plain data with text for keys");
        self.replace(&self.folder.join(INDEX), &text)?;
        self.sweep(&index);
        Ok(())
    }

    fn index(&self) -> Result<Index, StoreError> {
        let path = self.folder.join(INDEX);
        let mut text = Vec::new();
        match File::open(&path) {
            Ok(file) => {
                let read = file.take(INDEX_MAX_BYTES).read_to_end(&mut text);
                read.map_err(|why| StoreError::Io { path: path.clone(), why })?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Index::default()),
            Err(why) => return Err(StoreError::Io { path, why }),
        }
        serde_json::from_slice(&text)
            .map_err(|error| StoreError::Damaged { path, what: error.to_string() })
    }

    fn file(&self, hash: ModuleHash) -> PathBuf {
        self.folder.join(hash.to_string())
    }

    /// Replaces a file atomically: a reader, or a restart, finds the old or the new one.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let new = path.with_extension("new");
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&new, path))
            .and_then(|()| File::open(&self.folder)?.sync_all());
        written.map_err(|why| StoreError::Io { path: path.to_owned(), why })
    }

    /// Removes files that the index does not name. A file that cannot be removed only costs space.
    fn sweep(&self, index: &Index) {
        let named: BTreeSet<String> =
            index.modules.values().map(|module| module.hash.to_string()).collect();
        for file in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = file.file_name();
            let is_ours = name.to_str().is_some_and(|name| {
                let stem = name.strip_suffix(".new").unwrap_or(name);
                stem.parse::<ModuleHash>().is_ok() && !named.contains(name)
            });
            if is_ours {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: &[u8]) -> StoredModule {
        StoredModule {
            hash: ModuleHash::of(bytes),
            by: "ann".to_owned(),
            at: WallTime::from_millis(7),
        }
    }

    #[test]
    fn the_last_version_is_stored_and_earlier_ones_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = ModuleStore::new(folder.path().join("modules"));
        assert!(store.read().expect("nothing yet").is_empty());
        for bytes in [b"one", b"two"] {
            store.store("a/../b", stored(bytes), bytes).expect("room on the disk");
        }
        let modules = store.read().expect("as written");
        assert_eq!(modules["a/../b"], (stored(b"two"), b"two".to_vec()));
        assert_eq!(fs::read_dir(folder.path().join("modules")).expect("there").count(), 2);
    }

    #[test]
    fn a_file_that_was_changed_is_reported_as_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = ModuleStore::new(folder.path().to_owned());
        store.store("tool", stored(b"one"), b"one").expect("room on the disk");
        fs::write(store.file(stored(b"one").hash), b"other").expect("written");
        assert!(matches!(store.read(), Err(StoreError::Damaged { .. })));
        fs::write(folder.path().join(INDEX), b"{").expect("written");
        assert!(matches!(store.read(), Err(StoreError::Damaged { .. })));
    }
}
