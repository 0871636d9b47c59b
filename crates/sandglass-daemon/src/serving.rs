//! Serves the interface until it is shut down, and then drains what is in flight.

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

/// The part of the grace that is reserved for stopping handlers and recording their endings.
const ENDING_PART: u32 = 4;
/// The most that is reserved: handlers end at once, and a disk writes within this time.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// How long the responses that waited for these records may take.
const RESPONSES_MAX: Duration = Duration::from_secs(2);
/// How long handlers that the next start resumes may take to end, once there are no others.
const RESUMABLE_MAX: Duration = Duration::from_secs(2);
/// How often the remaining handlers are counted.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// An interface that is being served. Dropping it ends it at once.
#[derive(Debug)]
pub struct Serving {
    daemon: Daemon,
    http: sandglass_http::Serving,
}

/// A step of the shutdown.
#[derive(Clone, Debug)]
pub enum ShutdownProgress {
    /// No connection is accepted any more, and handlers are in flight.
    Waiting {
        /// How many.
        in_flight: usize,
    },
    /// These handlers did not end in time, and are stopped.
    Stopping {
        /// The handlers and their entities.
        handlers: Vec<(EntityRef, RunView)>,
    },
}

impl Daemon {
    /// Serves the interface on `listener`, on the current tokio runtime.
    ///
    /// # Errors
    /// Errors if the listener has no local address.
    pub fn serve(&self, listener: TcpListener) -> io::Result<Serving> {
        self.serve_with(listener, Router::new(), None)
    }

    /// Serves the interface together with the routes of `others`, over HTTPS if `tls` is given.
    ///
    /// # Errors
    /// As [`Daemon::serve`].
    ///
    /// # Panics
    /// Panics if `others` has a route of this interface, or a fallback.
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

    /// Shuts the interface down within `grace`, and reports each step to `progress`:
    ///
    /// 1. refuses requests, accepts no more connections (unless it is a member of a cluster, whose other
    ///    hosts take a refused connection for its death), and stops the sessions that have work in flight, which is recorded at once;
    /// 2. lets handlers end by themselves for most of `grace`, then stops the rest;
    /// 3. records how they ended, and answers the requests that waited for that, at least with
    ///    `shutting_down`. The caller closes the journal afterwards.
    ///
    /// Returns the handlers whose end could not be recorded in time; the next start finds them as
    /// interrupted.
    pub async fn shutdown(
        self,
        grace: Duration,
        mut progress: impl FnMut(ShutdownProgress),
    ) -> Vec<(EntityRef, RunView)> {
        let clock = Arc::clone(&self.daemon.parts().clock);
        let end = clock.now().after(grace);
        let remaining = |until: Monotonic| until.since(clock.now());
        self.daemon.close();
        if self.daemon.cluster().is_none() {
            self.http.stop_accepting();
        }
        let runtime = self.daemon.runtime();
        progress(ShutdownProgress::Waiting { in_flight: self.daemon.awaited().len() });
        let ending = (grace / ENDING_PART).min(ENDING_MAX);
        let settled = async {
            // First, because a signal that ends the process at once may follow.
            runtime.stop_sessions_for_shutdown().await;
            while !self.daemon.awaited().is_empty() {
                pause(POLL_EVERY).await;
            }
        };
        if within(remaining(end).saturating_sub(ending), settled).await.is_err() {
            progress(ShutdownProgress::Stopping { handlers: self.daemon.awaited() });
        }
        let responses = (ending / 2).min(RESPONSES_MAX);
        let mut ending = remaining(end).saturating_sub(responses);
        let only_resumable =
            self.daemon.awaited().is_empty() && !self.daemon.in_flight().is_empty();
        if only_resumable {
            ending = ending.min(RESUMABLE_MAX);
        }
        runtime.shutdown(ending).await;
        // A client that is slower than this finds the result in the journal.
        let _ = self.http.drain(remaining(end)).await;
        self.daemon.awaited()
    }
}
