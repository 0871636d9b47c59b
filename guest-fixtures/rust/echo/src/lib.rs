//! Answers the context that it was given, as params.

use sandglass_guest::{Context, Failure, Value, handler};

#[handler(action = "Finish")]
fn echo(context: &Context) -> Result<Value, Failure> {
    Ok(context.to_json()?)
}
