//! Writes the page `docs/guests/misbehaving.md` to standard output: runs the kit against a host,
//! and prints what was observed.

use std::io::Write as _;
use std::process::ExitCode;

use sandglass_host::{Host, Settings};
use sandglass_misbehaving::{kit, markdown, run};

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings { max_runs: 64, ..Settings::default() };
    let host = match Host::builder().settings(settings).build() {
        Ok(host) => host,
        Err(error) => return failed(&error.to_string()),
    };
    let members = kit();
    let verdicts = run(&host, &members).await;
    host.shutdown().await;
    if !verdicts.all_passed() {
        return failed(&verdicts.failures());
    }
    match std::io::stdout().write_all(markdown(&members, &verdicts).as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(why: &str) -> ExitCode {
    // If standard error is closed, the error cannot be reported anywhere.
    drop(writeln!(std::io::stderr(), "{why}"));
    ExitCode::FAILURE
}
