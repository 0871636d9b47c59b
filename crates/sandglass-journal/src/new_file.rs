//! A file that is written beside its place under another name, and takes its place
//! whole and synced, or never. It replaces nothing.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::Error;

/// A file on its way to its place. Dropped before [`NewFile::finish`], it goes away; where
/// the process is killed, it is left under a name that ends in `.partial`.
#[derive(Debug)]
pub struct NewFile {
    partial: NamedTempFile,
    folder: PathBuf,
    to: PathBuf,
}

impl NewFile {
    /// Begins the file that is to stand at `to`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where something stands there, or where its folder is absent
    /// or takes no file.
    pub fn begin(to: &Path) -> Result<Self, Error> {
        let Some(name) = to.file_name() else {
            return Err(unavailable(to, &"it names no file; name one"));
        };
        if to.symlink_metadata().is_ok() {
            return Err(taken(to));
        }
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        let mut begins = name.to_owned();
        begins.push(".");
        let partial = tempfile::Builder::new()
            .prefix(&begins)
            .suffix(".partial")
            .tempfile_in(&folder)
            .map_err(|error| unavailable(to, &error))?;
        Ok(Self { partial, folder, to: to.to_owned() })
    }

    /// Where it is until it is finished.
    pub(crate) fn partial(&self) -> &Path {
        self.partial.path()
    }

    /// Empties it, and lets those read it who may read `like`.
    pub(crate) fn restart(&self, like: Permissions) -> Result<(), Error> {
        let file = self.partial.as_file();
        let restarted = file.set_len(0).and_then(|()| file.set_permissions(like));
        restarted.map_err(|error| unavailable(&self.to, &error))
    }

    /// Brings it to the disk, and to its place.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the disk fails, or something stands there by now.
    pub fn finish(self) -> Result<(), Error> {
        let failed = |error: io::Error| unavailable(&self.to, &error);
        self.partial.as_file().sync_all().map_err(failed)?;
        self.partial.persist_noclobber(&self.to).map_err(|refused| match refused.error.kind() {
            io::ErrorKind::AlreadyExists => taken(&self.to),
            _ => failed(refused.error),
        })?;
        // The name is in the folder, which has to reach the disk as well.
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
