//! Valid handlers, to show that the files of `rejected` fail only because of their fault.

use sandglass_guest::{Context, Failure, handler};
use sandglass_guest::__private::serde::{self, Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(crate = "serde")]
pub struct Input {
    pub name: String,
}

#[derive(Serialize)]
#[serde(crate = "serde")]
pub struct Output {
    pub name: String,
}

#[handler(action = "Finish")]
fn handle(input: Input, _context: &Context) -> Result<Output, Failure> {
    Ok(Output { name: input.name })
}

mod asynchronous {
    use super::*;

    #[handler(action = "Finish")]
    async fn handle(context: &Context, input: Input) -> Result<Output, Failure> {
        let _ = context.entity_id();
        Ok(Output { name: input.name })
    }
}
