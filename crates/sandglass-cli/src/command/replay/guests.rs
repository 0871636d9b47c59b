//! The modules that a guest replay has, by the hash of their bytes: all files of a
//! folder, whatever they are called.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandglass_host::file;
use sandglass_model::ModuleHash;

/// Most files that are looked at: more than anybody has integrations, in all their
/// versions.
const FILES_MAX: usize = 10_000;
/// How deep folders are looked into.
const DEPTH_MAX: usize = 8;
/// Largest file that is taken for a module, in bytes: above that of any component whose
/// manifest a host takes.
const FILE_MAX_BYTES: u64 = 256 << 20;

/// Where each module is.
#[derive(Debug)]
pub(super) struct Guests {
    files: HashMap<ModuleHash, PathBuf>,
}

impl Guests {
    /// Looks through `folder`. What can't be read, and what is too large, is told on
    /// standard error and passed over.
    ///
    /// # Errors
    /// The folder can't be read, or has too many files.
    pub(super) fn find(folder: &Path) -> anyhow::Result<Self> {
        let mut guests = Self { files: HashMap::new() };
        let mut seen = HashSet::new();
        let mut waiting = vec![(folder.to_owned(), 0)];
        let mut count = 0;
        while let Some((folder, depth)) = waiting.pop() {
            let whole = folder.canonicalize();
            let whole = whole.with_context(|| format!("can't read `{}`", folder.display()))?;
            // A link may lead back.
            if !seen.insert(whole) {
                continue;
            }
            for path in entries(&folder)? {
                if path.is_dir() {
                    if depth < DEPTH_MAX {
                        waiting.push((path, depth + 1));
                    }
                    continue;
                }
                count += 1;
                if count > FILES_MAX {
                    bail!("there are more than {FILES_MAX} files in `{}`", folder.display());
                }
                guests.add(path);
            }
        }
        Ok(guests)
    }

    fn add(&mut self, path: PathBuf) {
        match file::read(&path, FILE_MAX_BYTES) {
            Ok(bytes) => {
                self.files.entry(ModuleHash::of(&bytes)).or_insert(path);
            }
            Err(error) => crate::terminal::note(&format!("passed over: {error}")),
        }
    }

    /// The bytes of a module; none where the folder has none of this hash.
    ///
    /// # Errors
    /// Its file can't be read any more, or has changed.
    pub(super) fn read(&self, module: ModuleHash) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(path) = self.files.get(&module) else { return Ok(None) };
        let bytes = file::read(path, FILE_MAX_BYTES)?;
        if ModuleHash::of(&bytes) != module {
            bail!("`{}` has changed meanwhile", path.display());
        }
        Ok(Some(bytes))
    }
}

fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let unreadable = || format!("can't read the folder `{}`", folder.display());
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(unreadable)? {
        entries.push(entry.with_context(unreadable)?.path());
        if entries.len() > FILES_MAX {
            bail!("there are more than {FILES_MAX} files in `{}`", folder.display());
        }
    }
    // The same order everywhere.
    entries.sort();
    Ok(entries)
}
