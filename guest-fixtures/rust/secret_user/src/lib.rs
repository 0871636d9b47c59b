//! Sends the secret `API_KEY` in a header to the `url` of its configuration, and
//! answers the status. The secret is in no answer and no log line of the guest.

use sandglass_guest::{Context, Failure, handler, http, secrets};
use serde::Serialize;

#[derive(Serialize)]
struct Called {
    status: u16,
}

#[handler(action = "Finish")]
fn call_with_secret(context: &Context) -> Result<Called, Failure> {
    let url = context.required_config("url")?;
    let response = http::Request::post(url).bearer(&secrets::get("API_KEY")?).body("{}").send()?;
    Ok(Called { status: response.status() })
}
