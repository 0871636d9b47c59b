//! Reads the operating system's accounts of this process (`proc(5)`).

use std::fs;
use std::io;
use std::path::Path;

/// Resources of this process that could leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) threads: u64,
    pub(crate) mappings: u64,
    pub(crate) files: u64,
    pub(crate) sockets: u64,
    pub(crate) resident_bytes: u64,
}

impl Resources {
    pub(crate) fn now() -> io::Result<Self> {
        let descriptors = fs::read_dir("/proc/self/fd")?;
        // The folder that is being read is one of the descriptors, and is closed before its link is
        // read.
        let targets = descriptors.flatten().filter_map(|one| fs::read_link(one.path()).ok());
        let (sockets, files): (Vec<_>, Vec<_>) =
            targets.partition(|target| target.to_string_lossy().starts_with("socket:"));
        Ok(Self {
            threads: fs::read_dir("/proc/self/task")?.count() as u64,
            mappings: mappings()?,
            files: files.len() as u64,
            sockets: sockets.len() as u64,
            resident_bytes: resident_bytes()?,
        })
    }
}

/// Counts the memory mappings of this process.
pub(crate) fn mappings() -> io::Result<u64> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().count() as u64)
}

/// The resident memory of this process, in bytes.
pub(crate) fn resident_bytes() -> io::Result<u64> {
    resident_bytes_of(std::process::id())
}

/// The resident memory of the process with this id, in bytes.
pub(crate) fn resident_bytes_of(process: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    Ok(field(&status, "VmRSS:") * 1024)
}

/// What the threads of this process did, except for the calling thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Activity {
    /// Time on a CPU, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// How often a thread went to sleep.
    pub(crate) sleeps: u64,
}

impl Activity {
    pub(crate) fn of_others() -> io::Result<Self> {
        let own = fs::read_link("/proc/thread-self")?;
        let mut all = Self::default();
        for thread in fs::read_dir("/proc/self/task")?.flatten() {
            if Some(thread.file_name().as_os_str()) != own.file_name() {
                // The thread may have ended in the meantime, so that its files are gone. Then it no
                // longer consumes anything.
                let one = Self::of(&thread.path()).unwrap_or_default();
                all.cpu_ns += one.cpu_ns;
                all.sleeps += one.sleeps;
            }
        }
        Ok(all)
    }

    fn of(thread: &Path) -> io::Result<Self> {
        let schedstat = fs::read_to_string(thread.join("schedstat"))?;
        let cpu_ns = schedstat.split_whitespace().next().and_then(|ns| ns.parse().ok());
        let status = fs::read_to_string(thread.join("status"))?;
        Ok(Self { cpu_ns: cpu_ns.unwrap_or(0), sleeps: field(&status, "voluntary_ctxt_switches:") })
    }
}

/// The number that follows `name` in a text of lines; zero if the name is missing.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_holds_itself() {
        let held = Resources::now().expect("Linux reports it");
        assert!(held.threads > 0 && held.mappings > 0 && held.resident_bytes > 0, "{held:?}");
        assert_eq!(
            field("A:\t 7 kB\nvoluntary_ctxt_switches:\t12", "voluntary_ctxt_switches:"),
            12
        );
    }
}
