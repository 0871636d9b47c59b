//! Examines SQLite's write-ahead log before SQLite opens it: SQLite takes what is intact and does
//! not report the rest, which a journal has to.
//!
//! The format: <https://sqlite.org/fileformat2.html#the_write_ahead_log>.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::{fault, file};
use crate::Error;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The magic number; its lowest bit states that checksums are big-endian.
const MAGIC: u32 = 0x377f_0682;
/// Largest page of SQLite, in bytes.
const PAGE_MAX_BYTES: u32 = 65_536;
/// How many times a log may have been restarted since the frames at its end were written. Each
/// restart adds one to its first salt, and frames of earlier generations are only at the end.
const GENERATIONS_MAX: u32 = 1 << 20;
/// How often a log is read that changes each time.
const LOOKS_MAX: usize = 10;

/// Describes the incomplete write at the end of the log beside `path`, as power failures and kills
/// leave one; `None` if there is none. A copy of such a log is kept.
///
/// # Errors
/// As [`check`].
pub(super) fn unfinished(path: &Path) -> Result<Option<String>, Error> {
    let scan = scanned(path)?;
    scan.refuse_losses(path)?;
    if scan.behind.frames == 0 {
        return Ok(None);
    }
    let (log, kept) = (file::sidecar(path, "-wal"), file::sidecar(path, "-wal.torn"));
    std::fs::copy(&log, &kept).map_err(|error| fault::of_file(&kept, "writing", &error))?;
    let what = format!(
        "the last write was not finished when its process or machine stopped, and is dropped; \
         what there is of it is kept in `{}`",
        kept.display()
    );
    Ok(Some(what))
}

/// Checks whether the log beside `path`, which another process may be writing, can be read to the
/// end of its finished writes.
///
/// # Errors
/// [`Error::Damaged`] if there are finished writes behind unreadable ones: callers know that they
/// are durable, so they must not be dropped.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let mut before = scanned(path)?;
    for _ in 0..LOOKS_MAX {
        if before.refuse_losses(path).is_ok() {
            return Ok(());
        }
        // Another process may have written or restarted it during the read. Damage does not move.
        let now = scanned(path)?;
        if (now.salts, now.whole) == (before.salts, before.whole) {
            return now.refuse_losses(path);
        }
        before = now;
    }
    Ok(())
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
    /// Distinguishes its generation from others.
    salts: [u8; 8],
    /// Frames up to the end of the last finished write that can be read.
    whole: u64,
    behind: Behind,
    /// Whether its header is unreadable although there is more.
    headless: bool,
}

/// What is behind the last finished write, of this generation or an unknown one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Behind {
    /// Frames, including a cut one.
    frames: u64,
    /// Those among them that finish a write.
    commits: u64,
    /// Writes that began there, as far as can be determined.
    writes: u64,
    /// The page of the previous frame, if the same write continues behind it.
    page: Option<u32>,
}

impl Behind {
    fn add(&mut self, frame: Frame<'_>) {
        // The pages of a write are in ascending order.
        let begins = self.page.is_none_or(|before| frame.page() <= before);
        self.writes += u64::from(begins);
        self.page = (!frame.commits()).then(|| frame.page());
        self.frames += 1;
        self.commits += u64::from(frame.commits());
    }

    /// Adds frames whose contents are unknown.
    fn add_unknown(&mut self, frames: u64) {
        if frames > 0 {
            self.writes = self.writes.max(1);
            self.page = self.page.or(Some(0));
            self.frames += frames;
        }
    }
}

impl Scan {
    /// Only the last finished write may be torn. Those before it are durable.
    fn refuse_losses(&self, path: &Path) -> Result<(), Error> {
        let Behind { commits, writes, .. } = self.behind;
        let what = if self.headless {
            "its header is damaged, and SQLite would drop all of it".to_owned()
        } else if commits > 1 || commits == 1 && writes > 1 {
            format!(
                "frame {} or one behind it is not as it was written, \
                 and {} finished writes stand there",
                self.whole + 1,
                commits.max(writes)
            )
        } else {
            return Ok(());
        };
        let log = file::sidecar(path, "-wal");
        Err(fault::damaged(&log, what + "; keep a copy, and restore a backup"))
    }
}

/// What was read of a frame: at least its header.
#[derive(Clone, Copy, Debug)]
struct Frame<'a> {
    bytes: &'a [u8],
    /// Whether its page was read, too.
    is_complete: bool,
}

impl Frame<'_> {
    fn page(&self) -> u32 {
        word(self.bytes, 0)
    }

    /// Whether it finishes a write: then it states the number of pages of the file.
    fn commits(&self) -> bool {
        self.is_complete && word(self.bytes, 4) != 0
    }

    fn salts(&self) -> &[u8] {
        &self.bytes[8..16]
    }

    /// Whether it is of an earlier generation.
    fn is_earlier_than(&self, salts: &[u8]) -> bool {
        (1..=GENERATIONS_MAX).contains(&word(salts, 0).wrapping_sub(word(self.salts(), 0)))
    }

    /// The running checksum behind it, if it continues one whose checksum is `before`.
    fn sum(&self, before: Checksum, big_endian: bool) -> Option<Checksum> {
        let (header, page) = self.bytes.split_at(FRAME_HEADER_BYTES);
        let sum = before.over(&header[..8], big_endian).over(page, big_endian);
        (self.is_complete && sum.is(&header[16..24])).then_some(sum)
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
    let sum = Checksum::default().over(&header[..24], big_endian);
    let known_page = page_bytes.is_power_of_two() && (512..=PAGE_MAX_BYTES).contains(&page_bytes);
    if magic & !1 != MAGIC || !known_page || !sum.is(&header[24..]) {
        scan.headless = log.read(&mut [0])? > 0;
        return Ok(scan);
    }
    scan.salts.copy_from_slice(&header[16..24]);
    let mut buffer = vec![0; FRAME_HEADER_BYTES + page_bytes as usize];
    // Frames that appear to be of an earlier generation.
    let mut earlier: u64 = 0;
    // `None` behind the first frame that SQLite will not take.
    let mut chain = Some(sum);
    loop {
        let read = read_up_to(log, &mut buffer)?;
        if read < FRAME_HEADER_BYTES {
            scan.behind.add_unknown(u64::from(read > 0 && earlier == 0));
            return Ok(scan);
        }
        let frame = Frame { bytes: &buffer[..read], is_complete: read == buffer.len() };
        let is_ours = frame.salts() == scan.salts;
        let sound = chain.and_then(|before| frame.sum(before, big_endian));
        // A frame that continues the checksum was written here, too, even if its salts differ.
        if is_ours || sound.is_some() {
            scan.behind.add_unknown(std::mem::take(&mut earlier));
            scan.behind.add(frame);
        } else if frame.is_earlier_than(&scan.salts) {
            earlier += 1;
        } else {
            scan.behind.add_unknown(1);
        }
        chain = sound.filter(|_| is_ours);
        if chain.is_some() && frame.commits() {
            scan.whole += scan.behind.frames;
            scan.behind = Behind::default();
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

    /// Whether it equals the one stored in these eight bytes.
    fn is(self, stored: &[u8]) -> bool {
        (self.0, self.1) == (word(stored, 0), word(stored, 4))
    }
}
