//! What the standard `OTEL_*` variables ask for, read strictly: what can't be
//! used is an error at the start and not a silent default.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use opentelemetry_sdk::trace::Sampler;
use percent_encoding::percent_decode_str;

use super::sampler::WholeTraces;

/// Most spans that may be asked to wait for the collector: the queue's memory is
/// taken at the start, some hundred bytes for each.
const QUEUE_MAX: usize = 100_000;

/// Variables whose meaning isn't implemented; to ignore them could send spans
/// over a connection that the user believes to be another.
const UNSUPPORTED: [&str; 6] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
];

/// That an environment variable holds what can't be used. It never shows the
/// value of a header, which may be a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {why}")]
pub struct InvalidSetting {
    /// The variable.
    pub variable: &'static str,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

/// How an exporter is to be set up.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) endpoint: String,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) attributes: u32,
    pub(super) events: u32,
    pub(super) links: u32,
}

/// An environment. An empty variable counts as one that isn't set, as
/// OpenTelemetry says.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    fn get(&self, variable: &'static str) -> Option<String> {
        (self.0)(variable).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The first of `variables` that is set.
    fn first<const N: usize>(
        &self,
        variables: [&'static str; N],
    ) -> Option<(&'static str, String)> {
        variables.into_iter().find_map(|variable| Some((variable, self.get(variable)?)))
    }

    fn number<T: FromStr + PartialOrd + From<u8>>(
        &self,
        variable: &'static str,
        default: T,
    ) -> Result<T, InvalidSetting> {
        let Some(text) = self.get(variable) else { return Ok(default) };
        match text.parse() {
            Ok(number) if number >= T::from(1) => Ok(number),
            _ => Err(invalid(variable, &text, "use a whole number from 1 on")),
        }
    }

    fn millis(&self, variable: &'static str, default: u64) -> Result<Duration, InvalidSetting> {
        self.number(variable, default).map(Duration::from_millis)
    }
}

fn invalid(variable: &'static str, text: &str, advice: &str) -> InvalidSetting {
    let shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    InvalidSetting { variable, why: format!("`{shown}` can't be used: {advice}") }
}

impl Settings {
    /// What `variable` asks for; none where it names no endpoint or turns
    /// tracing off.
    pub(super) fn read(
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, InvalidSetting> {
        let environment = Environment(variable);
        if is_off(&environment)? {
            return Ok(None);
        }
        let Some(endpoint) = endpoint(&environment)? else { return Ok(None) };
        refuse_unsupported(&environment)?;
        Ok(Some(Self {
            endpoint,
            timeout: timeout(&environment)?,
            headers: headers(&environment)?,
            resource: resource(&environment)?,
            sampler: sampler(&environment)?,
            batch: batch(&environment)?,
            limits: limits(&environment)?,
        }))
    }
}

fn is_off(environment: &Environment<'_>) -> Result<bool, InvalidSetting> {
    // Anything but `true` means false, as OpenTelemetry says of its booleans.
    if environment.get("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return Ok(true);
    }
    match environment.get("OTEL_TRACES_EXPORTER").as_deref() {
        None | Some("otlp") => Ok(false),
        Some("none") => Ok(true),
        Some(other) => Err(invalid("OTEL_TRACES_EXPORTER", other, "use otlp or none")),
    }
}

fn endpoint(environment: &Environment<'_>) -> Result<Option<String>, InvalidSetting> {
    const FOR_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let found = environment.first([FOR_TRACES, "OTEL_EXPORTER_OTLP_ENDPOINT"]);
    let Some((variable, text)) = found else { return Ok(None) };
    let usable = text.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
            && uri.query().is_none()
    });
    if !usable {
        // The text may hold a password, so it isn't shown.
        let why = "use an address like http://localhost:4318, without user, password or query";
        return Err(InvalidSetting { variable, why: why.to_owned() });
    }
    Ok(Some(if variable == FOR_TRACES {
        text
    } else {
        format!("{}/v1/traces", text.trim_end_matches('/'))
    }))
}

