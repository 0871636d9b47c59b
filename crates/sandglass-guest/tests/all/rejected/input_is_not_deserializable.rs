use sandglass_guest::{Context, Failure, handler};

pub struct Input;

#[handler]
fn handle(
    _input: Input, //~ trait bound
    _context: &Context,
) -> Result<(), Failure> {
    Ok(())
}
