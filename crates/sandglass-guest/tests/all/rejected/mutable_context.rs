use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(
    _context: &mut Context, //~ can't be changed
) -> Result<(), Failure> {
    Ok(())
}
