use sandglass_guest::{Context, Failure, handler};

#[handler(
    acton = "Finish" //~ one key: `action`
)]
fn handle(_context: &Context) -> Result<(), Failure> {
    Ok(())
}
