//! What the standard `OTEL_*` variables ask for, read strictly, also where nothing is to be
//! exported: what can't be used is an error at the start and not a silent default.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use hyper::Uri;
use opentelemetry_sdk::trace::Sampler;

use super::environment::{Environment, IgnoredSetting, InvalidSetting, invalid};
use super::sampler::WholeTraces;
use super::{pairs, unserved};

/// Most spans that may be asked to wait for the collector: the queue's memory is
/// taken at the start, some hundred bytes for each.
const QUEUE_MAX: usize = 100_000;

/// Highest limit of a span's parts that may be asked for: what OpenTelemetry asks to be
/// taken.
const LIMIT_MAX: u32 = i32::MAX.unsigned_abs();

/// Where a collector is that nobody has named, as OpenTelemetry says.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318/v1/traces";

/// How an exporter is to be set up.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) endpoint: String,
    /// How long one export may take, all attempts together.
    pub(super) timeout: Duration,
    /// As given: the exporter decodes the values.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) resource: BTreeMap<String, String>,
    pub(super) sampler: Sampling,
    pub(super) batch: Batch,
    pub(super) limits: Limits,
}

/// Whether those who began a trace have a say in whether it is exported.
#[derive(Clone, Debug)]
pub(super) enum Sampling {
    /// They have: `parentbased_*`.
    ParentBased(WholeTraces),
    /// They haven't.
    Own(Sampler),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) queue: usize,
    pub(super) size: usize,
    pub(super) delay: Duration,
}

/// How much of a span is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) attributes: u32,
    pub(super) attributes_of_an_event: u32,
    pub(super) attributes_of_a_link: u32,
    pub(super) events: u32,
    pub(super) links: u32,
    /// Longest text of an attribute, in characters; without a limit where there is none.
    pub(super) value_chars: Option<usize>,
}

impl Settings {
    /// Whether others can read the headers, of which one may be a key, on their way to the
    /// collector.
    pub(super) fn sends_headers_in_clear_text(&self) -> bool {
        let endpoint = self.endpoint.parse::<Uri>().ok();
        let host = endpoint.as_ref().filter(|uri| uri.scheme_str() == Some("http"));
        let is_elsewhere = host.and_then(Uri::host).is_some_and(|host| {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let is_loopback =
                bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
            !is_loopback && !host.eq_ignore_ascii_case("localhost")
        });
        is_elsewhere && !self.headers.is_empty()
    }
}

/// What an environment asks for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// None where nothing is to be exported.
    pub(super) settings: Option<Settings>,
    /// What is asked for in vain.
    pub(super) ignored: Vec<IgnoredSetting>,
}

/// Whether spans are to be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exporter {
    /// Where an endpoint is named.
    Unsaid,
    Otlp,
    None,
}

impl Asked {
    /// What `variable` asks for.
    pub(super) fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, InvalidSetting> {
        let environment = Environment::new(variable);
        let settings = settings(&environment)?;
        Ok(Self { settings, ignored: environment.into_ignored() })
    }
}

/// Says in the log what is asked for in vain.
pub(super) fn tell(ignored: &[IgnoredSetting]) {
    for IgnoredSetting { variable, why } in ignored {
        tracing::warn!("{variable}: {why}");
    }
}

fn settings(environment: &Environment<'_>) -> Result<Option<Settings>, InvalidSetting> {
    // These count also where all else is turned off.
    unserved::propagators(environment)?;
    if environment.flag("OTEL_SDK_DISABLED") {
        return Ok(None);
    }
    unserved::check(environment)?;
    let exporter = exporter(environment)?;
    let endpoint = endpoint(environment)?;
    let settings = Settings {
        endpoint: endpoint.clone().unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
        timeout: timeout(environment)?,
        headers: headers(environment)?,
        resource: resource(environment)?,
        sampler: sampler(environment)?,
        batch: batch(environment)?,
        limits: limits(environment)?,
    };
    let exports = match exporter {
        Exporter::Unsaid => endpoint.is_some(),
        Exporter::Otlp => true,
        Exporter::None => false,
    };
    Ok(exports.then_some(settings))
}

fn exporter(environment: &Environment<'_>) -> Result<Exporter, InvalidSetting> {
    const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
    let exporters = environment.choices(EXPORTER);
    let exporters: Vec<&str> = exporters.iter().map(String::as_str).collect();
    match exporters[..] {
        [] => Ok(Exporter::Unsaid),
        ["otlp"] => Ok(Exporter::Otlp),
        ["none"] => Ok(Exporter::None),
        _ => Err(invalid(EXPORTER, &exporters.join(","), "use otlp or none")),
    }
}

