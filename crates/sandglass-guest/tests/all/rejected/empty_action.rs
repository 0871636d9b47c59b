use sandglass_guest::{Context, Failure, handler};

#[handler(
    action = "" //~ an action has a name
)]
fn handle(_context: &Context) -> Result<(), Failure> {
    Ok(())
}
