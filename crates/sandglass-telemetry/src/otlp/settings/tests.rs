use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Requested, InvalidSetting> {
    Requested::read(&|name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

/// The settings of valid variables.
#[track_caller]
fn set(variables: &[(&str, &str)]) -> Settings {
    let asked = read(variables).expect("valid");
    assert_eq!(asked.ignored, [], "all variables have an effect");
    asked.settings.expect("spans are exported")
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318/base/");

#[test]
fn spans_are_exported_if_an_endpoint_or_the_exporter_is_named() {
    let none: [&[(&str, &str)]; 6] = [
        &[],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
        &[("OTEL_TRACES_EXPORTER", "")],
        &[("OTEL_TRACES_SAMPLER", "always_on")],
        &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
        &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
    ];
    for variables in none {
        assert!(read(variables).expect("valid").settings.is_none(), "{variables:?}");
    }
    let by_name = set(&[("OTEL_TRACES_EXPORTER", "otlp")]);
    assert_eq!(by_name.endpoint, "http://localhost:4318/v1/traces");
    let twice = set(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "OTLP, otlp")]);
    assert_eq!(twice.endpoint, "http://localhost:4318/base/v1/traces");
    set(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")]);
}

#[test]
fn the_endpoint_for_traces_is_used_as_it_is_and_the_general_one_extended() {
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector/in");
    assert_eq!(set(&[ENDPOINT, traces]).endpoint, "https://collector/in");
    for address in ["http://[::1]:4318", "http://127.0.0.1:65535", "https://collector"] {
        let settings = set(&[("OTEL_EXPORTER_OTLP_ENDPOINT", address)]);
        assert_eq!(settings.endpoint, format!("{address}/v1/traces"));
    }
}

#[test]
fn headers_to_another_machine_without_tls_are_in_clear_text() {
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a");
    let clear = |address, more: &[(&str, &str)]| {
        let endpoint = [("OTEL_EXPORTER_OTLP_ENDPOINT", address)];
        set(&[&endpoint, more].concat()).sends_headers_in_clear_text()
    };
    for address in ["http://collector:4318", "http://192.0.2.1", "http://[2001:db8::1]:1"] {
        assert!(clear(address, &[headers]) && !clear(address, &[]), "{address}");
    }
    for address in ["https://collector", "http://localhost", "http://127.0.0.1:1", "http://[::1]"] {
        assert!(!clear(address, &[headers]), "{address}");
    }
}

#[test]
fn each_variable_sets_its_setting() {
    let settings = set(&[
        ENDPOINT,
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "HTTP/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, X-Team = core"),
        ("OTEL_SERVICE_NAME", "mine"),
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs,deployment=a%2Cb"),
        ("OTEL_PROPAGATORS", "tracecontext"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_LOGS_EXPORTER", "none"),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "10"),
        ("OTEL_SPAN_EVENT_COUNT_LIMIT", "3"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", "0"),
    ]);
    assert_eq!(settings.timeout, Duration::from_millis(250));
    assert_eq!(settings.headers["x-team"], "core");
    assert_eq!(settings.headers["api-key"], "a%20b");
    assert_eq!(settings.resource["service.name"], "mine");
    assert_eq!(settings.resource["deployment"], "a,b");
    let sampler = format!("{:?}", settings.sampler);
    assert_eq!(sampler, "TraceSampler { root: TraceIdRatioBased(0.25), is_parent_based: true }");
    let delay = Duration::from_secs(5);
    assert_eq!(settings.batch, Batch { queue: 10, size: 10, delay });
    assert_eq!((settings.limits.events, settings.limits.links), (3, 0));
    assert_eq!((settings.limits.attributes, settings.limits.value_chars), (128, None));
}

#[test]
fn the_shortest_of_three_timeouts_bounds_an_export() {
    let timeout = |variables: &[(&str, &str)]| set(&[&[ENDPOINT], variables].concat()).timeout;
    assert_eq!(timeout(&[]), Duration::from_secs(10));
    assert_eq!(timeout(&[("OTEL_BSP_EXPORT_TIMEOUT", "70")]), Duration::from_millis(70));
    assert_eq!(timeout(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")]), Duration::from_secs(30));
    let both = [("OTEL_EXPORTER_OTLP_TIMEOUT", "50"), ("OTEL_BSP_EXPORT_TIMEOUT", "70")];
    assert_eq!(timeout(&both), Duration::from_millis(50));
}

#[test]
fn a_limit_of_spans_comes_before_that_of_all_attributes() {
    let limits = |variables: &[(&str, &str)]| set(&[&[ENDPOINT], variables].concat()).limits;
    let of_all = [("OTEL_ATTRIBUTE_COUNT_LIMIT", "7"), ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "70")];
    let found = limits(&of_all);
    assert_eq!((found.attributes, found.value_chars), (7, Some(70)));
    assert_eq!((found.attributes_of_an_event, found.attributes_of_a_link), (7, 7));
    let of_spans = [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "5"),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "50"),
        ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "4"),
        ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "0"),
    ];
    let found = limits(&[of_all.as_slice(), &of_spans].concat());
    assert_eq!((found.attributes, found.value_chars), (5, Some(50)));
    assert_eq!((found.attributes_of_an_event, found.attributes_of_a_link), (4, 0));
}

