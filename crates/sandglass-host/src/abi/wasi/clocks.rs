//! WASI's clocks for a host whose clock is not the system's.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::Clock;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

struct GuestClock(Arc<dyn Clock>);

/// Makes guests read `clock`.
pub(super) fn set(builder: &mut WasiCtxBuilder, clock: &Arc<dyn Clock>) {
    builder.wall_clock(GuestClock(Arc::clone(clock)));
    builder.monotonic_clock(GuestClock(Arc::clone(clock)));
}

impl HostWallClock for GuestClock {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        // WASI has no time before 1970.
        Duration::from_millis(u64::try_from(self.0.wall().as_millis()).unwrap_or(0))
    }
}

impl HostMonotonicClock for GuestClock {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        self.0.now().as_nanos()
    }
}
