//! Sends the secret `API_KEY` in a header to the `url` of its configuration, and
//! answers the status. The secret is in no answer and no log line of the guest.

use abi::{Answer, Value, json};

abi::guest!(call_with_secret);

fn call_with_secret(context: &Value) -> Answer {
    match status_of_call(context) {
        Ok(status) => Answer::Success(json!({ "status": status })),
        Err(reason) => Answer::Failure(reason),
    }
}

fn status_of_call(context: &Value) -> Result<u16, abi::Reason> {
    let url =
        context["integration_config"]["url"].as_str().ok_or("integration_config has no `url`")?;
    let bearer = format!("Bearer {}", abi::secret("API_KEY")?);
    let response = abi::http("POST", url, &[["authorization", &bearer]], "{}")?;
    Ok(response.status)
}
