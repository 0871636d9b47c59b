//! The clocks of WASI for guests of a host that has a clock of its own.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::Clock;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

struct Of(Arc<dyn Clock>);

/// Has guests read `clock`.
pub(super) fn set(builder: &mut WasiCtxBuilder, clock: &Arc<dyn Clock>) {
    builder.wall_clock(Of(Arc::clone(clock)));
    builder.monotonic_clock(Of(Arc::clone(clock)));
}

impl HostWallClock for Of {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        // WASI knows no time before 1970.
        Duration::from_millis(u64::try_from(self.0.wall().as_millis()).unwrap_or(0))
    }
}

impl HostMonotonicClock for Of {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        self.0.now().as_nanos()
    }
}
