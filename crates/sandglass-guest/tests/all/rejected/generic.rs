use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle<T>() -> Result<(), Failure> { //~ not generic
    Ok(())
}

pub fn of(_: &Context) {}
