use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(_context: &Context) { //~ answers a `Result`
}

pub fn of() -> Option<Failure> { None }
