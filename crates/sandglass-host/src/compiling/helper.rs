//! The helper's side: reads one module, compiles it, and writes the code or the rejection.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use sandglass_model::ModuleHash;

use super::limits;
use super::message::{self, Body, Request};
use crate::compiled_folder::{Entry, Seal};
use crate::sandbox;

/// The whole `main` of a [`CompileHelper`](crate::CompileHelper): limits this process, reads one
/// module from the standard input, and writes its code to the standard output. Nothing else may write
/// there.
///
/// The exit code is 0 if there is a response, including one that rejects the module.
pub fn compile_helper() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // For the host's log. If the host does not read it, the exit code is enough.
            let _ = writeln!(io::stderr(), "failed to compile a module for a host: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    limits::at_the_start()?;
    let mut input = io::stdin().lock();
    let request = Request::read(&mut input)?;
    limits::for_one_module(request.memory_bytes, request.cpu_seconds)?;
    let mut binary = Vec::new();
    input.take(request.binary_bytes).read_to_end(&mut binary)?;
    if binary.len() as u64 != request.binary_bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let engine = sandbox::engine_to_compile(request.target).map_err(io::Error::other)?;
    let compiled = crate::module::compile_here(&engine, request.kind, &binary);
    let rejection;
    let (kind, body, trailer) = match &compiled {
        Ok(code) => {
            let entry = Entry::of(&engine, ModuleHash::of(&binary), request.kind);
            let trailer = Seal::new(&request.key).trailer(&entry, code.bytes())?;
            (Body::Code, code.bytes(), trailer)
        }
        Err(why) => {
            rejection = message::encode_rejection(why);
            (Body::Rejection, rejection.as_slice(), Vec::new())
        }
    };
    let mut output = io::stdout().lock();
    output.write_all(&message::response_head(kind, body.len() + trailer.len()))?;
    output.write_all(body)?;
    output.write_all(&trailer)?;
    output.flush()
}