fn refuse_unsupported(environment: &Environment<'_>) -> Result<(), InvalidSetting> {
    if let Some((variable, _)) = environment.first(UNSUPPORTED) {
        let why = "own certificates are not supported: add the authority to the system's store";
        return Err(InvalidSetting { variable, why: why.to_owned() });
    }
    for (variables, only) in [
        (["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"], "http/protobuf"),
        (["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"], "none"),
    ] {
        if let Some((variable, text)) = environment.first(variables)
            && text != only
        {
            return Err(invalid(variable, &text, &format!("only {only} is supported")));
        }
    }
    Ok(())
}

fn timeout(environment: &Environment<'_>) -> Result<Duration, InvalidSetting> {
    const FOR_TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT";
    let general = environment.millis("OTEL_EXPORTER_OTLP_TIMEOUT", 10_000)?;
    match environment.get(FOR_TRACES) {
        Some(_) => environment.millis(FOR_TRACES, 10_000),
        None => Ok(general),
    }
}

fn headers(environment: &Environment<'_>) -> Result<BTreeMap<String, String>, InvalidSetting> {
    let found =
        environment.first(["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"]);
    let Some((variable, text)) = found else { return Ok(BTreeMap::new()) };
    let headers = pairs(variable, &text)?;
    for (at, (name, value)) in headers.iter().enumerate() {
        let value = percent_decode_str(value).decode_utf8().ok();
        let usable = HeaderName::from_str(name).is_ok()
            && value.is_some_and(|value| HeaderValue::from_str(&value).is_ok());
        if !usable {
            let why = format!("header {} can't be sent: check its name and value", at + 1);
            return Err(InvalidSetting { variable, why });
        }
    }
    Ok(headers.into_iter().collect())
}

fn resource(environment: &Environment<'_>) -> Result<BTreeMap<String, String>, InvalidSetting> {
    const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
    let mut attributes = BTreeMap::from([
        ("service.name".to_owned(), "sandglass".to_owned()),
        ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
    ]);
    let text = environment.get(ATTRIBUTES).unwrap_or_default();
    for (name, value) in pairs(ATTRIBUTES, &text)? {
        let Ok(value) = percent_decode_str(&value).decode_utf8() else {
            return Err(invalid(ATTRIBUTES, &value, "use percent-encoded UTF-8"));
        };
        attributes.insert(name, value.into_owned());
    }
    if let Some(name) = environment.get("OTEL_SERVICE_NAME") {
        attributes.insert("service.name".to_owned(), name);
    }
    Ok(attributes)
}

/// Reads `name=value,name=value`.
fn pairs(variable: &'static str, text: &str) -> Result<Vec<(String, String)>, InvalidSetting> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .enumerate()
        .map(|(at, entry)| match entry.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_owned(), value.trim().to_owned()))
            }
            // The entry may hold a secret, so it isn't shown.
            _ => {
                Err(InvalidSetting { variable, why: format!("entry {} is not name=value", at + 1) })
            }
        })
        .collect()
}

fn sampler(environment: &Environment<'_>) -> Result<Sampling, InvalidSetting> {
    const NAME: &str = "OTEL_TRACES_SAMPLER";
    let name = environment.get(NAME).unwrap_or_else(|| "parentbased_always_on".to_owned());
    let (root_name, parent_based) = match name.strip_prefix("parentbased_") {
        Some(root) => (root, true),
        None => (name.as_str(), false),
    };
    let root = match root_name {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => Sampler::TraceIdRatioBased(ratio(environment)?),
        _ => {
            let advice = "use always_on, always_off or traceidratio, each also with parentbased_ \
                          before it";
            return Err(invalid(NAME, &name, advice));
        }
    };
    Ok(if parent_based { Sampling::ParentBased(WholeTraces { root }) } else { Sampling::Own(root) })
}

