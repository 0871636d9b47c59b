//! A scenario: the modules, the local servers, the steps and what is expected,
//! read from a TOML file and checked before anything runs.

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
use serde_json::Value;

pub use files::{find, is_scenario, load};

/// Largest scenario file, in bytes: far more than people write by hand.
pub(crate) const SOURCE_MAX_BYTES: usize = 1 << 20;
/// Longest wait of a step: a scenario is something that people look at.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long an expectation waits where it says nothing: longer than a busy
/// machine takes to write a few records.
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

/// Whose time a scenario is played in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Time {
    /// Everybody's.
    #[default]
    Real,
    /// One that jumps to where something happens, whenever nothing runs.
    Virtual,
}

/// A spec file; `${server.NAME}` stands in it for the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecFile {
    /// The file.
    pub path: PathBuf,
    /// Its text.
    pub source: String,
}

/// A module that integrations name, and what it may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// The name that integrations give it.
    pub name: String,
    /// Its file; or, where `is_manifest`, the manifest that is about it.
    pub(crate) path: PathBuf,
    pub(crate) is_manifest: bool,
    pub(crate) allow_hosts: Vec<String>,
    /// Secrets by the key that the guest asks for; each names an environment
    /// variable.
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) fuel: Option<u64>,
    pub(crate) response_bytes: Option<u64>,
}

/// A local HTTP server for guests to call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// How long it takes to answer; none is for ever.
    pub(crate) respond_after: Option<Duration>,
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// One step, and the line that it stands in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) line: usize,
    pub(crate) act: Act,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Act {
    Send { action: String, entity: EntityRef, params: Object, expect_refused: Option<String> },
    Create { entity: EntityRef, limits: Object },
    Wait { time: Duration },
    Signal { name: String, entity: EntityRef, from: Option<EntityRef>, payload: Value },
    Cancel { entity: EntityRef, by: String, reason: String, expect_refused: Option<String> },
    Resume { entity: EntityRef, by: String, limits: Object, expect_refused: Option<String> },
    Journal { works: bool },
    Restart { how: Restart, down_for: Duration },
    Expect { expectation: Expectation, within: Duration },
}

/// How the process that runs the runtime ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    /// Killed, as by a crash.
    Kill,
    /// Asked to stop.
    Stop,
}

/// What is expected.
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

/// How much a metric is expected to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtLeast(f64),
    Equals(f64),
}

/// `${server.NAME}` in `text`, replaced by what `address` knows of each name.
///
/// # Errors
/// The first name that it doesn't know.
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

/// How a path is named to people: as they would from where they are.
pub(crate) fn shown(path: &Path) -> String {
    sandglass_source::printable(&path.display().to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_in_text() {
        let address = |name: &str| (name == "slow").then(|| "http://127.0.0.1:9".to_owned());
        let named = with_servers("a ${server.slow}/x ${server.slow}", address);
        assert_eq!(named.as_deref(), Ok("a http://127.0.0.1:9/x http://127.0.0.1:9"));
        assert_eq!(with_servers("${server.quick}", address), Err("quick".to_owned()));
        assert_eq!(with_servers("${server.slow", address).as_deref(), Ok("${server.slow"));
    }
}
