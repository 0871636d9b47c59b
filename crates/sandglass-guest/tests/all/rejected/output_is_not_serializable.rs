use sandglass_guest::{Context, Failure, handler};

pub struct Output;

#[handler]
fn handle(
    _context: &Context,
) -> Result<Output, Failure> { //~ Serialize` is not satisfied
    Ok(Output)
}
