//! The cost of the host and the precision of its kills, compared with plain Wasmtime in the same process:
//! the tables of `docs/performance.md`. It asserts nothing about time.
//!
//! ```sh
//! cargo bench -p sandglass-host                               # all figures
//! cargo bench -p sandglass-host -- --quick host_call          # one of them, measured less
//! ```
//!
//! It has a main function of its own, because most figures are quantiles of one long series in which the
//! compared cases alternate, which no bench harness supports.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the figures are for people")]
#![allow(missing_docs, reason = "it is no library")]

use sandglass_bench::{Effort, Key};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut effort, mut json, mut keys) = (Effort::Full, false, Vec::<Key>::new());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => effort = Effort::Quick,
            "--json" => json = true,
            // Cargo passes it to benchmarks.
            "--bench" => {}
            key => keys.push(key.parse()?),
        }
    }
    if keys.is_empty() {
        keys = Key::ALL.iter().copied().filter(|key| !key.needs_program()).collect();
    }
    let report =
        sandglass_bench::run(effort, &keys, None, &mut |key| eprintln!("{key}: {}", key.about()))?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let lines = sandglass_bench::lines(&report, |_, verdict| verdict.to_owned());
        println!("{}", lines.join("\n"));
    }
    Ok(())
}
