//! Whether another process has a journal open for writing, from the operating system's list of
//! locks. Trying the lock would also tell, but a host that starts at that moment would not get it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::file::sidecar;

/// Where Linux lists the locks of files (`proc_locks(5)`).
const LOCKS: &str = "/proc/locks";

/// How often the list is read before a lock counts as absent. The kernel returns the list in
/// pieces, and skips an entry when one before it is removed between two of them: with other
/// processes that lock and unlock 200 files all the time, 360 of 40,413 readings missed it.
const READINGS: usize = 5;

/// Whether another process writes to the journal at `path`; `None` if that cannot be determined.
pub(super) fn has_writer(path: &Path) -> Option<bool> {
    let lock = match fs::metadata(sidecar(path, ".lock")) {
        Ok(lock) => lock.ino(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(false),
        Err(_) => return None,
    };
    for _ in 0..READINGS {
        if is_locked(&fs::read_to_string(LOCKS).ok()?, lock) {
            return Some(true);
        }
    }
    Some(false)
}

/// Whether `locks` lists a lock as writers hold it, on the file with this inode number. The device
/// is not compared, because overlay file systems report two.
fn is_locked(locks: &str, inode: u64) -> bool {
    locks.lines().any(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK");
        let is_writers = words.next().is_some() && words.nth(1) == Some("WRITE");
        let file = words.nth(1).and_then(|place| place.rsplit(':').next());
        is_writers && file.and_then(|file| file.parse().ok()) == Some(inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lock_of_a_writer_on_this_file_counts() {
        let locks = "1: FLOCK  ADVISORY  WRITE 812 fe:00:77 0 EOF\n\
            2: FLOCK  ADVISORY  READ 812 fe:00:78 0 EOF\n\
            3: POSIX  ADVISORY  WRITE 812 fe:00:79 128 128\n\
            4: -> FLOCK  ADVISORY  WRITE 9 fe:00:80 0 EOF\n";
        assert!(is_locked(locks, 77));
        for other in [78, 79, 7, 8] {
            assert!(!is_locked(locks, other), "{other}");
        }
        assert!(!is_locked("", 77) && !is_locked("FLOCK", 77) && !is_locked("1: FLOCK x", 77));
    }
}