/// Values that are invalid or not supported.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        &[
            "localhost:4318",
            "ftp://localhost",
            "http://",
            "http://me:hush@localhost",
            "http://localhost/?hush",
            "http://localhost/#hush",
            "http://localhost:65536",
            "http://localhost:0",
            "http://localhost:",
            "http://[::1]:99999",
        ],
    ),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &["localhost:4318", "http://localhost:65536/v1/traces"]),
    ("OTEL_TRACES_EXPORTER", &["zipkin", "console", "otlp,console", "otlp,none", "smoke"]),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", &["grpc", "smoke"]),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", &["http/json"]),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", &["gzip"]),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", &["gzip"]),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", &["ca.pem"]),
    ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", &["ca.pem"]),
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &["me.pem"]),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", &["me.pem"]),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &["me.key"]),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", &["me.key"]),
    ("OTEL_CONFIG_FILE", &["otel.yaml"]),
    ("OTEL_EXPERIMENTAL_CONFIG_FILE", &["otel.yaml"]),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", &["10s", "0", "-1", "86400001", "1e3"]),
    ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", &["0", "soon"]),
    (
        "OTEL_EXPORTER_OTLP_HEADERS",
        &[
            "hush",
            "=hush",
            "a b=hush",
            "a=hush%0a",
            "a=hush%zz",
            "a=hush%2",
            "a=hush%",
            "a=hush%ff",
            "a=hush,A=hush",
            "content-type=hush",
            "Host=hush",
            "Content-Length=7",
            "transfer-encoding=hush",
        ],
    ),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", &["a=hush%zz", "host=hush"]),
    ("OTEL_RESOURCE_ATTRIBUTES", &["a", "=a", "a=%zz", "a=%ff", "%zz=a"]),
    ("OTEL_PROPAGATORS", &["b3", "b3multi", "jaeger", "xray", "none", "tracecontext,ottrace"]),
    ("OTEL_TRACES_SAMPLER", &["sometimes", "jaeger_remote", "parentbased_jaeger_remote", "xray"]),
    ("OTEL_BSP_MAX_QUEUE_SIZE", &["1000000000", "0", "many", "99999999999999999999"]),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &["4096", "0"]),
    ("OTEL_BSP_SCHEDULE_DELAY", &["-1", "0", "5s"]),
    ("OTEL_BSP_EXPORT_TIMEOUT", &["-1", "0", "30s"]),
    ("OTEL_ATTRIBUTE_COUNT_LIMIT", &["many", "-1", "2147483648"]),
    ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", &["long", "-1", "1.5"]),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", &["many", "-1"]),
    ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", &["long", "-1"]),
    ("OTEL_SPAN_EVENT_COUNT_LIMIT", &["many", "-1"]),
    ("OTEL_SPAN_LINK_COUNT_LIMIT", &["many", "-1"]),
    ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", &["many", "-1"]),
    ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", &["many", "-1"]),
];

