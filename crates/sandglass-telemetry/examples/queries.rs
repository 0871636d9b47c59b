//! Writes the queries of the Grafana dashboard and of the recording rules to
//! standard output, one a line.

use std::io::Write as _;

#[path = "../tests/all/queries.rs"]
mod queries;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let recording = queries::rules().into_iter().filter(|(record, _)| record.is_some());
    for query in queries::grafana().into_iter().chain(recording.map(|(_, expr)| expr.to_owned())) {
        writeln!(out, "{query}")?;
    }
    Ok(())
}
