//! Files in a folder that belongs to this user alone: what others could have written is
//! not read, and what is written is there whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Who may do what with the folder: its owner, everything.
const FOLDER_MODE: u32 = 0o700;

/// And with its files: its owner may read and write them.
const FILE_MODE: u32 = 0o600;

/// What nobody else may have, in either.
const OTHERS: u32 = 0o077;

/// Why a file or folder is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is none of the kind that is expected there")]
    Kind,
    #[error("it belongs to another user")]
    Owner,
    #[error("others than its owner can use it")]
    Mode,
    #[error("it hasn't the size that it should have")]
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
    /// The folder at `path`, made where there is none; a file called `new` is made in it
    /// and removed.
    ///
    /// # Errors
    /// It can't be made or written, or isn't this user's alone.
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
        // Whose this process's files are is who it is, as far as files go; where it can make
        // none, as whom the kernel has it.
        let probe = path.join(new);
        let owner = match created(&probe).and_then(|file| file.metadata()) {
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
    /// It isn't there or can't be read; or it isn't an ordinary file of this user's alone.
    pub(super) fn open_file(&self, name: &str, max: u64) -> Result<File, Unfit> {
        // Neither a link nor a pipe that nobody writes to leads anywhere else. What is
        // asked of the open file is true of the bytes that are read.
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

    /// Has the file called `name` hold `bytes`, written as `new` first.
    pub(super) fn replace(&self, new: &str, name: &str, bytes: impl Read) -> io::Result<()> {
        self.written(new, bytes, |new| fs::rename(new, self.path.join(name)))
    }

    /// The same, unless there is one of that name.
    pub(super) fn create(&self, new: &str, name: &str, bytes: impl Read) -> io::Result<()> {
        self.written(new, bytes, |new| match fs::hard_link(new, self.path.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => fs::remove_file(new),
        })
    }

    fn written(
        &self,
        new: &str,
        mut bytes: impl Read,
        take_its_place: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let new = self.path.join(new);
        let written = created(&new)
            .and_then(|mut file| io::copy(&mut bytes, &mut file).and_then(|_| file.sync_all()))
            .and_then(|()| take_its_place(&new))
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

/// A new file, of which nothing was there before.
fn created(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}
