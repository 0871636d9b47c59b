//! What a guest may do under a manifest: its imports compared with its grants.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Grant, Inspection};
use sandglass_supervisor::manifest::{File, OnDenied};

/// What a manifest lets a guest do.
#[derive(Clone, Debug, Serialize)]
pub struct Permissions {
    /// The name of the integration.
    pub integration: String,
    /// What is granted.
    pub granted: Granted,
    /// Imports that need a grant and have none. They are refused when they are called or, if they are
    /// the embedder's own functions, before the guest is executed.
    pub not_granted: Vec<NotGranted>,
    /// Grants that no import of the guest can use.
    pub unused: Vec<Unused>,
}

/// What a manifest grants, with the defaults for what it does not state.
#[derive(Clone, Debug, Serialize)]
pub struct Granted {
    /// Hosts that it may reach.
    pub hosts: Vec<String>,
    /// Names of secrets that it may read.
    pub secrets: Vec<String>,
    /// Actions that it may ask for.
    pub ask: Vec<String>,
    /// Signals that it may send.
    pub signal: Vec<String>,
    /// The embedder's own functions that it may import.
    pub functions: Vec<String>,
    /// Key-value scratch, in bytes.
    pub scratch_bytes: u64,
    /// Linear memories together, in bytes.
    pub memory_bytes: u64,
    /// One table.
    pub table_elements: u64,
    /// Fuel; `None` if it is not counted.
    pub fuel: Option<u64>,
    /// Its result and each response, in bytes.
    pub response_bytes: u64,
    /// Memory that the host may use for one handler run, in bytes.
    pub host_memory_bytes: u64,
    /// Its file, in bytes.
    pub module_bytes: u64,
    /// How long before its deadline it is warned, in milliseconds; `None` if it is not.
    pub soft_deadline_ms: Option<u64>,
    /// Time limits of calls, in milliseconds, by host function.
    pub host_call_timeouts_ms: BTreeMap<String, u64>,
    /// What a refused call does that the guest ignores.
    pub on_denied: OnDenied,
    /// Most handlers at the same time, in addition to the host's own bound.
    pub max_in_flight: Option<u32>,
    /// Most queued handlers, in addition to the host's own bound.
    pub max_queued: Option<u32>,
}

/// Imports that need a grant that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotGranted {
    /// The grant.
    pub grant: Grant,
    /// The imports that need it, as reports name them.
    pub imports: Vec<String>,
}

/// A grant that nothing uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// The key of `[grants]` or `[limits]`.
    pub key: &'static str,
    /// What it grants.
    pub what: String,
}

impl Inspection {
    /// What the guest may do under `manifest`.
    #[must_use]
    pub fn under(&self, manifest: &File) -> Permissions {
        let granted = Granted::by(manifest);
        Permissions {
            integration: manifest.name().to_owned(),
            not_granted: not_granted(self, &granted),
            unused: unused(self, &granted),
            granted,
        }
    }
}

impl Granted {
    fn by(file: &File) -> Self {
        let manifest = &file.granted;
        let millis =
            |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let timeouts = manifest.host_call_timeouts.iter();
        Self {
            hosts: manifest.destinations.iter().map(ToString::to_string).collect(),
            secrets: file.secrets.iter().map(ToString::to_string).collect(),
            ask: manifest.ask_targets.iter().map(ToString::to_string).collect(),
            signal: manifest.signal_targets.iter().map(ToString::to_string).collect(),
            functions: manifest.functions.iter().cloned().collect(),
            scratch_bytes: manifest.scratch_bytes,
            memory_bytes: manifest.limits.memory_bytes,
            table_elements: manifest.limits.table_elements,
            fuel: manifest.limits.fuel,
            response_bytes: manifest.limits.response_bytes,
            host_memory_bytes: manifest.limits.host_memory_for(manifest.scratch_bytes),
            module_bytes: manifest.module_max_bytes(),
            soft_deadline_ms: manifest.soft_deadline.map(millis),
            host_call_timeouts_ms: timeouts
                .map(|(name, time)| (name.clone(), millis(*time)))
                .collect(),
            on_denied: manifest.on_denied.unwrap_or(OnDenied::default_of(file.abi)),
            max_in_flight: manifest.max_in_flight,
            max_queued: manifest.max_queued,
        }
    }

    fn has(&self, grant: &Grant) -> bool {
        match grant {
            Grant::Hosts => !self.hosts.is_empty(),
            Grant::Secrets => !self.secrets.is_empty(),
            Grant::Ask => !self.ask.is_empty(),
            Grant::Signal => !self.signal.is_empty(),
            Grant::Scratch => self.scratch_bytes > 0,
            Grant::Function(name) => self.functions.contains(name),
        }
    }
}

fn not_granted(inspection: &Inspection, granted: &Granted) -> Vec<NotGranted> {
    let mut lacking: BTreeMap<&Grant, Vec<String>> = BTreeMap::new();
    for import in &inspection.imports {
        let name = import.host_function.unwrap_or(&import.name);
        if let Some(grant) = import.needs.as_ref().filter(|grant| !granted.has(grant)) {
            lacking.entry(grant).or_default().push(name.to_owned());
        }
    }
    lacking
        .into_iter()
        .map(|(grant, imports)| NotGranted { grant: grant.clone(), imports })
        .collect()
}

fn unused(inspection: &Inspection, granted: &Granted) -> Vec<Unused> {
    let needs =
        |grant: &Grant| inspection.imports.iter().any(|one| one.needs.as_ref() == Some(grant));
    let mut unused = Vec::new();
    let mut check = |grant: Grant, what: String| {
        if granted.has(&grant) && !needs(&grant) {
            unused.push(Unused { key: grant.key(), what });
        }
    };
    check(Grant::Hosts, granted.hosts.join(", "));
    check(Grant::Secrets, granted.secrets.join(", "));
    check(Grant::Ask, granted.ask.join(", "));
    check(Grant::Signal, granted.signal.join(", "));
    check(Grant::Scratch, format!("{} bytes", granted.scratch_bytes));
    for name in &granted.functions {
        check(Grant::Function(name.clone()), name.clone());
    }
    let stops = inspection
        .imports
        .iter()
        .any(|one| matches!(one.name.as_str(), "host_should_stop" | "should-stop"));
    if let Some(before) = granted.soft_deadline_ms.filter(|_| !stops && !inspection.waits()) {
        unused.push(Unused { key: "soft_deadline", what: format!("{before} ms") });
    }
    unused
}

impl Inspection {
    /// Whether it imports a function whose wait a soft deadline ends.
    fn waits(&self) -> bool {
        self.imports.iter().any(|import| import.waits && !super::group::is_wasi(&import.module))
    }
}
