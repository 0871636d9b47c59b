//! Logs, progress, spans and metrics.

use sandglass_guest::{Failure, Value, json, log, metrics, progress, spans};

pub fn tell() -> Result<Value, Failure> {
    log::info!("hello, {}", "world");
    log::error("a line");
    log::fields(log::Level::Warn, "slow \"indeed\"", json!({ "ms": 12 }))?;
    log::wide_event(json!({ "operation": "grep", "hits": 3 }))?;
    progress::emit(json!({ "done": 1 }))?;
    progress::status("counting");
    metrics::counter("tool_calls", 1.0, &[("tool", "grep")])?;
    metrics::gauge("queue_length", 3.0, &[])?;
    metrics::histogram("tool_seconds", 0.25, &[("tool", "grep")])?;
    let outer = spans::start("outer")?;
    let inner = spans::start_with("inner", json!({ "n": 1 }))?;
    inner.event("halfway", ())?;
    inner.set(json!({ "m": 2 }))?;
    let refused = [
        inner.set(7).is_err(),
        spans::start(" ").is_err(),
        progress::emit("x".repeat(20_000)).is_err(),
        log::wide_event([1]).is_err(),
        log::fields(log::Level::Info, "x", 7).is_err(),
        metrics::gauge("x", f64::NAN, &[]).is_err(),
        metrics::counter("tool_calls", -1.0, &[]).is_err(),
    ];
    inner.fail("it failed");
    outer.end();
    Ok(json!({ "refused": refused }))
}
