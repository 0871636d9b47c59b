//! Reads files that people name, each up to a bound: none fills the memory, however
//! large it is or grows.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Why what a file holds isn't to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It isn't there, or may not be read.
    #[error("can't read `{}`: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        why: io::Error,
    },
    /// It is larger than allowed.
    #[error("`{}` is larger than the {max_bytes} bytes allowed", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// How large it may be.
        max_bytes: u64,
    },
    /// It is no text.
    #[error("`{}` is no UTF-8 text", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
    },
}

/// All bytes of a file that has at most `max_bytes`.
///
/// # Errors
/// It can't be read, or has more.
pub fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    // One byte more than allowed shows that it is too large.
    let bytes = start(path, max_bytes.saturating_add(1))?;
    if bytes.len() as u64 > max_bytes {
        return Err(Error::TooLarge { path: path.to_owned(), max_bytes });
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As [`read`], or it is no UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> Result<String, Error> {
    let bytes = read(path, max_bytes)?;
    String::from_utf8(bytes).map_err(|_| Error::NoText { path: path.to_owned() })
}

/// The first `max_bytes` of a file, or all of a shorter one.
///
/// # Errors
/// It can't be read.
pub fn start(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(max_bytes).read_to_end(&mut bytes))
        .map_err(|why| Error::Unreadable { path: path.to_owned(), why })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_or_no_text_is_told_apart() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("file");
        assert!(matches!(read(&path, 9), Err(Error::Unreadable { .. })));
        std::fs::write(&path, "four").expect("written");
        assert_eq!(read_text(&path, 4).ok().as_deref(), Some("four"));
        assert!(matches!(read(&path, 3), Err(Error::TooLarge { max_bytes: 3, .. })));
        assert_eq!(start(&path, 3).ok().as_deref(), Some(&b"fou"[..]));
        std::fs::write(&path, [0xff]).expect("written");
        assert!(matches!(read_text(&path, 4), Err(Error::NoText { .. })));
    }
}
