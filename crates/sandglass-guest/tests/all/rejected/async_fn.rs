use sandglass_guest::{Context, Failure, handler};

#[handler]
async fn handle() -> Result<(), Failure> { //~ `async fn`
    Ok(())
}

pub fn of(_: &Context) {}
