//! The settings in the standard `OTEL_*` variables. They are read strictly, even if nothing is to be
//! exported: an invalid value is an error at the start instead of a silent default. `opentelemetry-otlp`
//! would ignore it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use hyper::Uri;
use opentelemetry_sdk::trace::Sampler;

use super::environment::{Environment, IgnoredSetting, InvalidSetting, invalid};
use super::sampler::TraceSampler;
use super::{pairs, unsupported};

/// Largest queue, in spans: its memory is allocated at the start, some hundred bytes for each.
const QUEUE_MAX: usize = 100_000;

/// Highest limit of the parts of a span: what OpenTelemetry requires to be supported.
const LIMIT_MAX: u32 = i32::MAX.unsigned_abs();

/// The default endpoint of OpenTelemetry.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318/v1/traces";

/// The settings of an exporter.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) endpoint: String,
    /// How long one export may take, including repetitions.
    pub(super) timeout: Duration,
    /// Still encoded: the exporter decodes the values.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) resource: BTreeMap<String, String>,
    pub(super) sampler: TraceSampler,
    pub(super) batch: Batch,
    pub(super) limits: Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) queue: usize,
    pub(super) size: usize,
    pub(super) delay: Duration,
}

/// The limits of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) attributes: u32,
    pub(super) attributes_of_an_event: u32,
    pub(super) attributes_of_a_link: u32,
    pub(super) events: u32,
    pub(super) links: u32,
    /// Longest text of an attribute, in characters; `None` for no limit.
    pub(super) value_chars: Option<usize>,
}

impl Settings {
    /// Whether the headers, which may contain a key, are sent unencrypted to another machine.
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

/// What an environment requests.
#[derive(Clone, Debug)]
pub(super) struct Requested {
    /// `None` if nothing is to be exported.
    pub(super) settings: Option<Settings>,
    /// The variables without effect.
    pub(super) ignored: Vec<IgnoredSetting>,
}

/// Whether spans are to be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exporter {
    /// Export if an endpoint is set.
    Unset,
    Otlp,
    None,
}

impl Requested {
    /// Reads the environment.
    pub(super) fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, InvalidSetting> {
        let environment = Environment::new(variable);
        let settings = settings(&environment)?;
        Ok(Self { settings, ignored: environment.into_ignored() })
    }
}

/// Logs the variables without effect. Commands select these lines by the name of this module (the
/// default levels in `sandglass-cli`; test `a_variable_without_effect_causes_a_warning`).
pub(super) fn log_ignored(ignored: &[IgnoredSetting]) {
    for IgnoredSetting { variable, why } in ignored {
        tracing::warn!("{variable}: {why}");
    }
}

fn settings(environment: &Environment<'_>) -> Result<Option<Settings>, InvalidSetting> {
    // These apply even if everything else is turned off.
    unsupported::check_propagators(environment)?;
    if environment.flag("OTEL_SDK_DISABLED") {
        return Ok(None);
    }
    unsupported::check(environment)?;
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
        Exporter::Unset => endpoint.is_some(),
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
        [] => Ok(Exporter::Unset),
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
    // The text may contain a password, so it is not shown.
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
        return Err(wrong("its port is not a number from 1 to 65535"));
    }
    Ok(Some(text))
}

/// The shortest of the limits of an export, which is one request with its repetitions.
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

fn sampler(environment: &Environment<'_>) -> Result<TraceSampler, InvalidSetting> {
    const NAME: &str = "OTEL_TRACES_SAMPLER";
    let name = environment.choice(NAME).unwrap_or_else(|| "parentbased_always_on".to_owned());
    let (root_name, is_parent_based) = match name.strip_prefix("parentbased_") {
        Some(root) => (root, true),
        None => (name.as_str(), false),
    };
    let ratio = ratio(environment, &name, root_name == "traceidratio")?;
    let root = match root_name {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio),
        _ => {
            let advice = "use always_on, always_off or traceidratio, each optionally with the prefix \
                          parentbased_";
            return Err(invalid(NAME, &name, advice));
        }
    };
    Ok(TraceSampler { root, is_parent_based })
}

/// The ratio, if the sampler uses one.
fn ratio(
    environment: &Environment<'_>,
    sampler: &str,
    has_ratio: bool,
) -> Result<f64, InvalidSetting> {
    const RATIO: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(text) = environment.get(RATIO) else { return Ok(1.0) };
    if !has_ratio {
        environment.ignore(RATIO, &text, &format!("the sampler {sampler} does not use it"));
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
