use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(_context: &Context) { //~ returns a `Result`
}

pub fn of() -> Option<Failure> { None }
