//! Standard variables that ask for what isn't offered here: an error where to go on would
//! send spans in another way than was asked for, and a note where nothing is lost but what
//! this process doesn't have.

use super::environment::{Environment, InvalidSetting, invalid};

/// Variables that nothing is made of, whatever they hold: to ignore them could send spans
/// over a connection, or by a configuration, that the user believes to be another.
const REFUSED: [(&str, &str); 8] = [
    ("OTEL_CONFIG_FILE", FILE),
    ("OTEL_EXPERIMENTAL_CONFIG_FILE", FILE),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", CERTIFICATE),
    ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", CERTIFICATE),
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", CERTIFICATE),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", CERTIFICATE),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", CERTIFICATE),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", CERTIFICATE),
];

const FILE: &str = "configuration files are not supported: unset it, and use the variables";
const CERTIFICATE: &str =
    "own certificates are not supported: add the authority to the system's store";

/// Variables that have one value of which anything is made.
const ONE_VALUE: [(&str, &str); 4] = [
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none"),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
];

/// Variables about what this process doesn't send.
const WITHOUT_EFFECT: [(&str, &str); 21] = [
    ("OTEL_LOG_LEVEL", "levels are chosen by SANDGLASS_LOG"),
    ("OTEL_EXPORTER_PROMETHEUS_HOST", SCRAPED),
    ("OTEL_EXPORTER_PROMETHEUS_PORT", SCRAPED),
    ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", NOT_SENT),
    ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", NOT_SENT),
    ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", NOT_SENT),
    ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", NOT_SENT),
    ("OTEL_METRIC_EXPORT_INTERVAL", NOT_SENT),
    ("OTEL_METRIC_EXPORT_TIMEOUT", NOT_SENT),
    ("OTEL_METRICS_EXEMPLAR_FILTER", NOT_SENT),
    ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", WRITTEN),
    ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", WRITTEN),
    ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", WRITTEN),
    ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", WRITTEN),
    ("OTEL_BLRP_SCHEDULE_DELAY", WRITTEN),
    ("OTEL_BLRP_EXPORT_TIMEOUT", WRITTEN),
    ("OTEL_BLRP_MAX_QUEUE_SIZE", WRITTEN),
    ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", WRITTEN),
    ("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", WRITTEN),
    ("OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", WRITTEN),
    ("OTEL_EXPORTER_ZIPKIN_ENDPOINT", "spans are sent by OTLP alone"),
];

const SCRAPED: &str = "metrics are served where --metrics, or a daemon's configuration, says";
const NOT_SENT: &str = "metrics are not sent, but served to Prometheus";
const WRITTEN: &str = "logs are not sent, but written to standard error";

/// Refuses, or notes, what asks for something else than is done.
pub(super) fn check(environment: &Environment<'_>) -> Result<(), InvalidSetting> {
    for (variable, why) in REFUSED {
        if environment.get(variable).is_some() {
            return Err(InvalidSetting { variable, why: why.to_owned() });
        }
    }
    for (variable, only) in ONE_VALUE {
        if let Some(text) = environment.choice(variable)
            && text != only
        {
            return Err(invalid(variable, &text, &format!("only {only} is supported")));
        }
    }
    for (variable, why) in WITHOUT_EFFECT {
        match environment.get(variable) {
            Some(_) if variable.ends_with("_HEADERS") => environment.ignore_unshown(variable, why),
            Some(text) => environment.ignore(variable, &text, why),
            None => {}
        }
    }
    exporters(environment, "OTEL_METRICS_EXPORTER", &["prometheus", "none"], NOT_SENT);
    exporters(environment, "OTEL_LOGS_EXPORTER", &["none"], WRITTEN);
    Ok(())
}

/// Notes exporters that `variable` asks for beyond those that are `served`.
fn exporters(environment: &Environment<'_>, variable: &'static str, served: &[&str], why: &str) {
    for exporter in environment.choices(variable) {
        if !served.contains(&exporter.as_str()) {
            environment.ignore(variable, &exporter, why);
        }
    }
}

/// Checks that context is to travel as it does: in a `traceparent`. Formats that nobody
/// knows are noted, as OpenTelemetry says; known ones that aren't offered are refused, since
/// the traces of those who use them would end here.
pub(super) fn propagators(environment: &Environment<'_>) -> Result<(), InvalidSetting> {
    const PROPAGATORS: &str = "OTEL_PROPAGATORS";
    const ADVICE: &str = "only tracecontext is supported, and always on";
    for propagator in environment.choices(PROPAGATORS) {
        match propagator.as_str() {
            "tracecontext" => {}
            "baggage" => {
                environment.ignore(PROPAGATORS, "baggage", "no baggage is taken or passed on");
            }
            "b3" | "b3multi" | "jaeger" | "xray" | "ottrace" | "none" => {
                return Err(invalid(PROPAGATORS, &propagator, ADVICE));
            }
            other => environment.ignore(PROPAGATORS, other, "it is no known propagator"),
        }
    }
    Ok(())
}
