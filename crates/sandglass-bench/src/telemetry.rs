//! Measures what telemetry costs a host: its metrics, and its traces when one percent of them are
//! exported. The baseline is the same host without telemetry.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use sandglass_host::Settings;
use sandglass_telemetry::otlp::{self, Otlp};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry};

use crate::bench_host::{BenchHost, one_thread};
use crate::dispatching::{THREADS, many_in_flight, rate, rounds};
use crate::figure::{Figure, Unit};
use crate::guests;
use crate::timing::by_turns;
use crate::{Effort, Failure};

/// Largest request that the collector accepts, in bytes: many times the size of one batch of spans.
const BODY_MAX_BYTES: usize = 16 << 20;

/// How long the export of the last spans may take. The collector is in this process, so it is fast.
const FLUSH: Duration = Duration::from_secs(2);

/// Measures a host with metrics, as a scraped host has them, and without an exporter of
/// traces.
pub(crate) fn metrics(effort: Effort) -> Result<Figure, Failure> {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    Ok(beside_disabled(effort, telemetry)?.with_ratio_goal(1.05))
}

/// Measures a host with metrics, and with traces that export one percent to a collector.
pub(crate) fn traces(effort: Effort) -> Result<Figure, Failure> {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let endpoint = collector()?;
    let variable = |name: &str| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some(endpoint.clone()),
        "OTEL_TRACES_SAMPLER" => Some("traceidratio".to_owned()),
        "OTEL_TRACES_SAMPLER_ARG" => Some("0.01".to_owned()),
        _ => None,
    };
    let otlp = otlp::from_variables(variable, &metrics)?;
    let tracer = otlp.as_ref().map(Otlp::tracer).unwrap_or_default();
    let figure = beside_disabled(effort, Telemetry { metrics, tracer })?;
    if let Some(otlp) = otlp {
        otlp.shutdown(FLUSH).error.map_or(Ok(()), Err)?;
    }
    Ok(figure.with_ratio_goal(1.15))
}

/// Measures the time per dispatch of a host that reports to `telemetry`, beside a host without
/// telemetry.
fn beside_disabled(effort: Effort, telemetry: Telemetry) -> Result<Figure, Failure> {
    let settings = Settings { guest_threads: THREADS, ..Settings::default() };
    let with_telemetry = BenchHost::with(settings, telemetry, guests::ANSWERS)?;
    let silent = BenchHost::on_threads(THREADS, guests::ANSWERS)?;
    let embedder = one_thread()?;
    let [with_telemetry, silent] = by_turns(
        rounds(effort),
        [
            Box::new(|until, samples| {
                rate(samples, || embedder.block_on(many_in_flight(&with_telemetry, until)))
            }),
            Box::new(|until, samples| {
                rate(samples, || embedder.block_on(many_in_flight(&silent, until)))
            }),
        ],
    )?;
    Ok(Figure::of(&with_telemetry, Unit::Nanoseconds).with_baseline(&silent))
}

/// Starts a collector that accepts everything, and returns its endpoint.
fn collector() -> Result<String, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    // It ends with the process. There is one exporter, so there is one connection at a time.
    #[allow(clippy::disallowed_methods, reason = "a benchmark may panic without a thread")]
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(take_all));
    Ok(endpoint)
}

/// Answers all requests of a connection, until one cannot be read.
fn take_all(stream: TcpStream) {
    let mut reader = BufReader::new(stream);
    while take(&mut reader).is_some() {}
}

fn take(reader: &mut BufReader<TcpStream>) -> Option<()> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.by_ref().take(8192).read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok().filter(|length| *length <= BODY_MAX_BYTES)?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
}
