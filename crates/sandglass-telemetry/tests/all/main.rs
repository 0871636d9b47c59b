//! The crate's public face: what is measured and traced is what comes out, under
//! the names of the table.

mod logs;
mod metrics;
mod otlp;
mod page;
mod scrape;
mod serving;
mod spans;
