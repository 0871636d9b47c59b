//! Files in a folder that only this user can use: files that others could have written are not read,
//! and a file that is written is there completely or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folder's permissions: everything for its owner.
const FOLDER_MODE: u32 = 0o700;

/// The permissions of its files: reading and writing for their owner.
const FILE_MODE: u32 = 0o600;

/// The permissions that neither may have.
const OTHERS: u32 = 0o077;

/// Why a file or folder is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is not of the expected kind")]
    Kind,
    #[error("it belongs to another user")]
    Owner,
    #[error("others than its owner can use it")]
    Mode,
    #[error("it does not have the size that it should have")]
    Size,
}

/// A folder that belongs to this user alone.
pub(super) struct Folder {
    path: PathBuf,
    owner: u32,
}

/// A file in it.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) modified: SystemTime,
}

impl Folder {
    /// Opens the folder at `path`, and creates it if necessary. To find out as whom this process
    /// writes, a file called `new` is created in it and removed.
    ///
    /// # Errors
    /// It cannot be created or written, or others can use it.
    pub(super) fn open(path: &Path, new: &str) -> Result<Self, Unfit> {
        let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
        made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => Unfit::Kind,
            _ => Unfit::Io(error),
        })?;
        let metadata = fs::metadata(path)?;
        if metadata.mode() & OTHERS != 0 {
            return Err(Unfit::Mode);
        }
        // The owner of a new file is the user as which this process writes. On a read-only file
        // system, the kernel's own account of the process has to do.
        let probe = path.join(new);
        let owner = match create_new(&probe).and_then(|file| file.metadata()) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                fs::metadata("/proc/self").map(|this| this.uid()).map_err(|_| error)
            }
            made => made.map(|made| made.uid()),
        };
        let _ = fs::remove_file(&probe);
        let owner = owner?;
        if metadata.uid() != owner {
            return Err(Unfit::Owner);
        }
        Ok(Self { path: path.to_owned(), owner })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file called `name`, opened. It has at most `max` bytes, and may grow while it is read.
    ///
    /// # Errors
    /// It does not exist or cannot be read; or it is not an ordinary file that only this user can use.
    pub(super) fn open_file(&self, name: &str, max: u64) -> Result<File, Unfit> {
        // A link must not lead elsewhere, and a pipe must not block. The checks are on the open file,
        // so they hold for the bytes that are read.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file =
            OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(name)).map_err(
                |error| match error.raw_os_error() {
                    Some(libc::ELOOP) => Unfit::Kind,
                    _ => Unfit::Io(error),
                },
            )?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(Unfit::Kind);
        }
        if metadata.uid() != self.owner {
            return Err(Unfit::Owner);
        }
        if metadata.mode() & OTHERS != 0 {
            return Err(Unfit::Mode);
        }
        if metadata.len() > max {
            return Err(Unfit::Size);
        }
        Ok(file)
    }

    /// Replaces the file called `name` by one with `bytes`, which is first written as `new`.
    pub(super) fn replace(&self, new: &str, name: &str, bytes: impl Read) -> io::Result<()> {
        self.write(new, bytes, |new| fs::rename(new, self.path.join(name)))
    }

    /// As [`Folder::replace`], but does nothing if there is a file called `name`.
    pub(super) fn create(&self, new: &str, name: &str, bytes: impl Read) -> io::Result<()> {
        self.write(new, bytes, |new| match fs::hard_link(new, self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::remove_file(new),
        })
    }

    fn write(
        &self,
        new: &str,
        mut bytes: impl Read,
        put_in_place: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let new = self.path.join(new);
        let written = create_new(&new)
            .and_then(|mut file| io::copy(&mut bytes, &mut file).and_then(|_| file.sync_all()))
            .and_then(|()| put_in_place(&new))
            .and_then(|()| File::open(&self.path)?.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    /// The files in it whose names are text.
    pub(super) fn files(&self) -> impl Iterator<Item = Listed> {
        let files = fs::read_dir(&self.path).into_iter().flatten().flatten();
        files.filter_map(|file| {
            let metadata = file.metadata().ok()?;
            Some(Listed {
                name: file.file_name().into_string().ok()?,
                bytes: metadata.len(),
                modified: metadata.modified().ok()?,
            })
        })
    }
}

/// Creates a file. Errors if there is one.
fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}
