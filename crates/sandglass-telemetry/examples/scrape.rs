//! Writes a scrape in which every metric has been reported to standard output.

use std::io::Write as _;

use sandglass_telemetry::Prefix;
use sandglass_telemetry::prometheus::Exporter;

#[path = "../tests/all/events.rs"]
mod events;

fn main() -> std::io::Result<()> {
    let exporter = Exporter::new(Prefix::default());
    events::all_happen(&exporter.metrics());
    std::io::stdout().write_all(exporter.render().as_bytes())
}
