use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(
    _context: &mut Context, //~ the context is read-only
) -> Result<(), Failure> {
    Ok(())
}
