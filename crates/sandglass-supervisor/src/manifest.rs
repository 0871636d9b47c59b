//! The grants of an integration: its limits, and the hosts, secrets, asks, signals and functions that it may
//! use. By default it may use none.
//!
//! ```text
//! integration.toml ── File ──▶ Manifest ──┐
//!                               bytes ────┴─ Host::load ──▶ Integration
//! ```

mod abi;
mod ask_target;
mod file;
mod folder;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{GuestLimits, ModuleHash};
use serde::Serialize;

use crate::capability::http::{Destination, Destinations};
use crate::dispatch::DispatchLimits;
use crate::opaque::opaque;
use crate::secret::{FixedSecrets, Secrets};

pub use abi::Abi;
pub use ask_target::{AskTarget, InvalidAskTarget};
pub use file::{ENTRIES_MAX, File, Parsed, SOURCE_MAX_BYTES};
pub use folder::{
    Error, FILE_NAME, Found, MANIFESTS_MAX, Manifests, beside, is_manifest, is_module,
    module_beside,
};

/// Most names of spans that a manifest declares: each is a value of a label.
pub const SPANS_MAX: usize = 32;

/// What happens if a call is refused because it is not granted, and the guest then reports success
/// without having asked why (`host_last_error`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDenied {
    /// The handler has failed.
    Fail,
    /// Reports state the refusal, and the result counts.
    Report,
}

impl OnDenied {
    /// Returns the one that manifests call this.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "fail" => Some(Self::Fail),
            "report" => Some(Self::Report),
            _ => None,
        }
    }

    /// The default for modules of `abi`. Functions of the core ABI return a number that is easily
    /// ignored; those of the others return an error that states the reason.
    #[must_use]
    pub const fn default_of(abi: Abi) -> Self {
        match abi {
            Abi::Core => Self::Fail,
            Abi::Component | Abi::NodePack => Self::Report,
        }
    }
}

/// The grants of one integration. The default grants [`GuestLimits::default`] and nothing else.
#[derive(Clone)]
pub struct Manifest {
    /// The name of the integration, in logs and reports.
    pub name: String,
    /// The ABI that its module must have; `None`: any.
    pub abi: Option<Abi>,
    /// The hash that its module must have; `None`: any.
    pub module_hash: Option<ModuleHash>,
    /// What it may use.
    pub limits: GuestLimits,
    /// Most memory that a dispatch may set ([`DispatchLimits`]), in bytes; `None`: that of `limits`.
    pub max_memory_bytes: Option<u64>,
    /// Largest response that a dispatch may set, in bytes; `None`: that of `limits`.
    pub max_response_bytes: Option<u64>,
    /// Where it may send requests.
    pub destinations: Destinations,
    /// The names of its spans that dying spans may have, at most [`SPANS_MAX`]: they become labels of
    /// metrics.
    pub spans: Vec<String>,
    /// Where its secrets come from. They return only those that it may have.
    pub secrets: Arc<dyn Secrets>,
    /// How long before its deadline a handler is warned; `None`: not at all.
    pub soft_deadline: Option<Duration>,
    /// Time limits of host functions, by their names in dying spans; the host's limit applies to others.
    pub host_call_timeouts: BTreeMap<String, Duration>,
    /// What a refused call that the guest ignores does; `None`: the default of the module's ABI.
    pub on_denied: Option<OnDenied>,
    /// Key-value scratch of one dispatch, in bytes; 0: none.
    pub scratch_bytes: u64,
    /// The actions that it may ask of other entities.
    pub ask_targets: BTreeSet<AskTarget>,
    /// The signals that it may send to other entities.
    pub signal_targets: BTreeSet<AskTarget>,
    /// The embedder's host functions that it may import, as `interface.name`.
    pub functions: BTreeSet<String>,
    /// Most handlers of it that run; `None`: only the bound of the host applies.
    pub max_in_flight: Option<u32>,
    /// Most handlers of it that wait; `None`: only the bound of the host applies.
    pub max_queued: Option<u32>,
}

impl Default for Manifest {
    fn default() -> Self {
        Self {
            name: "integration".to_owned(),
            abi: None,
            module_hash: None,
            limits: GuestLimits::default(),
            max_memory_bytes: None,
            max_response_bytes: None,
            destinations: Destinations::default(),
            spans: Vec::new(),
            secrets: Arc::new(FixedSecrets::default()),
            soft_deadline: None,
            host_call_timeouts: BTreeMap::new(),
            on_denied: None,
            scratch_bytes: 0,
            ask_targets: BTreeSet::new(),
            signal_targets: BTreeSet::new(),
            functions: BTreeSet::new(),
            max_in_flight: None,
            max_queued: None,
        }
    }
}

impl Manifest {
    /// Creates the manifest of the integration called `name` in logs and reports, without grants.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Rejects modules of another ABI.
    #[must_use]
    pub fn abi(self, abi: Abi) -> Self {
        Self { abi: Some(abi), ..self }
    }

    /// Rejects modules with another hash.
    #[must_use]
    pub fn module_hash(self, hash: ModuleHash) -> Self {
        Self { module_hash: Some(hash), ..self }
    }

