use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(
    _context: &Context,
) -> Result<(), String> { //~ trait bound
    Ok(())
}

pub fn of() -> Option<Failure> { None }
