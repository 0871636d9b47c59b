//! Reads files and lists folders within bounds, so that a large or growing one cannot fill the memory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most entries of a folder; a larger one is probably not the intended folder.
pub const FOLDER_ENTRIES_MAX: usize = 10_000;

/// Why a file or a folder could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It does not exist, or may not be read.
    #[error("can't read `{}`: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        why: io::Error,
    },
    /// It is a folder, pipe, socket or device.
    #[error("`{}` is no file but {what}", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is larger than allowed.
    #[error("`{}` is larger than the {max_bytes} bytes allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest allowed size, in bytes.
        max_bytes: u64,
    },
    /// It is not UTF-8.
    #[error("`{}` is no UTF-8 text", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
    },
    /// A folder has too many entries.
    #[error("folder `{}` has more than {max} {what}", path.display())]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// The largest allowed number.
        max: usize,
        /// What is counted.
        what: &'static str,
    },
}

/// Reads a file of at most `max_bytes`.
///
/// # Errors
/// It cannot be read, or is larger.
pub fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    // One byte more than allowed shows that it is too large.
    check_size(start(path, max_bytes.saturating_add(1))?, path, max_bytes)
}

/// Reads a text file of at most `max_bytes`.
///
/// # Errors
/// As [`read`], or it is not UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> Result<String, Error> {
    text(read(path, max_bytes)?, path)
}

/// Reads `source`, called `path` in messages, to its end as text of at most `max_bytes`.
///
/// # Errors
/// As [`read_text`].
pub fn text_of(source: impl Read, path: &Path, max_bytes: u64) -> Result<String, Error> {
    let mut bytes = Vec::new();
    let unreadable = |why| Error::Unreadable { path: path.to_owned(), why };
    source.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    text(check_size(bytes, path, max_bytes)?, path)
}

fn text(bytes: Vec<u8>, path: &Path) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|_| Error::NoText { path: path.to_owned() })
}

/// Checks that there are at most `max_bytes`.
fn check_size(bytes: Vec<u8>, path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    if bytes.len() as u64 > max_bytes {
        return Err(Error::TooLarge { path: path.to_owned(), max_bytes });
    }
    Ok(bytes)
}

/// Reads the first `max_bytes` of a file, or all of a shorter one.
///
/// # Errors
/// It cannot be read, or is not a regular file.
pub fn start(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    let unreadable = |why| Error::Unreadable { path: path.to_owned(), why };
    // Checked before it is opened, because opening a pipe would wait for a writer.
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let kind = metadata.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
        return Err(Error::NoFile { path: path.to_owned(), what });
    }
    let mut bytes = Vec::new();
    // Without it, a file of some megabytes would be copied several times while it is read. Reading finds
    // the end in the last byte.
    let expected = metadata.len().min(max_bytes).saturating_add(1);
    let reserved = bytes.try_reserve_exact(usize::try_from(expected).unwrap_or(usize::MAX));
    reserved.map_err(|error| unreadable(io::Error::new(io::ErrorKind::OutOfMemory, error)))?;
    File::open(path)
        .and_then(|file| file.take(max_bytes).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    Ok(bytes)
}

/// Lists the paths in a folder whose names are `wanted`, in the order of the names. Entries that are
/// not files or cannot be read are included, so that reading them reports the problem. Names that
/// begin with a dot are left out, because editors use them for their own files.
///
/// # Errors
/// The folder cannot be read, or has more than [`FOLDER_ENTRIES_MAX`] entries.
pub fn named_in(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, Error> {
    let unreadable = |why| Error::Unreadable { path: folder.to_owned(), why };
    let mut paths = Vec::new();
    for (number, entry) in fs::read_dir(folder).map_err(unreadable)?.enumerate() {
        if number >= FOLDER_ENTRIES_MAX {
            let (path, max) = (folder.to_owned(), FOLDER_ENTRIES_MAX);
            return Err(Error::TooMany { path, max, what: "entries" });
        }
        let entry = entry.map_err(unreadable)?;
        // The end of a name is compared even if the name is not UTF-8.
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with('.') && wanted(&name) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_and_files_that_are_not_text_have_different_errors() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        assert!(matches!(read(&path, 9), Err(Error::Unreadable { .. })));
        fs::write(&path, "four").expect("written");
        assert_eq!(read_text(&path, 4).ok().as_deref(), Some("four"));
        assert!(matches!(read(&path, 3), Err(Error::TooLarge { max_bytes: 3, .. })));
        assert_eq!(text_of(&b"four"[..], &path, 4).ok().as_deref(), Some("four"));
        assert!(matches!(text_of(&b"four"[..], &path, 3), Err(Error::TooLarge { .. })));
        assert_eq!(start(&path, 3).ok().as_deref(), Some(&b"fou"[..]));
        fs::write(&path, [0xff]).expect("written");
        assert!(matches!(read_text(&path, 4), Err(Error::NoText { .. })));
        for no_file in [folder.path(), Path::new("/dev/zero")] {
            assert!(matches!(start(no_file, 4), Err(Error::NoFile { .. })));
        }
    }

    #[cfg(unix)]
    #[test]
    fn wanted_names_are_listed_even_if_they_are_no_files() {
        use std::os::unix::ffi::OsStrExt as _;
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("b.x"), "").expect("written");
        fs::create_dir(at("a.x")).expect("made");
        symlink("nowhere", at("c.x")).expect("made");
        let no_text = folder.path().join(std::ffi::OsStr::from_bytes(b"d\xff.x"));
        fs::write(&no_text, "").expect("written");
        for other in ["e.y", ".f.x"] {
            fs::write(at(other), "").expect("written");
        }
        let found = named_in(folder.path(), |name| name.ends_with(".x")).expect("it is read");
        assert_eq!(found, [at("a.x"), at("b.x"), at("c.x"), no_text]);
        assert!(matches!(named_in(&at("b.x"), |_| true), Err(Error::Unreadable { .. })));
    }
}
