//! The peers of members: small servers on 127.0.0.1, which end when they are dropped.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::member::Peer;

/// Connections that a peer serves at once; further ones are closed. A member needs one.
const CONNECTIONS_MAX: usize = 64;

/// Largest head of a request that is read, in bytes.
const HEAD_MAX_BYTES: usize = 64 << 10;

/// Size of the dripping body, in bytes: after an hour, it is still far from its end.
const BODY_BYTES: usize = 1 << 20;

/// Time between two bytes of the body.
const DRIP_EVERY: Duration = Duration::from_millis(20);

/// A server, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    /// The tasks that serve. Dropping the set aborts them.
    _serving: JoinSet<()>,
    /// A listener, and the connection that fills its queue.
    _filling: Option<(TcpListener, TcpStream)>,
}

impl Server {
    /// Starts `peer`.
    ///
    /// # Errors
    /// The operating system provides no socket.
    pub(crate) async fn start(peer: Peer) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let mut serving = JoinSet::new();
        let (address, filling) = match peer {
            Peer::Nowhere => {
                // The listener's queue has one slot. While that is taken, connection attempts get
                // no response.
                let listener = socket.listen(0)?;
                let address = listener.local_addr()?;
                (address, Some((listener, TcpStream::connect(address).await?)))
            }
            Peer::Silent | Peer::Unread | Peer::Drips => {
                let listener = socket.listen(64)?;
                let address = listener.local_addr()?;
                serving.spawn(accept(listener, peer));
                (address, None)
            }
        };
        Ok(Self { address, _serving: serving, _filling: filling })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

async fn accept(listener: TcpListener, peer: Peer) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        if connections.len() < CONNECTIONS_MAX {
            connections.spawn(async move {
                // An error means that the client has gone, which is expected.
                drop(serve(stream, peer).await);
            });
        }
    }
}

async fn serve(mut stream: TcpStream, peer: Peer) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 || head.len() > HEAD_MAX_BYTES {
            return Ok(());
        }
    }
    if peer == Peer::Drips {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY_BYTES}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        for _ in 0..BODY_BYTES {
            stream.write_all(b"x").await?;
            #[allow(clippy::disallowed_methods, reason = "its slowness is what it is for")]
            tokio::time::sleep(DRIP_EVERY).await;
        }
    }
    if peer == Peer::Unread {
        std::future::pending::<()>().await;
    }
    // Keep the connection open until the client closes it.
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}
