//! `sandglass:integration/http`: requests with whole bodies, and with streamed ones.

use std::time::Duration;

use wasmtime::Result;
use wasmtime::component::Resource;

use super::interface::http;
use super::{FIRST, basics};
use crate::boundary::imports;
use crate::store::RunStore;
use sandglass_supervisor::capability::http::{HttpError, Request as Sendable};
use sandglass_supervisor::capability::streams::{
    self, IncomingResponse as Incoming, OutgoingRequest as Outgoing,
};

imports! { IMPORTS from FIRST + basics::IMPORTS.len();
    "sandglass:integration/http" in http {
        Host {
            waiting "send" fn send(store, race, request: Request)
                -> Result<Result<Response, Error>>
            {
                let request = match store.http_request(request) {
                    Ok(request) => request,
                    Err(error) => return Ok(Some(Err(store.failed(error)))),
                };
                let wait = store.outside().send(request);
                let Some(response) = race.call(wait).await else { return Ok(None) };
                Ok(Some(response.map_err(|error| store.failed(error)).map(|received| Response {
                    status: received.response.status,
                    headers: received.response.headers,
                    body: received.response.body,
                })))
            }
            waiting "open" fn open(store, race, request: Request)
                -> Result<Result<Resource<IncomingResponse>, Error>>
            {
                let request = store.http_request(request);
                let outside = store.outside();
                // Noted as sent only if the race lets it begin.
                let wait = async move { outside.open(request?)?.await };
                let Some(opened) = race.call(wait).await else { return Ok(None) };
                store.add_resource(opened.map(Incoming::new)).map(Some)
            }
            instant "start" fn start(store, head: RequestHead)
                -> Result<Result<Resource<OutgoingRequest>, Error>>
            {
                let (pieces, body) = streams::body();
                let RequestHead { method, url, headers } = head;
                let request = Sendable::streamed(&method, &url, headers, body);
                let response = request
                    .map_err(HttpError::InvalidRequest)
                    .and_then(|request| store.outside().open(request));
                store.add_resource(response.map(|response| Outgoing::new(pieces, response)))
            }
        }
        HostOutgoingRequest {
            waiting "[method]outgoing-request.write"
            fn write(store, race, this: Resource<OutgoingRequest>, bytes: Vec<u8>)
                -> Result<Result<(), Error>>
            {
                let piece = match store.guest().memory.bytes(bytes) {
                    Ok(piece) => piece,
                    Err(error) => return Ok(Some(Err(store.failed(HttpError::from(error))))),
                };
                let outgoing = store.wasi().table().get_mut(&this)?;
                let wait = outgoing.write(piece);
                let Some(written) = race.call(wait).await else { return Ok(None) };
                Ok(Some(written.map_err(|error| store.failed(error))))
            }
            waiting "[static]outgoing-request.finish"
            fn finish(store, race, this: Resource<OutgoingRequest>)
                -> Result<Result<Resource<IncomingResponse>, Error>>
            {
                let outgoing = store.wasi().table().delete(this)?;
                let Some(response) = race.call(outgoing.finish()).await else {
                    return Ok(None);
                };
                store.add_resource(response).map(Some)
            }
            instant "[resource-drop]outgoing-request"
            fn drop(store, this: Resource<OutgoingRequest>) -> Result<()> {
                store.wasi().table().delete(this)?;
                Ok(())
            }
        }
        HostIncomingResponse {
            instant "[method]incoming-response.status"
            fn status(store, this: Resource<IncomingResponse>) -> Result<u16> {
                Ok(store.wasi().table().get(&this)?.status)
            }
            instant "[method]incoming-response.headers"
            fn headers(store, this: Resource<IncomingResponse>) -> Result<Headers> {
                Ok(store.wasi().table().get(&this)?.headers.clone())
            }
            waiting "[method]incoming-response.read"
            fn read(store, race, this: Resource<IncomingResponse>, max_bytes: u32)
                -> Result<Result<Vec<u8>, Error>>
            {
                let response = store.wasi().table().get_mut(&this)?;
                let Some(piece) = race.call(response.read(max_bytes)).await else {
                    return Ok(None);
                };
                Ok(Some(piece.map(Vec::from).map_err(|error| store.failed(error))))
            }
            instant "[resource-drop]incoming-response"
            fn drop(store, this: Resource<IncomingResponse>) -> Result<()> {
                store.wasi().table().delete(this)?;
                Ok(())
            }
        }
    }
}

impl RunStore {
    /// The request with its whole body, which is charged until it is sent.
    fn http_request(&self, request: http::Request) -> Result<Sendable, HttpError> {
        let http::RequestHead { method, url, headers } = request.head;
        let body = self.guest().memory.bytes(request.body)?;
        Sendable::new(&method, &url, headers, body).map_err(HttpError::InvalidRequest)
    }

    /// Adds what a call has made to the guest's resources.
    fn add_resource<T: Send + 'static>(
        &mut self,
        made: Result<T, HttpError>,
    ) -> Result<Result<Resource<T>, http::Error>> {
        Ok(match made {
            Ok(made) => Ok(self.wasi().table().push(made)?),
            Err(error) => Err(self.failed(error)),
        })
    }

    /// The time until the deadline.
    pub(super) fn remaining(&self) -> Duration {
        self.run().deadline().since(self.now())
    }
}

impl From<HttpError> for http::Error {
    fn from(error: HttpError) -> Self {
        match error {
            HttpError::InvalidRequest(why) => Self::InvalidRequest(why),
            HttpError::NotAllowed(host) => Self::NotAllowed(host),
            HttpError::NotPublic(why) => Self::NotAllowed(why),
            error @ HttpError::NotThisWay(_) => Self::NotAllowed(error.to_string()),
            HttpError::TimedOut(after) => {
                Self::TimedOut(u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
            }
            HttpError::TooLarge(bytes) => Self::TooLarge(bytes),
            HttpError::CutShort(why) => Self::CutShort(why),
            HttpError::TooManyRedirects => Self::TooManyRedirects,
            HttpError::TooManyRequests(why)
            | HttpError::OutOfMemory(why)
            | HttpError::Transport(why) => Self::Transport(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::http::{Host, HostOutgoingRequest, RequestHead};
    use super::*;

    #[test]
    fn a_request_is_charged_as_soon_as_it_is_made() {
        let mut store = RunStore::idle();
        let mut start = || {
            let head = RequestHead {
                method: "GET".to_owned(),
                url: "http://api.example/".to_owned(),
                headers: vec![("a".to_owned(), "v".repeat(200_000))],
            };
            Host::start(&mut store, head).expect("the account has room for the error")
        };
        let requests: Vec<_> = std::iter::from_fn(|| start().ok()).take(1_000).collect();
        let error = start().expect_err("the account is full");
        assert!(format!("{error:?}").contains("limits.host_memory"), "{error:?}");
        assert!(requests.len() < 64, "{} requests fit", requests.len());
        for request in requests {
            HostOutgoingRequest::drop(&mut store, request).expect("it is there");
        }
        // What remains is the list of its last requests.
        assert!(store.guest().memory.held() < 16 << 10, "{}", store.guest().memory.held());
    }
}
