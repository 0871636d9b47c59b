//! A node that computes, and asks the host for nothing.

use node_pack::{Outcome, Request, Value, json};

/// `{ a, b }` to `{ sum }`: whole where both are and the sum fits, else a float.
pub(crate) fn add(request: &Request) -> Result<Outcome, String> {
    let (a, b) = (number(request, "a")?, number(request, "b")?);
    let whole = a.as_i64().zip(b.as_i64()).and_then(|(a, b)| a.checked_add(b));
    let sum = match whole {
        Some(sum) => json!(sum),
        None => json!(a.as_f64().unwrap_or_default() + b.as_f64().unwrap_or_default()),
    };
    Ok(Outcome::Completed(json!({ "sum": sum })))
}

fn number<'a>(request: &'a Request, name: &str) -> Result<&'a Value, String> {
    match request.input(name) {
        Some(value) if value.is_number() => Ok(value),
        Some(value) => Err(format!("input `{name}` is {value}, and should be a number")),
        None => Err(format!("input `{name}` is missing; connect a number to it")),
    }
}