fn ratio(environment: &Environment<'_>) -> Result<f64, InvalidSetting> {
    const RATIO: &str = "OTEL_TRACES_SAMPLER_ARG";
    let Some(text) = environment.get(RATIO) else { return Ok(1.0) };
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(invalid(RATIO, &text, "use a number from 0 to 1")),
    }
}

fn batch(environment: &Environment<'_>) -> Result<Batch, InvalidSetting> {
    const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
    const SIZE: &str = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";
    let queue: u64 = environment.number(QUEUE, 2048)?;
    let size: u64 = environment.number(SIZE, queue.min(512))?;
    let delay = environment.millis("OTEL_BSP_SCHEDULE_DELAY", 5000)?;
    let queue = match usize::try_from(queue) {
        Ok(bounded) if bounded <= QUEUE_MAX => bounded,
        _ => return Err(invalid(QUEUE, &queue.to_string(), &format!("use at most {QUEUE_MAX}"))),
    };
    match usize::try_from(size) {
        Ok(size) if size <= queue => Ok(Batch { queue, size, delay }),
        _ => Err(invalid(SIZE, &size.to_string(), &format!("use at most {queue}, as {QUEUE}"))),
    }
}

fn limits(environment: &Environment<'_>) -> Result<Limits, InvalidSetting> {
    Ok(Limits {
        attributes: environment.number("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", 128)?,
        events: environment.number("OTEL_SPAN_EVENT_COUNT_LIMIT", 128)?,
        links: environment.number("OTEL_SPAN_LINK_COUNT_LIMIT", 128)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, InvalidSetting> {
        Settings::read(&|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318/base/");

    #[test]
    fn no_endpoint_means_no_export() {
        assert!(read(&[]).expect("valid").is_none());
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).expect("valid").is_none());
        assert!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")]).expect("valid").is_none());
        assert!(read(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]).expect("valid").is_none());
    }

    #[test]
    fn the_endpoint_for_traces_is_taken_as_it_is_and_the_general_one_extended() {
        let settings = read(&[ENDPOINT]).expect("valid").expect("an endpoint");
        assert_eq!(settings.endpoint, "http://localhost:4318/base/v1/traces");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector/in");
        let settings = read(&[ENDPOINT, traces]).expect("valid").expect("an endpoint");
        assert_eq!(settings.endpoint, "https://collector/in");
    }

    #[test]
    fn what_is_asked_for_is_what_is_set() {
        let settings = read(&[
            ENDPOINT,
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-team = core"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs,deployment=a%2Cb"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ])
        .expect("valid")
        .expect("an endpoint");
        assert_eq!(settings.timeout, Duration::from_millis(250));
        assert_eq!(settings.headers["x-team"], "core");
        assert_eq!(settings.headers["api-key"], "a%20b");
        assert_eq!(settings.resource["service.name"], "mine");
        assert_eq!(settings.resource["deployment"], "a,b");
        let sampler = format!("{:?}", settings.sampler);
        assert_eq!(sampler, "ParentBased(WholeTraces { root: TraceIdRatioBased(0.25) })");
        let delay = Duration::from_secs(5);
        assert_eq!(settings.batch, Batch { queue: 10, size: 10, delay });
    }

    #[test]
    fn a_value_that_cant_be_used_is_an_error_that_names_its_variable() {
        for bad in [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://localhost"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://me:hush@localhost"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "hush"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=hush"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=hush%0a"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "1000000000"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
            ("OTEL_BSP_SCHEDULE_DELAY", "-1"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many"),
        ] {
            let error = read(&[ENDPOINT, bad]).expect_err(bad.1);
            assert_eq!(error.variable, bad.0, "{}", bad.1);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
        let ratio = [ENDPOINT, ("OTEL_TRACES_SAMPLER", "traceidratio")];
        let error = read(&[ratio[0], ratio[1], ("OTEL_TRACES_SAMPLER_ARG", "2")]);
        assert_eq!(error.expect_err("above 1").variable, "OTEL_TRACES_SAMPLER_ARG");
    }
}
