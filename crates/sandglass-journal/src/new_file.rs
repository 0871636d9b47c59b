//! A file that is written under another name beside its destination, and appears there complete and
//! synced, or never. It replaces no file with contents.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::Error;

/// A file on its way to its place, which only its owner may read and write. Dropped before
/// [`NewFile::finish`], it goes away; where the process is killed, it is left under a name that
/// ends in `.partial`.
#[derive(Debug)]
pub struct NewFile {
    partial: NamedTempFile,
    folder: PathBuf,
    to: PathBuf,
    over: Over,
}

/// What may exist at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Nothing,
    Empty,
}

impl NewFile {
    /// Begins the file for the destination `to`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if `to` exists, or if its folder does not exist or accepts no file.
    pub fn begin(to: &Path) -> Result<Self, Error> {
        if to.symlink_metadata().is_ok() {
            return Err(taken(to));
        }
        Self::beside(to, Over::Nothing)
    }

    /// As [`NewFile::begin`], but an empty file may exist at `to`. It is replaced, and its
    /// permissions to read are kept. The caller makes sure that no other process writes there.
    pub(crate) fn in_place_of_empty(to: &Path) -> Result<Self, Error> {
        match to.metadata() {
            Ok(empty) => {
                let file = Self::beside(to, Over::Empty)?;
                let shared = file.partial.as_file().set_permissions(empty.permissions());
                shared.map_err(|error| unavailable(to, &error))?;
                Ok(file)
            }
            Err(_) => Self::begin(to),
        }
    }

    fn beside(to: &Path, over: Over) -> Result<Self, Error> {
        let Some(name) = to.file_name() else {
            return Err(unavailable(to, &"it names no file; name one"));
        };
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let mut begins = name.to_owned();
        begins.push(".");
        let mut partial = tempfile::Builder::new();
        partial.prefix(&begins).suffix(".partial");
        let partial = partial.tempfile_in(&folder).map_err(|error| unavailable(to, &error))?;
        Ok(Self { partial, folder, to: to.to_owned(), over })
    }

    /// Its path until it is finished.
    pub(crate) fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// Truncates it.
    pub(crate) fn restart(&self) -> Result<(), Error> {
        self.partial.as_file().set_len(0).map_err(|error| unavailable(&self.to, &error))
    }

    /// Syncs it, and moves it to its destination.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the disk fails, or the destination exists by now.
    pub fn finish(self) -> Result<(), Error> {
        let failed = |error: io::Error| unavailable(&self.to, &error);
        self.partial.as_file().sync_all().map_err(failed)?;
        let placed = match self.over {
            Over::Nothing => self.partial.persist_noclobber(&self.to),
            Over::Empty => self.partial.persist(&self.to),
        };
        placed.map_err(|refused| match refused.error.kind() {
            io::ErrorKind::AlreadyExists => taken(&self.to),
            _ => failed(refused.error),
        })?;
        // The name is in the folder, which has to be synced as well.
        File::open(&self.folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.partial.flush()
    }
}

fn taken(to: &Path) -> Error {
    unavailable(to, &"there is such a file already; name another one")
}

fn unavailable(to: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Unavailable { what: format!("writing `{}` failed: {why}", to.display()) }
}
