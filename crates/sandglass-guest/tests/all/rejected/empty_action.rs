use sandglass_guest::{Context, Failure, handler};

#[handler(
    action = "" //~ the name of the action is empty
)]
fn handle(_context: &Context) -> Result<(), Failure> {
    Ok(())
}
