//! The client that really sends: connections, redirects, and what goes wrong on the
//! way.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::StatusCode;
use reqwest::header::HeaderValue;
use tokio::sync::OnceCell;

use super::request::Body;
use super::{
    DEADLINE_HEADER, Destinations, HttpClient, HttpError, Limits, MAX_REDIRECTS, Opened, Request,
    Response, within,
};
use crate::secret::Answer;

/// The real client: connections are pooled and shared by all dispatches. It is
/// made when the first request is, and reads the system's certificates then.
#[derive(Debug, Default)]
pub(crate) struct NetworkClient(OnceCell<reqwest::Client>);

impl NetworkClient {
    async fn client(&self) -> Result<&reqwest::Client, HttpError> {
        let made = self.0.get_or_try_init(|| async {
            // Reading certificates is file I/O: no guest's thread may wait in it.
            let made = tokio::task::spawn_blocking(|| {
                client(reqwest::Client::builder()).or_else(|_| {
                    // A machine without certificates can still reach plain HTTP.
                    client(reqwest::Client::builder().tls_certs_only([]))
                })
            });
            made.await.unwrap_or_else(|_| Err("its making failed".to_owned()))
        });
        made.await.map_err(|why| HttpError::Transport(format!("there is no HTTP client: {why}")))
    }

    async fn once(
        &self,
        request: &mut Request,
        remaining: Duration,
        traceparent: &str,
    ) -> Result<reqwest::Response, HttpError> {
        let body = match &mut request.body {
            Body::Whole(bytes) => reqwest::Body::from(bytes.clone()),
            Body::Pieces(pieces) => match pieces.take() {
                Some(pieces) => reqwest::Body::wrap_stream(pieces),
                None => reqwest::Body::default(),
            },
        };
        self.client()
            .await?
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone())
            .header(DEADLINE_HEADER, remaining.as_millis().to_string())
            .header("traceparent", traceparent)
            .body(body)
            .send()
            .await
            .map_err(|error| transport(&error.without_url()))
    }

    async fn follow(
        &self,
        mut request: Request,
        destinations: &Destinations,
        limits: Limits,
        traceparent: &str,
    ) -> Result<reqwest::Response, HttpError> {
        #[allow(clippy::disallowed_methods, reason = "the network answers in real time")]
        let began = tokio::time::Instant::now();
        for _ in 0..=MAX_REDIRECTS {
            destinations.check(&request.url)?;
            let remaining = limits.remaining.saturating_sub(began.elapsed());
            let response = self.once(&mut request, remaining, traceparent).await?;
            let status = response.status();
            let follows = redirects(status) && matches!(request.body, Body::Whole(_));
            let location = response.headers().get("location").filter(|_| follows);
            let Some(location) = location else { return Ok(response) };
            let location = location
                .to_str()
                .map_err(|_| HttpError::Transport("redirected to what is no URL".to_owned()))?;
            request = request.redirected(status, location)?;
        }
        Err(HttpError::TooManyRedirects)
    }
}

impl HttpClient for NetworkClient {
    fn send<'a>(
        &'a self,
        request: Request,
        destinations: &'a Destinations,
        limits: Limits,
        traceparent: &'a str,
    ) -> Answer<'a, Result<Response, HttpError>> {
        Box::pin(within(limits.timeout, async move {
            let response = self.follow(request, destinations, limits, traceparent).await?;
            read(response, limits).await
        }))
    }

    fn open<'a>(
        &'a self,
        request: Request,
        destinations: &'a Destinations,
        limits: Limits,
        traceparent: &'a str,
    ) -> Answer<'a, Result<Opened, HttpError>> {
        Box::pin(within(limits.timeout, async move {
            let response = self.follow(request, destinations, limits, traceparent).await?;
            let status = response.status().as_u16();
            let headers = headers(&response);
            let body = response
                .bytes_stream()
                .map(|piece| piece.map_err(|error| transport(&error.without_url())));
            Ok(Opened { status, headers, body: Box::pin(body) })
        }))
    }
}

fn headers(response: &reqwest::Response) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn client(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, String> {
    // Where the process has a provider already, that one serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    builder
        .redirect(reqwest::redirect::Policy::none())
        // The allow-list names who is reached; the environment sends nobody elsewhere.
        .no_proxy()
        .hickory_dns(true)
        .user_agent(concat!("sandglass/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| chain(&error))
}

fn redirects(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

async fn read(mut response: reqwest::Response, limits: Limits) -> Result<Response, HttpError> {
    let status = response.status().as_u16();
    let headers = headers(&response);
    let too_large = HttpError::TooLarge(limits.response_bytes);
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| transport(&error.without_url()))?
    {
        if (body.len() + chunk.len()) as u64 > limits.response_bytes {
            return Err(too_large);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response { status, headers, body })
}

/// `error` comes without its URL, whose query may hold a secret.
fn transport(error: &reqwest::Error) -> HttpError {
    HttpError::Transport(chain(error))
}

/// An error with all that lies behind it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}
