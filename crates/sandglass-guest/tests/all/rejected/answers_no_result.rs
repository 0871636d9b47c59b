use sandglass_guest::{Context, Failure, handler};

#[handler]
fn handle(
    _context: &Context,
) -> u32 { //~ a handler answers a `Result`, and `u32` is none
    7
}

pub fn of() -> Option<Failure> { None }
