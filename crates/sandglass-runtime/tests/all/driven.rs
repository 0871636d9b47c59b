//! A clock that waits by itself drives several hosts, whose executors have no timers.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::MemoryJournal;
use sandglass_liveness::Spec;
use sandglass_model::{Clock, Monotonic, Object, Until, WallTime};
use sandglass_runtime::Runtime;
use tokio::sync::watch;

use crate::world::{SESSION, one};

const START: Monotonic = Monotonic::from_nanos(1);

/// A clock that stands still until it is advanced.
#[derive(Debug)]
struct Driven(watch::Sender<Monotonic>);

impl Driven {
    fn advance(&self, seconds: u64) {
        self.0.send_modify(|now| *now = now.after(Duration::from_secs(seconds)));
    }
}

impl Clock for Driven {
    fn now(&self) -> Monotonic {
        *self.0.borrow()
    }

    fn wall(&self) -> WallTime {
        WallTime::from_millis(1_700_000_000_000).after(self.now().since(START))
    }

    fn until(&self, at: Monotonic) -> Option<Until<'_>> {
        let mut now = self.0.subscribe();
        Some(Box::pin(async move {
            // `self` owns the sender, so the wait ends only when its condition holds.
            let _ = now.wait_for(|now| *now >= at).await;
        }))
    }
}

/// A runtime on an executor of its own.
struct Host {
    executor: tokio::runtime::Runtime,
    clock: Arc<Driven>,
    runtime: Runtime,
}

impl Host {
    /// With a session in the state `Waiting`.
    fn new() -> Self {
        // Without `enable_time`, tokio's timers panic.
        let executor = tokio::runtime::Builder::new_current_thread().build().expect("an executor");
        let clock = Arc::new(Driven(watch::Sender::new(START)));
        let runtime = executor.block_on(async {
            let builder = Runtime::builder(Arc::new(MemoryJournal::new())).clock(clock.clone());
            let spec = Spec::parse(SESSION).spec.expect("sound");
            let runtime = builder.linger(Duration::from_secs(1)).specs([spec]).build().await;
            let runtime = runtime.expect("an empty journal");
            runtime.create(one()).await.expect("new");
            runtime.send(&one(), "Wait", Object::new()).await.expect("taken");
            runtime
        });
        Self { executor, clock, runtime }
    }

    /// The state of the session once the executor has nothing left to do.
    fn state(&self) -> String {
        self.executor.block_on(async {
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
            self.runtime.entity(&one()).await.expect("there").state.clone()
        })
    }
}

#[test]
fn a_clock_that_waits_by_itself_drives_hosts_without_timers() {
    let hosts = [Host::new(), Host::new()];
    let states = || hosts.each_ref().map(Host::state);
    hosts[0].clock.advance(299);
    assert_eq!(states(), ["Waiting", "Waiting"]);
    hosts[0].clock.advance(1);
    assert_eq!(states(), ["Abandoned", "Waiting"], "a host whose clock stands still is paused");
    hosts[1].clock.advance(10_000);
    assert_eq!(states(), ["Abandoned", "Abandoned"]);
    for host in hosts {
        let grace = Duration::from_secs(1);
        host.executor.block_on(host.runtime.shutdown(grace));
    }
}
