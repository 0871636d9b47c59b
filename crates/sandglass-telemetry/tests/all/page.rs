//! The page about metrics says what the table says.

use sandglass_telemetry::table;

#[test]
fn the_page_of_metrics_is_generated_from_the_table() {
    let page = include_str!("../../../../docs/metrics.md");
    assert!(
        page == table::markdown(),
        "generate it: cargo run -p sandglass-telemetry --example metrics-page > docs/metrics.md"
    );
}
