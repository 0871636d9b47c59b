use sandglass_guest::{Failure, deadline, handler, http, log};
use serde::{Deserialize, Serialize};

/// What the action brings with it.
#[derive(Deserialize)]
struct Input {
    name: String,
    url: Option<String>,
}

#[derive(Serialize)]
struct Greeting {
    hello: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
}

/// Runs once for each dispatch. What it returns goes to the action that the spec names as
/// `on_success`, or, failed, as `on_failure`.
#[handler]
async fn greet(input: Input) -> Result<Greeting, Failure> {
    let mut greeting = Greeting { hello: input.name, status: None };
    // Near the deadline it is time to answer what there is.
    if let Some(url) = input.url.filter(|_| !deadline::should_stop()) {
        log::info!("asking {url}");
        // Of a host that integration.toml grants.
        greeting.status = Some(http::Request::get(url).await?.status());
    }
    Ok(greeting)
}
