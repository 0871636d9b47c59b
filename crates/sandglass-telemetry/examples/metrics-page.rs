//! Writes the page `docs/metrics.md` to standard output.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(sandglass_telemetry::table::markdown().as_bytes())
}
