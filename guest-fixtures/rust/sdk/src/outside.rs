//! HTTP, asks and signals.

use futures_util::future::try_join_all;
use sandglass_guest::{Failure, Value, ask, deadline, http, json, signal};
use serde::Deserialize;

pub async fn get(url: &str) -> Result<Value, Failure> {
    let response = http::Request::get(url).header("accept", "text/plain").await?;
    Ok(json!({ "status": response.status(), "body": response.text()? }))
}

/// Three at the same time, in the world in which that is possible.
pub async fn get_together(url: &str) -> Result<Value, Failure> {
    let gets = (0..3).map(|number| http::Request::get(format!("{url}?{number}")).into_future());
    let responses = try_join_all(gets).await?;
    let statuses: Vec<u16> = responses.iter().map(http::Response::status).collect();
    Ok(json!({ "statuses": statuses }))
}

pub fn post(url: &str) -> Result<Value, Failure> {
    let request = http::Request::post(url).bearer("t0k").json(json!({ "n": 1 }));
    let response = request.send()?.error_for_status()?;
    Ok(json!({ "status": response.status() }))
}

pub fn read_body(url: &str) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    struct Body {
        rain_mm: f64,
    }
    let body: Body = http::Request::get(url).send()?.json()?;
    Ok(json!({ "rain_mm": body.rain_mm }))
}

pub fn batch(url: &str) -> Result<Value, Failure> {
    let unwritable = std::collections::BTreeMap::from([((1, 2), 3)]);
    let requests = [
        http::Request::get(url),
        http::Request::post(url).json(unwritable),
        http::Request::get("http://nowhere.invalid/"),
        http::Request::post(url).body("x"),
    ];
    let answers: Vec<Value> = http::batch(requests)?
        .into_iter()
        .map(|answer| json!(answer.map_or(0, |response| response.status())))
        .collect();
    let too_many = (0..65).map(|_| http::Request::get(url));
    Ok(json!({ "statuses": answers, "too_many": http::batch(too_many).is_err() }))
}

/// A call that waits is ended at the soft deadline, and the handler has time to say so.
pub fn call_and_stop(url: &str) -> Result<Value, Failure> {
    let answered = http::Request::get(url).send().is_ok();
    Ok(json!({ "answered": answered, "should_stop": deadline::should_stop() }))
}

pub async fn ask() -> Result<Value, Failure> {
    let request = ask::Request::new("Tool", "1", "Use").params(json!({ "n": 1 }));
    let answer = request.until_settled().await?;
    Ok(json!({
        "state": answer.state,
        "sequence": answer.sequence,
        "fields": answer.fields::<Value>()?,
    }))
}

pub async fn signal() -> Result<Value, Failure> {
    signal::Notice::new("Tool", "1", "used").payload(json!({ "n": 1 })).await?;
    Ok(json!({ "sent": true }))
}
