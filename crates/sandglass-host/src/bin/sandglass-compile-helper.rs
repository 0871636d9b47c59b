//! Compiles modules for hosts of the same version that embedders build
//! (`sandglass_host::Builder::compile_in`). It is not for people.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandglass_host::compile_helper()
}
