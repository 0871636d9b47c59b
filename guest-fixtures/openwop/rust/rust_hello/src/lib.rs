//! Greets.

use node_pack::{Outcome, Pack, Request, Value, export_pack, host, json};

export_pack!(Pack {
    name: "vendor.openwop.rust-hello",
    nodes: &[("vendor.openwop.rust-hello.greet", greet)],
});

/// By the input `name`; where the workflow connects none, by the variable of that name.
fn greet(request: &Request) -> Result<Outcome, String> {
    let name = match request.text("name")? {
        Some(name) => name.to_owned(),
        None => match host::variable_get("name") {
            None | Some(Value::Null) => "world".to_owned(),
            Some(Value::String(name)) => name,
            Some(other) => {
                return Err(format!("variable `name` is {other}, and should be a string"));
            }
        },
    };
    host::log(host::Level::Info, "greets");
    Ok(Outcome::Completed(json!({ "greeting": format!("Hello, {name}!") })))
}
