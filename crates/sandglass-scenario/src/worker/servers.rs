//! The servers of a scenario in virtual time: they have no sockets, and give the same responses.

use std::collections::BTreeMap;

use sandglass_host::{Answer, HttpCall, HttpClient, HttpError, Response};

use crate::file::Server;
use crate::wait::pause;

/// The scenario's servers by their ports on this machine.
#[derive(Debug)]
pub(super) struct SimulatedServers(pub(super) BTreeMap<u16, Server>);

impl HttpClient for SimulatedServers {
    fn send<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
        let HttpCall { request, destinations, limits, .. } = call;
        Box::pin(async move {
            destinations.allow(&request)?;
            let Some(server) = self.at(request.url()) else {
                let why = "no server listens there: in virtual time, there are only the servers of \
                           the scenario";
                return Err(HttpError::Transport(why.to_owned()));
            };
            let responded = async {
                match server.respond_after {
                    Some(time) => pause(time).await,
                    None => std::future::pending().await,
                }
                Ok(())
            };
            limits.bound(responded).await?;
            if server.body.len() as u64 > limits.response_bytes {
                return Err(HttpError::TooLarge(limits.response_bytes));
            }
            let body = server.body.clone().into_bytes();
            Ok(Response { status: server.status, body, ..Response::default() })
        })
    }
}

impl SimulatedServers {
    fn at(&self, url: &str) -> Option<&Server> {
        let rest = url.strip_prefix("http://127.0.0.1:")?;
        let port = rest.split(['/', '?', '#']).next()?;
        self.0.get(&port.parse().ok()?)
    }
}
