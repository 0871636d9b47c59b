//! Serves the interface until it is told to end; then drains what is in flight.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use sandglass_http::Tls;
use sandglass_http::timer::{pause, within};
use sandglass_model::{EntityRef, Monotonic};
use sandglass_runtime::RunView;
use tokio::net::TcpListener;

use crate::Daemon;

/// How much of the grace is kept for ending handlers and recording how they ended.
const ENDING_PART: u32 = 4;
/// The most of it that is kept: a handler ends at once, and a disk writes within this.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// How long the answers may take that were waiting for those records.
const ANSWERS_MAX: Duration = Duration::from_secs(2);
/// How long handlers have to end by themselves that are left to the next start, once there are no
/// others.
const LEAVING_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether handlers are left.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An interface that is being served. Dropped, it ends at once.
#[derive(Debug)]
pub struct Serving {
    daemon: Daemon,
    http: sandglass_http::Serving,
}

/// How the draining goes.
#[derive(Clone, Debug)]
pub enum ShutdownProgress {
    /// No connection is accepted any more, and so many handlers are in flight.
    Waiting {
        /// How many.
        in_flight: usize,
    },
    /// These handlers have not ended in time and are asked to.
    Stopping {
        /// The handlers and their entities.
        handlers: Vec<(EntityRef, RunView)>,
    },
}

impl Daemon {
    /// Serves the interface on `listener`, on the current tokio runtime.
    ///
    /// # Errors
    /// The listener doesn't know its address.
    pub fn serve(&self, listener: TcpListener) -> io::Result<Serving> {
        self.serve_with(listener, Router::new(), None)
    }

    /// The same, with the routes of `others` beside its own, and over HTTPS if there is `tls`.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    ///
    /// # Panics
    /// A route of `others` is one of its own, or they have a fallback.
    pub fn serve_with(
        &self,
        listener: TcpListener,
        others: Router,
        tls: Option<Tls>,
    ) -> io::Result<Serving> {
        let settings = self.settings().connections.clone();
        let http = sandglass_http::serve(listener, self.router().merge(others), settings, tls)?;
        Ok(Serving { daemon: self.clone(), http })
    }

    /// The handlers that a shutdown waits for.
    fn awaited(&self) -> Vec<(EntityRef, RunView)> {
        let mut runs = self.in_flight();
        runs.retain(|(entity, _)| {
            let spec = self.runtime().spec(entity.entity_type());
            spec.is_none_or(|spec| spec.stops_at_shutdown())
        });
        runs
    }
}

impl Serving {
    /// The address that is served.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.http.local_addr()
    }

    /// Accepts no more, stops the sessions that have work in flight, which is recorded at once,
    /// lets handlers end for most of `grace`, asks the rest to, records
    /// how they did, and answers those who wait, at least with `shutting_down`. `tell`
    /// hears how it goes. It takes no longer than `grace`; the journal is closed
    /// afterwards. Answers the handlers whose end could not be recorded by then: the next
    /// start finds them as interrupted.
    pub async fn shutdown(
        self,
        grace: Duration,
        mut tell: impl FnMut(ShutdownProgress),
    ) -> Vec<(EntityRef, RunView)> {
        let clock = Arc::clone(self.daemon.clock());
        let over = clock.now().after(grace);
        let left = |until: Monotonic| until.since(clock.now());
        self.daemon.close();
        self.http.stop_accepting();
        let runtime = self.daemon.runtime();
        tell(ShutdownProgress::Waiting { in_flight: self.daemon.awaited().len() });
        let ending = (grace / ENDING_PART).min(ENDING_MAX);
        let settled = async {
            // Recorded at once: whoever sends a signal may send a harder one soon.
            runtime.stop_sessions_for_shutdown().await;
            while !self.daemon.awaited().is_empty() {
                pause(LOOK_EVERY).await;
            }
        };
        if within(left(over).saturating_sub(ending), settled).await.is_err() {
            tell(ShutdownProgress::Stopping { handlers: self.daemon.awaited() });
        }
        let answers = (ending / 2).min(ANSWERS_MAX);
        let mut ending = left(over).saturating_sub(answers);
        let has_left_some = self.daemon.awaited().is_empty() && !self.daemon.in_flight().is_empty();
        if has_left_some {
            ending = ending.min(LEAVING_MAX);
        }
        runtime.shutdown(ending).await;
        // Whoever takes the answer more slowly finds it in the journal.
        let _ = self.http.drain(left(over)).await;
        self.daemon.awaited()
    }
}
