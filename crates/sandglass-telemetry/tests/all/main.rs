//! The crate's public face: what is measured and traced is what comes out, under
//! the names of the table.

mod dashboards;
mod events;
mod logs;
mod metrics;
mod otlp;
mod page;
mod queries;
mod scrape;
mod serving;
mod size;
mod spans;
