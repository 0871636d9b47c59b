use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(
    _text: &str, //~ mismatched types
) -> Result<(), Failure> {
    Ok(())
}

pub fn of(_: &Context) {}
