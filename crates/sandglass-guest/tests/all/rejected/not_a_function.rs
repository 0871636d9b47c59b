use sandglass_guest::{Context, Failure, handler};

#[handler]
pub struct Handler; //~ only a function

pub fn of(_: &Context) -> Option<Failure> { None }
