//! Describes the machine that the figures were measured on.

use std::fs;

use sandglass_host::{BuildError, Host, KernelFeatures, Settings};
use serde::{Serialize, Serializer};

use crate::bench_host::cores;

/// The properties of the machine that figures depend on.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// The kernel's version; `unknown` if it cannot be read.
    pub kernel: String,
    /// Wasmtime's version, which is the same for the host and the baseline.
    pub wasmtime: &'static str,
    /// Features of the kernel that the host uses on this machine, as `pagemap_scan`,
    /// `scheduler_slice` and `timer_slack`.
    #[serde(serialize_with = "as_object")]
    pub kernel_features: KernelFeatures,
}

fn as_object<S: Serializer>(features: &KernelFeatures, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(named(*features))
}

/// Each feature by its name, and whether it is available.
pub(crate) fn named(features: KernelFeatures) -> [(&'static str, bool); 3] {
    let KernelFeatures { pagemap_scan, scheduler_slice, timer_slack } = features;
    [
        ("pagemap_scan", pagemap_scan),
        ("scheduler_slice", scheduler_slice),
        ("timer_slack", timer_slack),
    ]
}

/// The version in this workspace's `Cargo.lock`, which the host and the baseline share.
const WASMTIME: &str = "48.0.8";

impl Machine {
    /// Describes the present machine.
    ///
    /// # Errors
    /// No host can be built on it.
    pub fn present() -> Result<Self, BuildError> {
        let settings = Settings { max_runs: 1, ..Settings::default() };
        let host = Host::builder().settings(settings).build()?;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        Ok(Self {
            cores: cores(),
            kernel: kernel.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
            wasmtime: WASMTIME,
            kernel_features: host.kernel_features(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_wasmtime_is_the_one_that_is_locked() {
        let lock = include_str!("../../../Cargo.lock");
        let locked = format!("name = \"wasmtime\"\nversion = \"{WASMTIME}\"\n");
        assert!(lock.contains(&locked), "it moved on: name the new version here");
    }
}