fn endpoint(environment: &Environment<'_>) -> Result<Option<String>, InvalidSetting> {
    let of_traces = address(environment, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")?;
    let of_all = address(environment, "OTEL_EXPORTER_OTLP_ENDPOINT")?;
    Ok(of_traces.or_else(|| Some(format!("{}/v1/traces", of_all?.trim_end_matches('/')))))
}

fn address(
    environment: &Environment<'_>,
    variable: &'static str,
) -> Result<Option<String>, InvalidSetting> {
    let Some(text) = environment.get(variable) else { return Ok(None) };
    // The text may hold a password, so it isn't shown.
    let wrong = |why: &str| InvalidSetting { variable, why: why.to_owned() };
    let uri = text.parse::<Uri>().ok().filter(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
            && uri.query().is_none()
            && !text.contains('#')
    });
    let authority = uri.as_ref().and_then(Uri::authority).ok_or_else(|| {
        wrong("use an address like http://localhost:4318, without user, password or query")
    })?;
    let port = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return Err(wrong("its port is no number from 1 to 65535"));
    }
    Ok(Some(text))
}

/// The shortest of those that bound an export: one request with its repetitions is one.
fn timeout(environment: &Environment<'_>) -> Result<Duration, InvalidSetting> {
    let of_all = environment.millis("OTEL_EXPORTER_OTLP_TIMEOUT")?;
    let of_traces = environment.millis("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT")?;
    let of_a_batch = environment.millis("OTEL_BSP_EXPORT_TIMEOUT")?;
    let of_a_request = of_traces.or(of_all).unwrap_or(Duration::from_secs(10));
    Ok(of_a_request.min(of_a_batch.unwrap_or(Duration::from_secs(30))))
}

fn headers(environment: &Environment<'_>) -> Result<BTreeMap<String, String>, InvalidSetting> {
    let of_all = pairs::headers(environment, "OTEL_EXPORTER_OTLP_HEADERS")?;
    let of_traces = pairs::headers(environment, "OTEL_EXPORTER_OTLP_TRACES_HEADERS")?;
    Ok(of_traces.or(of_all).unwrap_or_default())
}

fn resource(environment: &Environment<'_>) -> Result<BTreeMap<String, String>, InvalidSetting> {
    let mut attributes = BTreeMap::from([
        ("service.name".to_owned(), "sandglass".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    attributes.extend(pairs::attributes(environment, "OTEL_RESOURCE_ATTRIBUTES")?);
    if let Some(name) = environment.get("OTEL_SERVICE_NAME") {
        attributes.insert("service.name".to_owned(), name);
    }
    Ok(attributes)
}

fn sampler(environment: &Environment<'_>) -> Result<Sampling, InvalidSetting> {
    const NAME: &str = "OTEL_TRACES_SAMPLER";
    let name = environment.choice(NAME).unwrap_or_else(|| "parentbased_always_on".to_owned());
    let (root_name, parent_based) = match name.strip_prefix("parentbased_") {
        Some(root) => (root, true),
        None => (name.as_str(), false),
    };
    let ratio = ratio(environment, &name, root_name == "traceidratio")?;
    let root = match root_name {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio),
        _ => {
            let advice = "use always_on, always_off or traceidratio, each also with parentbased_ \
                          before it";
            return Err(invalid(NAME, &name, advice));
        }
    };
    Ok(if parent_based { Sampling::ParentBased(WholeTraces { root }) } else { Sampling::Own(root) })
}

/// The share that is asked for, of a sampler that takes one or doesn't.
fn ratio(
    environment: &Environment<'_>,
    sampler: &str,
    is_taken: bool,
) -> Result<f64, InvalidSetting> {
    const RATIO: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(text) = environment.get(RATIO) else { return Ok(1.0) };
    if !is_taken {
        environment.ignore(RATIO, &text, &format!("the sampler {sampler} takes none"));
        return Ok(1.0);
    }
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(invalid(RATIO, &text, "use a number from 0 to 1")),
    }
}

fn batch(environment: &Environment<'_>) -> Result<Batch, InvalidSetting> {
    const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
    const SIZE: &str = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";
    let queue = environment.number(QUEUE, 1..=QUEUE_MAX)?.unwrap_or(2048);
    let size = environment.number(SIZE, 1..=QUEUE_MAX)?.unwrap_or(queue.min(512));
    let delay = environment.millis("OTEL_BSP_SCHEDULE_DELAY")?.unwrap_or(Duration::from_secs(5));
    if size > queue {
        let advice = format!("use at most {queue}, as {QUEUE}");
        return Err(invalid(SIZE, &size.to_string(), &advice));
    }
    Ok(Batch { queue, size, delay })
}

fn limits(environment: &Environment<'_>) -> Result<Limits, InvalidSetting> {
    let of_all = environment.number("OTEL_ATTRIBUTE_COUNT_LIMIT", 0..=LIMIT_MAX)?.unwrap_or(128);
    let count =
        |variable, default| Ok(environment.number(variable, 0..=LIMIT_MAX)?.unwrap_or(default));
    let chars = |variable| environment.number(variable, 0..=LIMIT_MAX as usize);
    let value_chars_of_all = chars("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT")?;
    Ok(Limits {
        attributes: count("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", of_all)?,
        attributes_of_an_event: count("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", of_all)?,
        attributes_of_a_link: count("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", of_all)?,
        events: count("OTEL_SPAN_EVENT_COUNT_LIMIT", 128)?,
        links: count("OTEL_SPAN_LINK_COUNT_LIMIT", 128)?,
        value_chars: chars("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")?.or(value_chars_of_all),
    })
}

#[cfg(test)]
mod tests;
