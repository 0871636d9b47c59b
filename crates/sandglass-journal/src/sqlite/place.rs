//! Which file a path leads to, and whether it can be a journal at all. Nothing is opened here, so
//! nothing can hang and no lock of SQLite is disturbed.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use super::{fault, file};
use crate::Error;

/// The files beside a journal, by their suffixes.
const SIDECARS: [&str; 4] = [".lock", "-wal", "-shm", "-journal"];

/// The file at `path`. Links are followed, as SQLite follows them before it names the files beside
/// a database. `None` if nothing is there.
///
/// # Errors
/// [`Error::Foreign`] if it cannot be a journal, whatever its contents.
pub(super) fn find(path: &Path) -> Result<Option<PathBuf>, Error> {
    let failed = |error: io::Error| fault::of_file(path, "opening", &error);
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match path.symlink_metadata() {
                Ok(_) => Err(fault::foreign(path, "it is a link that leads nowhere")),
                Err(_) => Ok(None),
            };
        }
        Err(error) => return Err(failed(error)),
    };
    check(path, &metadata)?;
    let found = path.canonicalize().map_err(failed)?;
    check_sidecars(&found)?;
    Ok(Some(found))
}

/// The file at `path`, or the path where it would be created.
///
/// # Errors
/// As [`find`], and [`Error::Unavailable`] if its folder does not exist.
pub(super) fn find_or_new(path: &Path) -> Result<PathBuf, Error> {
    if let Some(found) = find(path)? {
        return Ok(found);
    }
    let Some(name) = path.file_name() else {
        return Err(fault::foreign(path, "it names no file"));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let folder = folder.canonicalize().map_err(|error| fault::of_file(path, "creating", &error))?;
    let new = folder.join(name);
    check_sidecars(&new)?;
    Ok(new)
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), Error> {
    if metadata.is_dir() {
        return Err(fault::foreign(path, "it is a folder"));
    }
    if !metadata.is_file() {
        return Err(fault::foreign(path, "it is no regular file; name another one"));
    }
    // The lock and SQLite's log are found by name, so under another name of the file both would be
    // missed.
    if links(metadata) > 1 {
        let what = "the file has more than one name (a hard link); copy it, or remove the others";
        return Err(fault::foreign(path, what));
    }
    Ok(())
}

fn check_sidecars(path: &Path) -> Result<(), Error> {
    for suffix in SIDECARS {
        let beside = file::sidecar(path, suffix);
        if beside.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let what = format!("`{}` beside it is no regular file", beside.display());
            return Err(fault::foreign(path, what));
        }
    }
    Ok(())
}

#[cfg(unix)]
fn links(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(metadata)
}

#[cfg(not(unix))]
const fn links(_: &Metadata) -> u64 {
    1
}
