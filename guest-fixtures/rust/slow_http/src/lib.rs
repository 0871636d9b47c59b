//! GETs the `url` of its configuration and answers what came back; where the host
//! refuses or fails, the reason that the host gives is its failure.

use sandglass_guest::{Context, Failure, handler, http};
use serde::Serialize;

#[derive(Serialize)]
struct Fetched {
    status: u16,
    body: String,
}

#[handler(action = "Finish")]
fn fetch(context: &Context) -> Result<Fetched, Failure> {
    let url = context.required_config("url")?;
    let response = http::Request::get(url).header("accept", "text/plain").send()?;
    Ok(Fetched { status: response.status(), body: response.text()?.to_owned() })
}
