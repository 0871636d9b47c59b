//! The modules that a guest replay has, by the hash of their bytes: all files of a
//! folder, whatever they are called. What a link in it leads to is looked at where that is a
//! file; links to folders aren't followed.

use std::collections::HashMap;
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

/// What modules and components begin with
/// (<https://webassembly.github.io/spec/core/binary/modules.html#binary-module>).
const MAGIC: [u8; 4] = *b"\0asm";

/// Where each module is.
#[derive(Debug)]
pub(super) struct Guests {
    files: HashMap<ModuleHash, PathBuf>,
}

impl Guests {
    /// Looks through `folder`. What can't be read, and what is too large, is told on
    /// standard error and passed over; what is no module is passed over.
    ///
    /// # Errors
    /// The folder can't be read, or has too many files.
    pub(super) fn find(folder: &Path) -> anyhow::Result<Self> {
        let mut guests = Self { files: HashMap::new() };
        let mut waiting = vec![(folder.to_owned(), 0)];
        let mut count = 0;
        while let Some((folder, depth)) = waiting.pop() {
            for path in entries(&folder)? {
                if path.is_dir() {
                    if depth < DEPTH_MAX && !path.is_symlink() {
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
        match module(&path) {
            Ok(Some(bytes)) => {
                self.files.entry(ModuleHash::of(&bytes)).or_insert(path);
            }
            Ok(None) => {}
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

/// The bytes of a file that begins as a module, or is called as the text of one; none of
/// any other, which isn't read.
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
    // The same order everywhere.
    entries.sort();
    Ok(entries)
}
