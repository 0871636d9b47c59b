//! What the figures were measured on.

use std::fs;

use serde::Serialize;

/// The machine, as far as figures depend on it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// The kernel's version; `unknown`, where it doesn't say.
    pub kernel: String,
    /// Wasmtime's version, of the host and of the baseline.
    pub wasmtime: &'static str,
}

/// The version in this workspace's lock, which the host and the baseline share.
const WASMTIME: &str = "48.0.8";

impl Machine {
    /// This one.
    #[must_use]
    pub fn present() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned()),
            wasmtime: WASMTIME,
        }
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
