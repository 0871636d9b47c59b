//! Finds the modules of a folder for a guest replay, by the hash of their bytes and independent of
//! their names. Links to files are followed, links to folders are not.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandglass_host::file;
use sandglass_model::ModuleHash;

/// Most files that are examined: more than there are versions of integrations.
const FILES_MAX: usize = 10_000;
/// How deep folders are searched.
const DEPTH_MAX: usize = 8;
/// Largest file that can be a module, in bytes: above the limit that any manifest can set.
const FILE_MAX_BYTES: u64 = 256 << 20;

/// The first bytes of modules and components
/// (<https://webassembly.github.io/spec/core/binary/modules.html#binary-module>).
const MAGIC: [u8; 4] = *b"\0asm";

/// The paths of modules.
#[derive(Debug)]
pub(super) struct Guests {
    files: HashMap<ModuleHash, PathBuf>,
}

impl Guests {
    /// Searches `folder`. Skips files that are not modules, and reports those that are too large or
    /// cannot be read on standard error.
    ///
    /// # Errors
    /// Errors if the folder cannot be read, or has too many files.
    pub(super) fn find(folder: &Path) -> anyhow::Result<Self> {
        let mut guests = Self { files: HashMap::new() };
        let mut pending = vec![(folder.to_owned(), 0)];
        let mut count = 0;
        while let Some((folder, depth)) = pending.pop() {
            for path in entries(&folder)? {
                if path.is_dir() {
                    if depth < DEPTH_MAX && !path.is_symlink() {
                        pending.push((path, depth + 1));
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
        match module(&path) {
            Ok(Some(bytes)) => {
                self.files.entry(ModuleHash::of(&bytes)).or_insert(path);
            }
            Ok(None) => {}
            Err(error) => crate::terminal::note(&format!("skipped: {error}")),
        }
    }

    /// Reads a module; `None` if the folder has no module with this hash.
    ///
    /// # Errors
    /// Errors if its file cannot be read any more, or has changed.
    pub(super) fn read(&self, module: ModuleHash) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(path) = self.files.get(&module) else { return Ok(None) };
        let bytes = file::read(path, FILE_MAX_BYTES)?;
        if ModuleHash::of(&bytes) != module {
            bail!("`{}` has changed meanwhile", path.display());
        }
        Ok(Some(bytes))
    }
}

/// Reads a file that starts like a module, or has the extension of one as text; `None` for any
/// other, which is not read.
fn module(path: &Path) -> Result<Option<Vec<u8>>, file::Error> {
    let is_text = path.extension().is_some_and(|extension| extension == "wat");
    if !is_text && file::start(path, MAGIC.len() as u64)? != MAGIC {
        return Ok(None);
    }
    file::read(path, FILE_MAX_BYTES).map(Some)
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
    // So that of several copies the first is found in every file system.
    entries.sort();
    Ok(entries)
}
