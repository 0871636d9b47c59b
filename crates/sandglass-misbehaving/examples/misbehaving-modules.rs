//! Writes the module of each handler of the kit to a folder, for use with `sandglass run`.
//!
//! ```sh
//! cargo run -p sandglass-misbehaving --example misbehaving-modules -- FOLDER
//! ```

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use sandglass_misbehaving::kit;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        return failed("name the folder to write to");
    };
    match write(Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn write(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for member in kit() {
        let name = member.name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        for (number, handler) in member.handlers.iter().enumerate() {
            let ending = if handler.module.starts_with(b"\0asm") { "wasm" } else { "wat" };
            let file = folder.join(format!("{name}-{number}.{ending}"));
            std::fs::write(&file, &handler.module)?;
        }
    }
    Ok(())
}

fn failed(why: &str) -> ExitCode {
    // If standard error is closed, the error cannot be reported anywhere.
    drop(writeln!(io::stderr(), "{why}"));
    ExitCode::FAILURE
}
