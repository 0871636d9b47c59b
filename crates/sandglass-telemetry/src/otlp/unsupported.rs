//! Standard variables for features that this exporter does not have. A variable is an error if ignoring it
//! would send spans in another way than requested; otherwise it is logged.

use super::environment::{Environment, InvalidSetting, invalid};

/// Variables that are refused with any value. If they were ignored, spans could be sent over a connection,
/// or with a configuration, that the user does not expect.
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

const FILE: &str = "configuration files are not supported; unset it, and use the variables";
const CERTIFICATE: &str =
    "custom certificates are not supported; add the authority to the system's store";

/// Variables with a single supported value.
const ONE_VALUE: [(&str, &str); 4] = [
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none"),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
];

/// Variables about data that this process does not send.
const WITHOUT_EFFECT: [(&str, &str); 21] = [
    ("OTEL_LOG_LEVEL", "set log levels with SANDGLASS_LOG"),
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
    ("OTEL_EXPORTER_ZIPKIN_ENDPOINT", "spans are only sent over OTLP"),
];

const SCRAPED: &str = "the address of metrics is set by --metrics or the configuration of a daemon";
const NOT_SENT: &str = "metrics are not sent; Prometheus can scrape them";
const WRITTEN: &str = "logs are not sent; they are written to standard error";

/// Refuses or logs variables for unsupported features.
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
            Some(_) if variable.ends_with("_HEADERS") => environment.ignore_secret(variable, why),
            Some(text) => environment.ignore(variable, &text, why),
            None => {}
        }
    }
    ignore_exporters(environment, "OTEL_METRICS_EXPORTER", &["prometheus", "none"], NOT_SENT);
    ignore_exporters(environment, "OTEL_LOGS_EXPORTER", &["none"], WRITTEN);
    Ok(())
}

/// Logs the exporters in `variable` that are not `supported`.
fn ignore_exporters(
    environment: &Environment<'_>,
    variable: &'static str,
    supported: &[&str],
    why: &str,
) {
    for exporter in environment.choices(variable) {
        if !supported.contains(&exporter.as_str()) {
            environment.ignore(variable, &exporter, why);
        }
    }
}

/// Checks that the context is propagated in a `traceparent`. Unknown formats are logged, as OpenTelemetry
/// requires; known but unsupported ones are refused, because traces in these formats would end here.
pub(super) fn check_propagators(environment: &Environment<'_>) -> Result<(), InvalidSetting> {
    const PROPAGATORS: &str = "OTEL_PROPAGATORS";
    const ADVICE: &str = "only tracecontext is supported, and always on";
    for propagator in environment.choices(PROPAGATORS) {
        match propagator.as_str() {
            "tracecontext" => {}
            "baggage" => {
                environment.ignore(PROPAGATORS, "baggage", "baggage is neither read nor forwarded");
            }
            "b3" | "b3multi" | "jaeger" | "xray" | "ottrace" | "none" => {
                return Err(invalid(PROPAGATORS, &propagator, ADVICE));
            }
            other => environment.ignore(PROPAGATORS, other, "it is not a known propagator"),
        }
    }
    Ok(())
}
