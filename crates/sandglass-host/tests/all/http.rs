//! HTTP from guests, against a real server: allowed hosts, times, sizes, and what the server gets.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    Context, DEADLINE_HEADER, Destination, Dispatch, DispatchDeadline, Host, Manifest, Outcome,
    RunReport, Settings,
};
use sandglass_model::RequestOutcome::{Answered, GivenUp, Refused, Unfinished};
use sandglass_model::{CallOutcome, GuestLimits, Limit, RequestOutcome};
use serde_json::Value;

use crate::server::{Script, Server};

/// Gets `integration_config.url`, and returns the status and body, or the error.
const SLOW_HTTP: &[u8] = include_bytes!("../../../../guest-fixtures/built/slow_http.wasm");

async fn call(
    settings: Settings,
    url: String,
    allow: &[&str],
    limits: GuestLimits,
    budget_ms: u64,
) -> RunReport {
    let host =
        Host::builder().settings(Settings { max_runs: 4, ..settings }).build().expect("a host");
    let allow = allow.iter().map(|text| text.parse::<Destination>().expect("a host"));
    let manifest = Manifest::named("slow_http").limits(limits).allow_hosts(allow);
    let integration = host.load(SLOW_HTTP, manifest).expect("a guest");
    let context = Context { config: [("url".to_owned(), url)].into(), ..Context::default() };
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(Duration::from_millis(budget_ms)));
    host.run(&integration, dispatch).await.expect("it ran")
}

/// The target, status and outcome of each request in the story.
fn requests(report: &RunReport) -> Vec<(&str, Option<u16>, RequestOutcome)> {
    let requests = report.story.requests.iter();
    requests.map(|one| (one.host.as_str(), one.status, one.outcome)).collect()
}

fn message(report: &RunReport) -> String {
    report.outcome.error().expect("a failure").1
}

fn answers(status: u16, body: &str) -> Script {
    Script { status, body: body.to_owned(), ..Script::default() }
}

fn redirects_to(location: &str) -> Script {
    Script { status: 302, headers: format!("location: {location}\r\n"), ..Script::default() }
}

#[tokio::test]
async fn the_server_gets_the_trace_and_the_remaining_time() {
    let server = Server::start(answers(200, "fine")).await;
    let report =
        call(Settings::default(), server.url(), &["127.0.0.1"], GuestLimits::default(), 5000).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let requests = server.requests();
    let [request] = &requests[..] else { panic!("one request, not {requests:?}") };
    let header = |name: &str| {
        request.lines().find_map(|line| line.strip_prefix(&format!("{name}: "))).map(str::to_owned)
    };
    let remaining: u64 = header(DEADLINE_HEADER).expect("said").parse().expect("milliseconds");
    assert!((1..=5000).contains(&remaining), "{remaining}");
    assert_eq!(header("traceparent"), Some(report.trace.to_string()));
}

#[tokio::test]
async fn a_redirect_is_followed_only_to_allowed_hosts() {
    let target = Server::start(answers(200, "there")).await;
    let allowed = Server::start(redirects_to(&target.url())).await;
    let both = [allowed.address.to_string(), target.address.to_string()];
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    let report =
        call(Settings::default(), allowed.url(), &both, GuestLimits::default(), 5000).await;
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(completion.params["body"], Value::from("there"));
    let hops = [(both[0], Some(302), Answered), (both[1], Some(200), Answered)];
    assert_eq!(requests(&report), hops);

    let one = [both[0]];
    let report = call(Settings::default(), allowed.url(), &one, GuestLimits::default(), 5000).await;
    assert!(message(&report).contains("not allowed"), "{report:?}");
    assert_eq!(target.requests().len(), 1, "the second redirect never reached it");
    let hops = [(both[0], Some(302), Answered), (both[1], None, Refused)];
    assert_eq!(requests(&report), hops);
}

#[tokio::test]
async fn the_story_names_the_request_that_hangs_after_a_redirect() {
    let silent = Server::start(Script { never: true, ..Script::default() }).await;
    let moved = Server::start(redirects_to(&format!("{}there?token=secret", silent.url()))).await;
    let report =
        call(Settings::default(), moved.url(), &["127.0.0.1"], GuestLimits::default(), 500).await;
    assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
    let (moved, silent) = (moved.address.to_string(), silent.address.to_string());
    assert_eq!(requests(&report), [(&*moved, Some(302), Answered), (&*silent, None, Unfinished)]);
    assert_eq!(report.story.requests[1].path, "/there");
}

