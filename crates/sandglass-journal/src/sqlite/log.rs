//! SQLite's write-ahead log, looked at before SQLite does: SQLite takes what is
//! whole and says nothing of what isn't, and here somebody wants to know.
//!
//! The format: <https://sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::{fault, file};
use crate::Error;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The magic number; its lowest bit says that checksums are big-endian.
const MAGIC: u32 = 0x377f_0682;
/// Largest page of SQLite, in bytes.
const PAGE_MAX_BYTES: u32 = 65_536;

/// What stands at the end of a log and will not be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    pub(super) what: String,
}

/// Looks whether the log beside `path` ends with a write that isn't whole, as power
/// failures and kills leave one. A copy of such a log is kept.
///
/// # Errors
/// As [`check`].
pub(super) fn unfinished(path: &Path) -> Result<Option<Unfinished>, Error> {
    let scan = scanned(path)?;
    scan.refuse_losses(path)?;
    if scan.frames_behind == 0 {
        return Ok(None);
    }
    let (log, kept) = (file::sidecar(path, "-wal"), file::sidecar(path, "-wal.torn"));
    std::fs::copy(&log, &kept).map_err(|error| fault::of_file(&kept, "writing", &error))?;
    let what = format!(
        "the last write was not finished when its process or machine stopped, and is dropped; \
         what there is of it is kept in `{}`",
        kept.display()
    );
    Ok(Some(Unfinished { what }))
}

/// Looks whether the log beside `path`, which somebody may be writing, can be read
/// to the end of its finished writes.
///
/// # Errors
/// [`Error::Damaged`] where finished writes stand behind what can't be read: those
/// were answered, so they must not be dropped.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let first = scanned(path)?.refuse_losses(path);
    // Whoever writes it may have begun it anew under the first look.
    if first.is_err() { scanned(path)?.refuse_losses(path) } else { first }
}

fn scanned(path: &Path) -> Result<Scan, Error> {
    let log = file::sidecar(path, "-wal");
    let failed = |error: io::Error| fault::of_file(&log, "reading", &error);
    match File::open(&log) {
        Ok(opened) => scan(&mut BufReader::new(opened)).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Scan::default()),
        Err(error) => Err(failed(error)),
    }
}

/// How far a log can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Scan {
    /// Frames up to the end of the last finished write that can be read.
    whole: u64,
    /// Frames of the same generation behind them, a cut one included.
    frames_behind: u64,
    /// Those among them that finish a write.
    commits_behind: u64,
    /// Whether its header can't be read, though there is more than that.
    headless: bool,
}

impl Scan {
    /// One finished write may be torn, the last. More than that was answered.
    fn refuse_losses(&self, path: &Path) -> Result<(), Error> {
        let what = if self.headless {
            "its header is damaged, and SQLite would drop all of it".to_owned()
        } else if self.commits_behind > 1 {
            let Self { whole, commits_behind, .. } = self;
            format!(
                "the checksum of frame {} or one behind it doesn't match, \
                 and {commits_behind} finished writes stand there",
                whole + 1
            )
        } else {
            return Ok(());
        };
        let place = format!("`{}`", file::sidecar(path, "-wal").display());
        Err(Error::Damaged { place, what: what + "; keep a copy, and restore a backup" })
    }
}

fn scan(log: &mut impl Read) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let mut header = [0; HEADER_BYTES];
    if read_up_to(log, &mut header)? < HEADER_BYTES {
        return Ok(scan);
    }
    let (magic, page_bytes) = (word(&header, 0), word(&header, 8));
    let big_endian = magic & 1 == 1;
    let mut sum = Checksum::default().over(&header[..24], big_endian);
    let known_page = page_bytes.is_power_of_two() && (512..=PAGE_MAX_BYTES).contains(&page_bytes);
    if magic & !1 != MAGIC || !known_page || !sum.is(&header[24..]) {
        scan.headless = log.read(&mut [0])? > 0;
        return Ok(scan);
    }
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes as usize];
    let mut chained = true;
    loop {
        let read = read_up_to(log, &mut frame)?;
        // What an earlier generation left has other salts.
        if read < 16 || frame[8..16] != header[16..24] {
            return Ok(scan);
        }
        let complete = read == frame.len();
        if chained && complete {
            sum = sum.over(&frame[..8], big_endian).over(&frame[FRAME_HEADER_BYTES..], big_endian);
            chained = sum.is(&frame[16..24]);
        }
        let commits = complete && word(&frame, 4) != 0;
        scan.frames_behind += 1;
        scan.commits_behind += u64::from(commits);
        if commits && chained {
            let whole = scan.whole + scan.frames_behind;
            scan = Scan { whole, ..Scan::default() };
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u32::from_be_bytes(word.unwrap_or_default())
}

/// Fills `buffer` as far as the input goes.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The running checksum of a log.
#[derive(Clone, Copy, Debug, Default)]
struct Checksum(u32, u32);

impl Checksum {
    fn over(self, bytes: &[u8], big_endian: bool) -> Self {
        let number = |four: &[u8]| {
            let four = four.try_into().unwrap_or_default();
            if big_endian { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
        };
        bytes.chunks_exact(8).fold(self, |Self(first, second), pair| {
            let first = first.wrapping_add(number(&pair[..4])).wrapping_add(second);
            let second = second.wrapping_add(number(&pair[4..])).wrapping_add(first);
            Self(first, second)
        })
    }

    /// Whether it is the one stored in these eight bytes.
    fn is(self, stored: &[u8]) -> bool {
        (self.0, self.1) == (word(stored, 0), word(stored, 4))
    }
}