    /// Largest file that its module may be, in bytes.
    #[must_use]
    pub fn module_max_bytes(&self) -> u64 {
        match self.abi {
            Some(Abi::Core | Abi::NodePack) => self.limits.module_bytes,
            Some(Abi::Component) => self.limits.component_bytes,
            None => self.limits.module_bytes.max(self.limits.component_bytes),
        }
    }

    /// Sets its limits.
    #[must_use]
    pub fn limits(self, limits: GuestLimits) -> Self {
        Self { limits, ..self }
    }

    /// The limits of a dispatch that sets `own`, on a host that gives a guest at most `memory_bytes`.
    #[must_use]
    pub fn limits_of(&self, own: &DispatchLimits, memory_bytes: u64) -> GuestLimits {
        let limits = self.limits;
        let within = |own: Option<u64>, most: Option<u64>, granted| {
            own.map_or(granted, |own| own.min(most.unwrap_or(granted)))
        };
        let memory = within(own.memory_bytes, self.max_memory_bytes, limits.memory_bytes);
        GuestLimits {
            memory_bytes: memory.min(memory_bytes),
            fuel: limits.fuel.into_iter().chain(own.fuel).min(),
            response_bytes: within(
                own.response_bytes,
                self.max_response_bytes,
                limits.response_bytes,
            ),
            ..limits
        }
    }

    /// Sets the hosts that it may reach.
    #[must_use]
    pub fn allow_hosts(self, hosts: impl IntoIterator<Item = Destination>) -> Self {
        Self { destinations: hosts.into_iter().collect(), ..self }
    }

    /// Declares the names of its spans that dying spans may have; those beyond [`SPANS_MAX`] are
    /// ignored.
    #[must_use]
    pub fn spans(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { spans: names.into_iter().map(Into::into).take(SPANS_MAX).collect(), ..self }
    }

    /// Adds hosts to those that it may reach.
    #[must_use]
    pub fn allow_more_hosts(self, hosts: impl IntoIterator<Item = Destination>) -> Self {
        let destinations = self.destinations.and(hosts);
        Self { destinations, ..self }
    }

    /// Sets where its secrets come from.
    #[must_use]
    pub fn secrets(self, secrets: Arc<dyn Secrets>) -> Self {
        Self { secrets, ..self }
    }

    /// Warns handlers this long before their deadline, so that they can save their work. A handler with
    /// a shorter budget is warned at once. Default: no warning.
    #[must_use]
    pub fn soft_deadline(self, before: Duration) -> Self {
        Self { soft_deadline: Some(before), ..self }
    }

    /// Sets time limits of calls of host functions, by their names in dying spans. A breach ends the
    /// call, not the run. [`Settings::host_call_timeout`](crate::settings::Settings) applies to other
    /// functions, and the deadline of the run to all.
    #[must_use]
    pub fn host_call_timeouts(
        self,
        timeouts: impl IntoIterator<Item = (String, Duration)>,
    ) -> Self {
        Self { host_call_timeouts: timeouts.into_iter().collect(), ..self }
    }

    /// Sets what happens if a call is refused because it is not granted, and the guest ignores that.
    /// Default: [`OnDenied::default_of`] the module's ABI.
    #[must_use]
    pub fn on_denied(self, on_denied: OnDenied) -> Self {
        Self { on_denied: Some(on_denied), ..self }
    }

    /// Grants so many bytes of key-value scratch to each dispatch. Default: 0, which denies it.
    #[must_use]
    pub fn scratch_bytes(self, bytes: u64) -> Self {
        Self { scratch_bytes: bytes, ..self }
    }

    /// Sets the actions that it may ask of other entities.
    #[must_use]
    pub fn ask_targets(self, targets: impl IntoIterator<Item = AskTarget>) -> Self {
        Self { ask_targets: targets.into_iter().collect(), ..self }
    }

    /// Sets the signals that it may send to other entities.
    #[must_use]
    pub fn signal_targets(self, targets: impl IntoIterator<Item = AskTarget>) -> Self {
        Self { signal_targets: targets.into_iter().collect(), ..self }
    }

    /// Sets the embedder's host functions that it may import, each as `interface.name`.
    #[must_use]
    pub fn functions(self, functions: impl IntoIterator<Item = String>) -> Self {
        Self { functions: functions.into_iter().collect(), ..self }
    }

    /// Sets the most handlers of it that run at the same time. Default: only the host's bound applies.
    #[must_use]
    pub fn max_in_flight(self, most: u32) -> Self {
        Self { max_in_flight: Some(most), ..self }
    }

    /// Sets the most handlers of it that wait for a permit. Default: only the host's bound applies.
    #[must_use]
    pub fn max_queued(self, most: u32) -> Self {
        Self { max_queued: Some(most), ..self }
    }
}

// All grants except secrets.
opaque!(Manifest as "Manifest" {
    name, abi, module_hash, limits, max_memory_bytes, max_response_bytes, destinations, spans, soft_deadline, host_call_timeouts,
    on_denied, scratch_bytes, ask_targets, signal_targets, functions, max_in_flight, max_queued
});
