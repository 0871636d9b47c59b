//! The modules that clients have put, kept in a folder beside the journal: each file by
//! the hash of its bytes, and an index that names the present ones and is replaced
//! whole. What a crash leaves behind is an old index, or a file that none names.
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

/// Why modules that were put can't be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file can't be read or written.
    #[error("can't use `{}`, which keeps the modules that were put: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A file isn't what was written.
    #[error("`{}` isn't what was put ({what}); remove it, and put the module again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// The modules that were put, by name.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Index {
    modules: BTreeMap<String, Kept>,
}

/// A module that was put.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kept {
    pub(crate) hash: ModuleHash,
    pub(crate) by: String,
    pub(crate) at: WallTime,
}

/// The folder.
#[derive(Clone, Debug)]
pub(crate) struct ModuleStore {
    folder: PathBuf,
}

impl ModuleStore {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Everything that it keeps, with its bytes.
    pub(crate) fn read(&self) -> Result<BTreeMap<String, (Kept, Vec<u8>)>, StoreError> {
        let index = self.index()?;
        let mut modules = BTreeMap::new();
        for (name, kept) in index.modules {
            let path = self.file(kept.hash);
            let bytes =
                fs::read(&path).map_err(|why| StoreError::Io { path: path.clone(), why })?;
            if ModuleHash::of(&bytes) != kept.hash {
                let what = "its bytes have another hash than its name".to_owned();
                return Err(StoreError::Damaged { path, what });
            }
            modules.insert(name, (kept, bytes));
        }
        Ok(modules)
    }

    /// Keeps this version of the module called `name`. It is on the disk when this
    /// returns; where it fails, the one before is kept.
    pub(crate) fn keep(&self, name: &str, kept: Kept, bytes: &[u8]) -> Result<(), StoreError> {
        let made = fs::create_dir_all(&self.folder);
        made.map_err(|why| StoreError::Io { path: self.folder.clone(), why })?;
        let mut index = self.index()?;
        let file = self.file(kept.hash);
        self.replace(&file, bytes)?;
        index.modules.insert(name.to_owned(), kept);
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

    /// Replaces a file at once: a reader, or a restart, finds the old or the new one.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let new = path.with_extension("new");
        let written = File::create(&new)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&new, path))
            .and_then(|()| File::open(&self.folder)?.sync_all());
        written.map_err(|why| StoreError::Io { path: path.to_owned(), why })
    }

    /// Removes what the index doesn't name; what can't be removed costs only room.
    fn sweep(&self, index: &Index) {
        let named: BTreeSet<String> =
            index.modules.values().map(|kept| kept.hash.to_string()).collect();
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

    fn kept(bytes: &[u8]) -> Kept {
        Kept { hash: ModuleHash::of(bytes), by: "ann".to_owned(), at: WallTime::from_millis(7) }
    }

    #[test]
    fn the_last_version_is_kept_and_earlier_ones_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = ModuleStore::new(folder.path().join("modules"));
        assert!(store.read().expect("nothing yet").is_empty());
        for bytes in [b"one", b"two"] {
            store.keep("a/../b", kept(bytes), bytes).expect("room on the disk");
        }
        let modules = store.read().expect("as written");
        assert_eq!(modules["a/../b"], (kept(b"two"), b"two".to_vec()));
        assert_eq!(fs::read_dir(folder.path().join("modules")).expect("there").count(), 2);
    }

    #[test]
    fn what_is_not_as_it_was_put_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = ModuleStore::new(folder.path().to_owned());
        store.keep("tool", kept(b"one"), b"one").expect("room on the disk");
        fs::write(store.file(kept(b"one").hash), b"other").expect("written");
        assert!(matches!(store.read(), Err(StoreError::Damaged { .. })));
        fs::write(folder.path().join(INDEX), b"{").expect("written");
        assert!(matches!(store.read(), Err(StoreError::Damaged { .. })));
    }
}
