//! The limits of one handler run besides its deadline.

use serde::{Deserialize, Serialize};

/// Budget of a handler whose integration declares none, in milliseconds. Its use is logged and
/// counted: an inherited default of 30 s once killed 30 of 50 sessions, so no spec should depend on
/// this one unknowingly.
pub const DEFAULT_BUDGET_MS: u64 = 120_000;

/// Largest budget, in milliseconds (366 days): every deadline stays far inside the range of the
/// clocks.
pub const MAX_BUDGET_MS: u64 = 366 * 24 * 3600 * 1000;

/// What one handler run may use. All sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestLimits {
    /// All linear memories of the guest together.
    pub memory_bytes: u64,
    /// Elements of one table.
    pub table_elements: u64,
    /// Fuel (about one unit per instruction); `None` means that fuel is not counted.
    pub fuel: Option<u64>,
    /// The result that the guest returns, and each response that a host function reads for it.
    pub response_bytes: u64,
    /// What the host may hold in memory on behalf of one run: resources, bodies, streams, scratch
    /// and results. `None` means the default, which [`GuestLimits::host_memory_for`] computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_bytes: Option<u64>,
    /// A core module's file.
    pub module_bytes: u64,
    /// A component's file. It is larger, because a JavaScript or Python component contains its
    /// interpreter.
    #[serde(default = "component_bytes")]
    pub component_bytes: u64,
}

const fn component_bytes() -> u64 {
    32 << 20
}

impl Default for GuestLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            // Enough for the function tables of known toolchains; 8 bytes each.
            table_elements: 100_000,
            fuel: None,
            response_bytes: 1 << 20,
            host_memory_bytes: None,
            module_bytes: 10 << 20,
            component_bytes: component_bytes(),
        }
    }
}

impl GuestLimits {
    /// What the host may hold in memory for a run that is granted `scratch_bytes` of scratch, in
    /// bytes. By default 16 MiB, the scratch, and twice the part of the response above 1 MiB: a
    /// response is held once as it was read, and once in the form in which the guest gets it.
    #[must_use]
    pub fn host_memory_for(&self, scratch_bytes: u64) -> u64 {
        const DEFAULT_BYTES: u64 = 16 << 20;
        self.host_memory_bytes.unwrap_or_else(|| {
            let response = self.response_bytes.saturating_sub(1 << 20).saturating_mul(2);
            DEFAULT_BYTES.saturating_add(scratch_bytes).saturating_add(response)
        })
    }
}
