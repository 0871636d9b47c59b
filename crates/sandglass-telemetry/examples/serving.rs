//! Serves metrics whose every event happens again and again, at the address that
//! is given, until it is killed: something for a live Prometheus to scrape. Writes
//! the address that it got to standard output, for those who ask for any port.

use std::io::Write as _;
use std::time::Duration;

use sandglass_telemetry::Prefix;
use sandglass_telemetry::prometheus::Exporter;

#[path = "../tests/all/events.rs"]
mod events;

#[tokio::main]
#[allow(clippy::disallowed_methods, reason = "paces events for a scraper that runs in real time")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let addr = std::env::args().nth(1).ok_or("give the address to serve at")?.parse()?;
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let serving = exporter.serve(addr).await?;
    writeln!(std::io::stdout(), "{}", serving.local_addr())?;
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    loop {
        pace.tick().await;
        events::all_happen(&metrics);
    }
}
