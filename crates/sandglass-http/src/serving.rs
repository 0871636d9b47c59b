//! Accepts connections, each with a slot, until it is stopped, and then waits until requests in flight
//! are answered.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, yield_now};

use crate::connection::Connection;
use crate::descriptors::{Spares, is_exhausted};
use crate::requests::Requests;
use crate::settings::Settings;
use crate::slots::{ConnectionSlot, Slots};
use crate::timer::{TimedOut, now, pause, within};
use crate::tls::Tls;

/// How long to wait before accepting again if the process has no descriptor left: a connection
/// that was shed has freed its own by then.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);
/// How often the log may say that connections are shed, or that none can be accepted.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// How many connections may wait to be accepted, as Linux allows by default (`somaxconn`).
const BACKLOG: u32 = 4096;

/// Listens on `address`, as [`TcpListener::bind`] does, with a longer queue of connections that
/// wait to be accepted. When the queue is full, the kernel drops further attempts, and their
/// clients try again only after a second.
///
/// # Errors
/// Errors if the address is taken, or this process may not use it.
///
/// # Panics
/// Panics outside a tokio runtime.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// An interface that is being served. Dropping it ends it at once, with all its connections.
#[derive(Debug)]
pub struct Serving {
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<JoinSet<()>>,
}

/// Serves `router` on `listener`, on the current tokio runtime: over HTTP, or, with `tls`, over HTTPS
/// only. Clients choose HTTP/1.1 or HTTP/2; without TLS by what they begin with (RFC 9113, 3.3). The router must authenticate each connection by its
/// [`ConnectionSlot`], or those stay few and brief.
///
/// # Errors
/// Errors if the listener has no local address.
///
/// # Panics
/// Panics outside a tokio runtime.
pub fn serve(
    listener: TcpListener,
    router: Router,
    settings: Settings,
    tls: Option<Tls>,
) -> io::Result<Serving> {
    let local_addr = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let requests = Requests::new(router, &settings, tls, stopped.clone());
    let accepting = Accepting {
        listener,
        spares: Spares::default(),
        slots: Slots::new(settings.clone()),
        requests,
        settings,
        connections: JoinSet::new(),
    };
    let accepting = tokio::spawn(accepting.run(stopped));
    Ok(Serving { local_addr, stop, accepting })
}

impl Serving {
    /// The address that is served.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Accepts no connection from now on, and no further request on open ones. Requests that have
    /// arrived are answered. The address is free soon.
    pub fn stop_accepting(&self) {
        self.stop.send_replace(true);
    }

    /// Stops accepting, and waits for at most `time` until all requests are answered and all event
    /// streams have ended. Connections that remain are then cut off.
    ///
    /// # Errors
    /// Errors if connections remained.
    pub async fn drain(mut self, time: Duration) -> Result<(), TimedOut> {
        self.stop_accepting();
        let answered = async {
            if let Ok(mut connections) = (&mut self.accepting).await {
                while connections.join_next().await.is_some() {}
            }
        };
        within(time, answered).await
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

struct Accepting {
    listener: TcpListener,
    spares: Spares,
    slots: Slots,
    requests: Requests,
    settings: Settings,
    connections: JoinSet<()>,
}

impl Accepting {
    /// Returns the connections that were open when it was stopped; the address is free by then.
    async fn run(mut self, mut stopped: watch::Receiver<bool>) -> JoinSet<()> {
        let mut may_log_at = now();
        loop {
            self.spares.refill(&self.listener);
            let accepted = tokio::select! {
                biased;
                _ = stopped.wait_for(|stopped| *stopped) => return self.connections,
                accepted = self.listener.accept() => accepted,
            };
            while self.connections.try_join_next().is_some() {}
            if now() >= may_log_at && self.log(accepted.as_ref().err()) {
                may_log_at = now() + LOG_EVERY;
            }
            match accepted {
                Ok((stream, peer)) => {
                    let slot = self.slots.admit(peer.ip());
                    self.serve(stream, slot);
                    // The connection reads what has arrived before the next one can take its slot.
                    yield_now().await;
                }
                Err(error) if is_exhausted(&error) => self.accept_exhausted().await,
                // The connection broke while it was accepted; the next one may be intact.
                Err(_) => yield_now().await,
            }
        }
    }

    /// Accepts a connection although there is no descriptor for it: a spare one is freed. It
    /// goes to the reserve, which ends soon and carries a health check if anything.
    async fn accept_exhausted(&mut self) {
        self.slots.shed_idle();
        if self.spares.free_one()
            && let Ok(Ok((stream, _))) = within(ACCEPT_AGAIN, self.listener.accept()).await
        {
            let slot = self.slots.admit_to_reserve();
            self.serve(stream, slot);
            yield_now().await;
        } else {
            pause(ACCEPT_AGAIN).await;
        }
    }

    fn serve(&mut self, stream: TcpStream, slot: ConnectionSlot) {
        // Responses are small, and a client waits for each.
        let _ = stream.set_nodelay(true);
        let connection = Connection::new(stream, slot.clone(), self.settings.write_timeout);
        self.connections.spawn(self.requests.clone().serve(connection, slot));
    }

    /// Logs shed connections and `error`. False if there was nothing to log.
    fn log(&self, error: Option<&io::Error>) -> bool {
        let shed = self.slots.take_shed();
        if shed > 0 {
            tracing::warn!(shed, "closed idle connections, because others needed their slots");
        }
        if let Some(error) = error {
            tracing::warn!(%error, "failed to accept a connection");
        }
        shed > 0 || error.is_some()
    }
}
