use sandglass_guest::{Context, Failure, handler};

#[handler(
    acton = "Finish" //~ the only key is `action`
)]
fn handle(_context: &Context) -> Result<(), Failure> {
    Ok(())
}