#[test]
fn an_invalid_value_is_an_error_that_names_its_variable() {
    for (variable, values) in REFUSED {
        for value in *values {
            // The endpoint under test is found first.
            for others in [&[][..], &[ENDPOINT], &[("OTEL_TRACES_EXPORTER", "none")]] {
                let error = read(&[&[(*variable, *value)], others].concat()).expect_err(value);
                assert_eq!(error.variable, *variable, "{value}: {error}");
                assert!(!error.to_string().contains("hush"), "{error}");
            }
        }
    }
    for ratio in ["2", "-0.1", "nan", "half"] {
        let sampler = ("OTEL_TRACES_SAMPLER", "traceidratio");
        let error = read(&[sampler, ("OTEL_TRACES_SAMPLER_ARG", ratio)]).expect_err(ratio);
        assert_eq!(error.variable, "OTEL_TRACES_SAMPLER_ARG");
    }
}

/// Values without effect, which are reported.
const IGNORED: &[(&str, &str)] = &[
    ("OTEL_SDK_DISABLED", "1"),
    ("OTEL_PROPAGATORS", "tracecontext,baggage"),
    ("OTEL_PROPAGATORS", "carrier-pigeon"),
    ("OTEL_METRICS_EXPORTER", "otlp"),
    ("OTEL_METRICS_EXPORTER", "prometheus,console"),
    ("OTEL_LOGS_EXPORTER", "otlp"),
    ("OTEL_LOG_LEVEL", "debug"),
    ("OTEL_TRACES_SAMPLER_ARG", "0.1"),
    ("OTEL_EXPORTER_PROMETHEUS_HOST", "0.0.0.0"),
    ("OTEL_EXPORTER_PROMETHEUS_PORT", "9464"),
    ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://localhost:4318/v1/metrics"),
    ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "key=hush"),
    ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc"),
    ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "1"),
    ("OTEL_METRIC_EXPORT_INTERVAL", "1"),
    ("OTEL_METRIC_EXPORT_TIMEOUT", "1"),
    ("OTEL_METRICS_EXEMPLAR_FILTER", "always_on"),
    ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://localhost:4318/v1/logs"),
    ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", "key=hush"),
    ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "grpc"),
    ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "1"),
    ("OTEL_BLRP_SCHEDULE_DELAY", "1"),
    ("OTEL_BLRP_EXPORT_TIMEOUT", "1"),
    ("OTEL_BLRP_MAX_QUEUE_SIZE", "1"),
    ("OTEL_BLRP_MAX_EXPORT_BATCH_SIZE", "1"),
    ("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", "1"),
    ("OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1"),
    ("OTEL_EXPORTER_ZIPKIN_ENDPOINT", "http://localhost:9411"),
];

#[test]
fn a_value_without_effect_is_reported() {
    for (variable, value) in IGNORED {
        for others in [&[][..], &[ENDPOINT]] {
            let asked = read(&[&[(*variable, *value)], others].concat()).expect(variable);
            assert_eq!(asked.settings.is_some(), !others.is_empty(), "{variable}");
            let [ignored] = &asked.ignored[..] else { panic!("{variable}: {:?}", asked.ignored) };
            assert_eq!(ignored.variable, *variable);
            assert!(ignored.why.contains("no effect: "), "{}", ignored.why);
            assert!(!ignored.why.contains("hush"), "{}", ignored.why);
            let shown = value.rsplit(',').next().unwrap_or_default();
            assert!(
                variable.ends_with("_HEADERS") || ignored.why.contains(shown),
                "{}",
                ignored.why
            );
        }
    }
}

#[test]
fn if_everything_is_turned_off_only_propagators_are_checked() {
    let off = ("OTEL_SDK_DISABLED", "true");
    let asked = read(&[off, ("OTEL_BSP_SCHEDULE_DELAY", "soon")]).expect("not read");
    assert!(asked.settings.is_none());
    let error = read(&[off, ("OTEL_PROPAGATORS", "b3")]).expect_err("read");
    assert_eq!(error.variable, "OTEL_PROPAGATORS");
}

/// The table of the documentation lists exactly the variables that are read.
#[test]
fn the_documentation_lists_the_variables_that_are_read() {
    let read = std::cell::RefCell::new(std::collections::BTreeSet::new());
    let note = |name: &str| {
        read.borrow_mut().insert(name.to_owned());
        None
    };
    Requested::read(&note).expect("nothing is set");
    let page = include_str!("../../../../../docs/why.md");
    let rows = page.lines().filter(|line| line.starts_with("| `OTEL_"));
    let documented: std::collections::BTreeSet<String> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect();
    assert_eq!(read.into_inner(), documented);
}
