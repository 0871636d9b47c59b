//! The entry of the binary; all of it is in the library beside.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandglass_cli::main()
}
