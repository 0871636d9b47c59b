//! The local HTTP servers of a scenario, which answer late or never. They belong to the director, so
//! they outlive a kill of the runtime.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::file::Server;
use crate::wait::pause;

/// Connections that a server serves at once, far more than the handlers of a scenario open. Further
/// ones wait in the backlog.
const CONNECTIONS_MAX: usize = 256;

/// The pause after a connection could not be accepted. Without it, the server would retry without end.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A server that accepts connections. Dropping it ends it with all its connections.
#[derive(Debug)]
pub(super) struct LocalServer {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl LocalServer {
    pub(super) async fn start(server: &Server) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, Arc::new(server.clone())));
        Ok(Self { address, accepting })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, server: Arc<Server>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = Arc::clone(&server);
                connections.spawn(async move {
                    serve(stream, server).await;
                    drop(permit);
                });
            }
            // Probably there are no file descriptors left: let connections end first.
            Err(_) => pause(ACCEPT_RETRY).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, server: Arc<Server>) {
    let service = service_fn(move |_: Request<Incoming>| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(respond(&server).await) }
    });
    // Scenarios kill guests in their calls, which drops the connection, so errors are expected.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(server: &Server) -> Response<Full<Bytes>> {
    match server.respond_after {
        Some(Duration::ZERO) => {}
        Some(time) => pause(time).await,
        None => std::future::pending().await,
    }
    let mut response = Response::new(Full::new(Bytes::from(server.body.clone())));
    // The status was checked when the scenario was read.
    *response.status_mut() =
        StatusCode::from_u16(server.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}
