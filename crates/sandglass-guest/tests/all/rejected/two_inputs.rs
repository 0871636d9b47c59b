use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(
    _one: u32,
    _other: String, //~ a second input
) -> Result<(), Failure> {
    Ok(())
}

pub fn of(_: &Context) {}
