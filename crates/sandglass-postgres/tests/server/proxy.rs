//! A proxy between a client and a server that cuts, delays and holds what passes.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

use crate::server::block;

/// What the proxy does with the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Pass,
    /// Each piece waits for this long.
    Delay(Duration),
    /// Nothing passes, and the connection stays: it is half-open.
    Hold,
    /// What arrives is lost, so the connection has to be cut behind it.
    Lose,
}

/// What the proxy does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// The server's port, for new connections.
    pub(crate) server: u16,
    pub(crate) to_server: Flow,
    pub(crate) to_client: Flow,
    /// Connections of an earlier generation are cut.
    pub(crate) generation: u64,
    /// Whether new connections are accepted and cut at once.
    pub(crate) is_closed: bool,
    /// Whether new connections are refused, as those to a process that has ended.
    pub(crate) is_refusing: bool,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    weather: watch::Sender<Weather>,
}

impl Proxy {
    /// A proxy of a port of this machine.
    pub(crate) fn of(port: u16) -> Self {
        Self::on(0, port)
    }

    /// As [`Proxy::of`], on this port; 0 for a free one.
    pub(crate) fn on(own: u16, port: u16) -> Self {
        let fair = Weather {
            server: port,
            to_server: Flow::Pass,
            to_client: Flow::Pass,
            generation: 0,
            is_closed: false,
            is_refusing: false,
        };
        let (weather, seen) = watch::channel(fair);
        let port = block(async move {
            let socket = bind(own).await;
            let own = socket.local_addr().unwrap().port();
            tokio::spawn(serve(socket.listen(1024).unwrap(), seen));
            own
        });
        Self { port, weather }
    }

    pub(crate) fn set(&self, to_server: Flow, to_client: Flow) {
        self.weather.send_modify(|weather| {
            (weather.to_server, weather.to_client) = (to_server, to_client);
        });
    }

    /// Leads new connections to another server.
    pub(crate) fn lead_to(&self, port: u16) {
        self.weather.send_modify(|weather| weather.server = port);
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        self.weather.send_modify(|weather| weather.generation += 1);
    }

    /// Whether new connections are cut at once.
    pub(crate) fn close(&self, is_closed: bool) {
        self.weather.send_modify(|weather| weather.is_closed = is_closed);
    }

    /// Whether new connections are refused.
    pub(crate) fn refuse(&self, is_refusing: bool) {
        self.weather.send_modify(|weather| weather.is_refusing = is_refusing);
    }
}

/// A socket that has this port and does not listen, so that connections are refused.
async fn bind(port: u16) -> TcpSocket {
    for _ in 0..500 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        if socket.bind((Ipv4Addr::LOCALHOST, port).into()).is_ok() {
            return socket;
        }
        // A process that starts just now has the former socket until it executes its program.
        wait(Duration::from_millis(10)).await;
    }
    panic!("port {port} is in use");
}

async fn serve(mut listener: TcpListener, weather: watch::Receiver<Weather>) {
    let mut changes = weather.clone();
    loop {
        let port = listener.local_addr().unwrap().port();
        loop {
            tokio::select! {
                Ok((client, _)) = listener.accept() => {
                    let _ = client.set_nodelay(true);
                    if !weather.borrow().is_closed {
                        tokio::spawn(connect(client, weather.clone()));
                    }
                }
                Ok(_) = changes.wait_for(|it| it.is_refusing) => break,
                else => return,
            }
        }
        drop(listener);
        let socket = bind(port).await;
        if changes.wait_for(|it| !it.is_refusing).await.is_err() {
            return;
        }
        listener = socket.listen(1024).unwrap();
    }
}

async fn connect(client: TcpStream, weather: watch::Receiver<Weather>) {
    let port = weather.borrow().server;
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = server.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let own = weather.borrow().generation;
    let mut cut = weather.clone();
    tokio::select! {
        () = pass(from_client, to_server, weather.clone(), |it| it.to_server) => {}
        () = pass(from_server, to_client, weather.clone(), |it| it.to_client) => {}
        _ = cut.wait_for(move |it| it.generation != own) => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    flow: impl Fn(&Weather) -> Flow,
) {
    let mut buffer = Arc::new([0; 16_384]);
    let buffer = Arc::make_mut(&mut buffer);
    while let Ok(length @ 1..) = from.read(buffer).await {
        let now = flow(&weather.borrow());
        match now {
            Flow::Pass => {}
            Flow::Delay(length) => wait(length).await,
            Flow::Hold => {
                if weather.wait_for(|it| flow(it) != Flow::Hold).await.is_err() {
                    return;
                }
            }
            Flow::Lose => continue,
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a slow network")]
pub(crate) async fn wait(length: Duration) {
    tokio::time::sleep(length).await;
}
