//! Answers the context that it was given, as params.

use abi::{Answer, Value};

abi::guest!(echo);

fn echo(context: &Value) -> Answer {
    Answer::Success(context.clone())
}
