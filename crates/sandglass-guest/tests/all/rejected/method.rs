use sandglass_guest::{Context, Failure, handler};

pub struct Handler;

impl Handler {
    #[handler]
    fn handle(&self) -> Result<(), Failure> { //~ cannot be a method
        Ok(())
    }
}

pub fn of(_: &Context) {}
