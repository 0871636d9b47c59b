//! Makes a component of a core module that has the types of its world within, as
//! `wasm-tools component new MODULE -o COMPONENT` does. It runs on the machine that builds
//! the guests, and is in none of them.

use std::error::Error;
use std::{env, fs};

use wit_component::ComponentEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [module, component] = &*arguments else {
        return Err("usage: componentize MODULE COMPONENT".into());
    };
    let module = fs::read(module)?;
    let encoded = ComponentEncoder::default().validate(true).module(&module)?.encode()?;
    fs::write(component, encoded)?;
    Ok(())
}
