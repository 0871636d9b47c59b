use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle<T>() -> Result<(), Failure> { //~ cannot be generic
    Ok(())
}

pub fn of(_: &Context) {}
