use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(
    _context: &Context,
) -> u32 { //~ a handler returns a `Result`, and `u32` is not a result
    7
}

pub fn of() -> Option<Failure> { None }
