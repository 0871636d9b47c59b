//! An OpenWOP host in a process and a folder of its own, both of which are removed when it is
//! dropped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::workflows;
use crate::Failure;
use crate::process::resident_bytes_of;

/// The API key that the clients send.
pub(super) const KEY: &str = "the-key-of-a-benchmark-on-loopback";

/// The environment variable that passes the API key to the host.
const KEY_VARIABLE: &str = "SANDGLASS_BENCH_KEY";
/// The environment variable that names the folder for journals, so that they can be on the disk
/// that matters.
const FOLDER_VARIABLE: &str = "SANDGLASS_BENCH_FOLDER";
/// What the host prints before its address.
const LISTENING: &str = "listening on http://";
/// More node executions than any run here has.
const NODES_MAX: &str = "100000";

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let parent = std::env::var_os(FOLDER_VARIABLE).map_or_else(std::env::temp_dir, Into::into);
        let path = parent.join(format!("sandglass-bench-{}-{nth}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A host that listens.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    pub(super) address: SocketAddr,
    folder: Folder,
}

impl Server {
    /// Starts `program`, which is `sandglass`, with the workflows of this benchmark and a new
    /// journal, and blocks until it listens.
    pub(super) fn start(program: Option<&Path>) -> Result<Self, Failure> {
        let program = program.ok_or("it needs the program; run `sandglass bench`")?;
        let folder = Folder::new()?;
        let workflows = folder.0.join("workflows");
        fs::create_dir(&workflows)?;
        for (name, text) in workflows::all() {
            fs::write(workflows.join(format!("{name}.json")), text)?;
        }
        let errors = folder.0.join("stderr.txt");
        let mut child = Command::new(program)
            .arg("openwop")
            .arg("--workflows")
            .arg(&workflows)
            .arg("--journal")
            .arg(journal_in(&folder))
            .args(["--listen", "127.0.0.1:0", "--api-key-env", KEY_VARIABLE])
            .args(["--max-node-executions", NODES_MAX])
            .env(KEY_VARIABLE, KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors)?)
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take();
        // This blocks until the host listens. If it exits instead, its output ends.
        let read = out.map(|out| BufReader::new(out).read_line(&mut line));
        let address = line.trim().strip_prefix(LISTENING).and_then(|text| text.parse().ok());
        match (read, address) {
            (Some(Ok(_)), Some(address)) => Ok(Self { child, address, folder }),
            _ => {
                end(&mut child);
                let errors = fs::read_to_string(&errors).unwrap_or_default();
                Err(format!("`sandglass openwop` does not listen: {}", errors.trim()).into())
            }
        }
    }

    /// The host's journal, which the host continues to write.
    pub(super) fn journal(&self) -> PathBuf {
        journal_in(&self.folder)
    }

    /// The resident memory of the host's process, in bytes.
    pub(super) fn resident_bytes(&self) -> Result<u64, Failure> {
        Ok(resident_bytes_of(self.child.id())?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn journal_in(folder: &Folder) -> PathBuf {
    folder.0.join("journal.db")
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
