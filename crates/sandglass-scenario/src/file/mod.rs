//! A scenario: its modules, servers, steps and expectations, read from a TOML file and checked before
//! anything runs.

mod expectation;
mod files;
mod grants;
mod section;
mod step;
mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandglass_model::{EntityRef, Object};
use sandglass_source::{Diagnostic, Diagnostics};
use serde::{Deserialize, Serialize};

use crate::protocol::Command;

pub use files::{find, is_scenario, load};

/// Largest scenario file, in bytes: far more than people write by hand.
pub(crate) const SOURCE_MAX_BYTES: usize = 1 << 20;
/// Longest wait of a step: people watch scenarios.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long an expectation waits by default: longer than a busy machine takes to write a few records.
pub(crate) const WITHIN_DEFAULT: Duration = Duration::from_secs(5);

/// A scenario that can be played.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its file.
    pub path: PathBuf,
    /// What it shows, for people.
    pub title: String,
    pub(crate) time: Time,
    /// The specs, of which none has an error.
    pub specs: Vec<SpecFile>,
    /// The modules that the specs name.
    pub modules: Vec<Module>,
    pub(crate) servers: Vec<Server>,
    pub(crate) steps: Vec<Step>,
}

/// The time in which a scenario is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Time {
    #[default]
    Real,
    /// It jumps to the next event whenever nothing runs.
    Virtual,
}

/// A spec file, in which `${server.NAME}` stands for the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecFile {
    /// The file.
    pub path: PathBuf,
    /// Its text.
    pub source: String,
}

/// A module that integrations name, and what it is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// The name that integrations give it.
    pub name: String,
    /// Its file, or its manifest if `is_manifest`.
    pub(crate) path: PathBuf,
    pub(crate) is_manifest: bool,
    pub(crate) allow_hosts: Vec<String>,
    /// The environment variable of each secret.
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) fuel: Option<u64>,
    pub(crate) response_bytes: Option<u64>,
}

/// A local HTTP server for guests to call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// How long it takes to respond; `None` if it never does.
    pub(crate) respond_after: Option<Duration>,
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    /// Its line in the file.
    pub(crate) line: usize,
    pub(crate) act: Act,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Act {
    /// Sends a command, whose refusal contains the expected text if there is one.
    Command {
        label: String,
        command: Command,
        expect_refused: Option<String>,
    },
    Wait {
        time: Duration,
    },
    Restart {
        how: Restart,
        down_for: Duration,
    },
    Expect {
        expectation: Expectation,
        within: Duration,
    },
}

/// How the worker ends before it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Killed, as by a crash.
    Kill,
    /// Stopped in order.
    Stop,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expectation {
    State { entity: EntityRef, state: String },
    Transition { action: String, entity: EntityRef, params: Object },
    Record { fields: Object, entity: Option<EntityRef> },
    NoTransition { action: String, entity: EntityRef },
    NoRecord { fields: Object, entity: Option<EntityRef> },
    Session { fields: Object, entity: EntityRef },
    Metric { name: String, labels: BTreeMap<String, String>, bound: Bound },
    Replay { divergences: u64 },
}

/// The expected value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    Equals(f64),
}

/// Returns `text` with the address of the server in place of each `${server.NAME}`.
///
/// # Errors
/// Errors with the first name for which `address` returns `None`.
pub(crate) fn with_servers(
    text: &str,
    address: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    const OPEN: &str = "${server.";
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        let Some((name, behind)) = after.split_once('}') else { break };
        replaced.push_str(before);
        replaced.push_str(&address(name).ok_or_else(|| name.to_owned())?);
        rest = behind;
    }
    replaced.push_str(rest);
    Ok(replaced)
}

/// Reads the text of a scenario file, and no file that it names. Returns everything that is wrong
/// in it.
#[must_use]
pub fn check(source: &str) -> Vec<Diagnostic> {
    let mut out = Diagnostics::new(source);
    section::read(source, Path::new(""), &mut out);
    out.finish()
}

/// A path, for people.
pub(crate) fn shown(path: &Path) -> String {
    sandglass_source::printable(&path.display().to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_servers_are_replaced_by_their_addresses() {
        let address = |name: &str| (name == "slow").then(|| "http://127.0.0.1:9".to_owned());
        let named = with_servers("a ${server.slow}/x ${server.slow}", address);
        assert_eq!(named.as_deref(), Ok("a http://127.0.0.1:9/x http://127.0.0.1:9"));
        assert_eq!(with_servers("${server.quick}", address), Err("quick".to_owned()));
        assert_eq!(with_servers("${server.slow", address).as_deref(), Ok("${server.slow"));
    }
}