#[tokio::test]
async fn the_status_of_a_response_whose_body_hangs_is_reported() {
    let drip = Some(Duration::from_secs(3600));
    let server = Server::start(Script { drip, ..answers(201, "late") }).await;
    let address = server.address.to_string();
    let call = |settings, budget_ms| {
        call(settings, server.url(), &["127.0.0.1"], GuestLimits::default(), budget_ms)
    };
    let report = call(Settings::default(), 500).await;
    assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
    assert_eq!(requests(&report), [(&*address, Some(201), Unfinished)]);
    let host_call_timeout = Duration::from_millis(500);
    let report = call(Settings { host_call_timeout, ..Settings::default() }, 30_000).await;
    assert_eq!(requests(&report), [(&*address, Some(201), GivenUp)]);
}

#[tokio::test]
async fn a_redirect_in_a_circle_ends() {
    let circle = Server::start(redirects_to("/again")).await;
    let report =
        call(Settings::default(), circle.url(), &["127.0.0.1"], GuestLimits::default(), 5000).await;
    assert!(message(&report).contains("redirects"), "{report:?}");
    assert_eq!(circle.requests().len(), 6);
    let address = circle.address.to_string();
    assert_eq!(requests(&report), [(&*address, Some(302), Answered); 6], "each that was sent");
}

#[tokio::test]
async fn a_response_is_cut_off_while_it_is_read() {
    let server = Server::start(answers(200, &"x".repeat(100_000))).await;
    let limits = GuestLimits { response_bytes: 1000, ..GuestLimits::default() };
    let report = call(Settings::default(), server.url(), &["127.0.0.1"], limits, 5000).await;
    assert!(message(&report).contains("1000 bytes"), "{report:?}");
}

#[tokio::test]
async fn a_call_that_takes_too_long_ends_alone_and_the_guest_goes_on() {
    let server = Server::start(Script { never: true, ..Script::default() }).await;
    let settings =
        Settings { host_call_timeout: Duration::from_millis(100), ..Settings::default() };
    let report = call(settings, server.url(), &["127.0.0.1"], GuestLimits::default(), 30_000).await;
    assert!(message(&report).contains("The limit was 100 ms"), "{report:?}");
    assert!(matches!(report.outcome, Outcome::Failed(_)), "the guest answered, by itself");
    let of = |name: &str| report.story.calls.iter().find(|call| call.name == name);
    let call = of("host_http_call").expect("it called");
    assert_eq!(call.outcome, CallOutcome::TimedOut, "{report:?}");
    let [request] = report.story.requests.as_slice() else { panic!("{report:?}") };
    assert_eq!(request.outcome, GivenUp, "it is unknown whether it arrived");
    let [overrun] = report.overruns.as_slice() else { panic!("{report:?}") };
    assert_eq!(overrun.host_call.as_deref(), Some("host_http_call"));
    assert_eq!((overrun.limit, overrun.threshold_ms), (Limit::HostCallTimeout, 100));
    assert!(overrun.observed_ms > 100 && overrun.times == 1, "{overrun:?}");
}

#[tokio::test]
async fn a_component_may_wait_as_long_as_its_manifest_allows() {
    const COMPONENT: &[u8] = include_bytes!("../../../../guest-fixtures/built/component.wasm");
    let after = Duration::from_millis(300);
    let server = Server::start(Script { after, ..answers(200, "late") }).await;
    let host_call_timeout = Duration::from_millis(50);
    let settings = Settings { max_runs: 1, host_call_timeout, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let got = async |timeouts: &[(&str, Duration)]| {
        let timeouts = timeouts.iter().map(|(name, most)| ((*name).to_owned(), *most));
        let manifest = Manifest::named("gets")
            .allow_hosts(["127.0.0.1".parse().expect("a host")])
            .host_call_timeouts(timeouts);
        let guest = host.load(COMPONENT, manifest).expect("a guest");
        let config = [("does", "get".to_owned()), ("url", server.url())];
        let config = config.map(|(key, value)| (key.to_owned(), value)).into();
        let context = Context { config, ..Context::default() };
        let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
            .deadline(DispatchDeadline::after(Duration::from_secs(60)));
        host.run(&guest, dispatch).await.expect("it ran")
    };
    let report = got(&[("sandglass:integration/http.send", Duration::from_secs(30))]).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert!(message(&got(&[]).await).contains("TimedOut(50)"));
}

#[tokio::test]
async fn a_killed_call_leaves_no_connection_open() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let closed = tokio::spawn(async move {
        use tokio::io::AsyncReadExt;
        let (mut stream, _) = listener.accept().await.expect("the guest calls");
        let mut request = Vec::new();
        // Ends when the other side closes, and not before.
        stream.read_to_end(&mut request).await.map(|_| ())
    });
    let report = call(Settings::default(), url, &["127.0.0.1"], GuestLimits::default(), 2000).await;
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "host_http_call");
    let in_flight: Vec<_> =
        report.host_calls.by_function.iter().filter(|calls| calls.in_flight).collect();
    assert_eq!(in_flight.len(), 1);
    // Closed, whether orderly or by reset.
    drop(closed.await.expect("no panic"));
}

