//! GETs the `url` of its configuration and answers what came back; where the host
//! refuses or fails, the reason that the host gives is its failure.

use abi::{Answer, Value, json};

abi::guest!(fetch);

fn fetch(context: &Value) -> Answer {
    let Some(url) = context["integration_config"]["url"].as_str() else {
        return Answer::Failure("integration_config has no `url`".into());
    };
    match abi::http("GET", url, &[["accept", "text/plain"]], "") {
        Ok(response) => {
            Answer::Success(json!({ "status": response.status, "body": response.body }))
        }
        Err(reason) => Answer::Failure(reason),
    }
}