#[tokio::test]
async fn a_killed_request_is_named_after_its_destination_and_the_call_stays_known() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let host = Host::builder().build().expect("a host");
    let named = |name: Option<&str>| {
        let destination = address.to_string().parse::<Destination>().expect("a host");
        let destination = match name {
            Some(name) => destination.path("/search").named(name),
            None => destination,
        };
        Manifest::named("slow_http").allow_hosts([destination])
    };
    for (name, expected) in [(Some("web_search"), "web_search"), (None, "host_http_call")] {
        let integration = host.load(SLOW_HTTP, named(name)).expect("a guest");
        let config = [("url".to_owned(), format!("http://{address}/search?q=x"))].into();
        let context = Context { config, ..Context::default() };
        let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
            .deadline(DispatchDeadline::after(Duration::from_millis(300)));
        let report = host.run(&integration, dispatch).await.expect("it ran");
        let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(exceeded.dying_span, expected);
        assert_eq!(report.dying_span.as_deref(), Some(expected));
        for call in [&exceeded.dying_call, &report.dying_call] {
            assert_eq!(call.as_deref(), Some("host_http_call"));
        }
        let shown = serde_json::to_value(&report).expect("JSON");
        assert_eq!(shown["dying_call"], "host_http_call");
    }
    drop(listener);
}

#[tokio::test]
async fn an_unreachable_host_is_an_error_that_the_guest_reads() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let url = format!("http://{}/secret?token=hunter22", listener.local_addr().expect("bound"));
    drop(listener);
    let report = call(Settings::default(), url, &["127.0.0.1"], GuestLimits::default(), 5000).await;
    let message = message(&report);
    assert!(message.contains("request failed"), "{message}");
    assert!(!message.contains("hunter22"), "queries hold secrets: {message}");
    let [request] = report.story.requests.as_slice() else { panic!("{report:?}") };
    assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/secret"));
    assert_eq!((request.outcome, request.status), (RequestOutcome::Failed, None));
    let failed = report.story.calls.iter().find(|call| call.name == "host_http_call");
    assert_eq!(failed.map(|call| call.outcome), Some(CallOutcome::Failed));
}

#[tokio::test]
async fn names_are_resolved_without_a_thread_and_unknown_ones_are_errors() {
    let server = Server::start(answers(200, "by name")).await;
    let url = format!("http://localhost:{}/", server.address.port());
    let report =
        call(Settings::default(), url, &["localhost"], GuestLimits::default(), 10_000).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
}

#[tokio::test]
async fn an_embedder_can_replace_the_http_client() {
    use sandglass_host::{Answer, HttpCall, HttpClient, HttpError, Response};

    #[derive(Debug)]
    struct Canned;
    impl HttpClient for Canned {
        fn send<'a>(&'a self, _: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
            Box::pin(async {
                Ok(Response { status: 201, body: b"canned".to_vec(), ..Response::default() })
            })
        }
    }

    let host = Host::builder()
        .settings(Settings { max_runs: 4, ..Settings::default() })
        .http_client(Arc::new(Canned))
        .build()
        .expect("a host");
    let integration = host.load(SLOW_HTTP, Manifest::default()).expect("a guest");
    let config = [("url".to_owned(), "http://nowhere.example/".to_owned())].into();
    let context = Context { config, ..Context::default() };
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context);
    let report = host.run(&integration, dispatch).await.expect("it ran");
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(completion.params["status"], Value::from(201));
}
