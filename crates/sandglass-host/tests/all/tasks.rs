//! Asynchronous components: several calls in flight at the same time, under kills, time limits, a lease
//! that has run out, and replay. What such guests do alone is in the tests of fixtures.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay, Replayed};
use sandglass_host::{
    Answer, Answered, Ask, AskError, Asks, Context, Dispatch, DispatchDeadline, Host, Lease,
    Manifest, RecordingLimits, RunNow, Settings, StopHandle,
};
use sandglass_model::{CallOutcome, Cause, Limit, Object, Outcome, Recording, RunReport, Sequence};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Barrier, oneshot};
use tokio::task::JoinHandle;

use crate::server::{Script, Server};

const TASKS: &[u8] = include_bytes!("../../../../guest-fixtures/built/tasks.wasm");

const SLEEP: &str = "sandglass:integration/timer.sleep";
const SEND: &str = "sandglass:integration/http.send";
const WASI_SEND: &str = "wasi:http/client.send";

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn host() -> Host {
    host_with(Lease::default(), 4)
}

fn host_with(lease: Lease, max_asking: u32) -> Host {
    let settings = Settings { max_runs: 1, max_asking, ..Settings::default() };
    Host::builder().settings(settings).lease(lease).build().expect("a host")
}

fn dispatch(budget: Duration, config: &[(&str, &str)]) -> Dispatch {
    let config = config.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let context = Context { config: config.collect(), ..Context::default() };
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(budget))
}

fn start(
    host: &Host,
    manifest: Manifest,
    dispatch: Dispatch,
) -> (JoinHandle<RunReport>, StopHandle) {
    let guest = host.load(TASKS, manifest).expect("a guest");
    let (host, stop) = (host.clone(), dispatch.stop_handle());
    (tokio::spawn(async move { host.run(&guest, dispatch).await.expect("it ran") }), stop)
}

#[allow(clippy::disallowed_methods, reason = "a test that hangs fails")]
async fn within<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, wait).await.expect("in time")
}

/// Polls until the only handler is as `expected`.
async fn until(host: &Host, expected: impl Fn(&RunNow) -> bool) -> RunNow {
    let reached = async {
        loop {
            let live = host.live_runs(10);
            if let Some(run) = live.runs.into_iter().find(|run| expected(run)) {
                return run;
            }
            tokio::task::yield_now().await;
        }
    };
    within(reached).await
}

/// The address of `server`, as a manifest grants it.
fn granted(server: &Server) -> Manifest {
    let address = server.address.to_string().parse().expect("a host");
    Manifest::named("tasks").allow_hosts([address])
}

fn whole(report: &RunReport) -> Arc<[u8]> {
    match &report.recording {
        Some(Recording::Whole(bytes)) => Arc::clone(bytes),
        other => panic!("{other:?}"),
    }
}

/// Replays a handler run of the sample guest.
async fn replay(host: &Host, report: &RunReport) -> Replayed {
    let run = RecordedRun::read(whole(report)).expect("a recording");
    let guest = host.load_for_replay(TASKS, &run).expect("the guest");
    host.replay(&guest, Replay::new(&run, &RecordedEnd::from(report))).await.expect("replayed")
}

#[tokio::test]
async fn all_calls_in_flight_are_shown_live_and_unfinished_in_the_story() {
    let host = host();
    let config = [("does", "wait_forever"), ("count", "3")];
    let (running, stop) = start(&host, Manifest::named("tasks"), dispatch(LONG, &config));
    // Until then, it is in one of the calls that begin.
    let waits = |run: &RunNow| {
        run.in_flight.len() == 3 && run.doing.as_str() == SLEEP && run.since == run.in_flight[0].1
    };
    let run = until(&host, waits).await;
    assert!(run.in_flight.iter().all(|(name, _)| name == SLEEP));
    assert!(run.active.is_some(), "calls that have begun are activity");
    stop.stop(Cause::Cancel, "enough");
    let report = within(running).await.expect("no panic");
    assert!(matches!(report.outcome, Outcome::Cancelled(_)), "{report:?}");
    assert_eq!(report.dying_span.as_deref(), Some(SLEEP));
    let outcomes: Vec<_> = report.story.calls.iter().map(|call| call.outcome).collect();
    assert_eq!(outcomes, [CallOutcome::Unfinished; 3]);
    let [calls] = report.host_calls.by_function.as_slice() else { panic!("{report:?}") };
    assert!(calls.in_flight && calls.count == 3, "{calls:?}");
    assert!(host.live_runs(10).runs.is_empty());
}

#[tokio::test]
async fn the_time_limit_of_a_call_ends_that_call_alone() {
    let host = host();
    let server = Server::start(Script { never: true, ..Script::default() }).await;
    let limit = Duration::from_millis(20);
    let manifest = granted(&server).host_call_timeouts([(SEND.to_owned(), limit)]);
    let url = server.url();
    let config = [("does", "get"), ("url", url.as_str())];
    let (running, _) = start(&host, manifest, dispatch(LONG, &config));
    let report = within(running).await.expect("no panic");
    let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
    assert!(failure.message.contains("TimedOut(20)"), "{failure:?}");
    let [overrun] = report.overruns.as_slice() else { panic!("{report:?}") };
    assert_eq!((overrun.limit, overrun.host_call.as_deref()), (Limit::HostCallTimeout, Some(SEND)));
}

#[tokio::test]
async fn the_soft_deadline_cuts_a_request_short_and_no_sleep() {
    let host = host();
    let server = Server::start(Script { never: true, ..Script::default() }).await;
    let soft = |manifest: Manifest| manifest.soft_deadline(LONG - Duration::from_millis(30));
    let url = server.url();
    let config = [("does", "get"), ("url", url.as_str())];
    let (running, _) = start(&host, soft(granted(&server)), dispatch(LONG, &config));
    let report = within(running).await.expect("no panic");
    let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
    assert!(failure.message.contains("CutShort"), "{failure:?}");
    assert_eq!(report.story.calls[0].outcome, CallOutcome::CutShort);

    let config = [("does", "sleep"), ("ms", "60")];
    let manifest = soft(Manifest::named("tasks"));
    let (running, _) = start(&host, manifest, dispatch(LONG, &config));
    let report = within(running).await.expect("no panic");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert_eq!(report.story.calls[0].outcome, CallOutcome::Ok);
}

#[tokio::test]
async fn calls_wait_for_the_lease_by_themselves_and_others_go_on() {
    for (does, send) in [("get_many", SEND), ("wasi_get", WASI_SEND)] {
        check_that_calls_wait_for_the_lease(does, send).await;
    }
}

/// Executes the guest that `does` two requests by the function `send`, without a lease.
async fn check_that_calls_wait_for_the_lease(does: &str, send: &str) {
    let lease = Lease::expired();
    let host = host_with(lease.clone(), 4);
    let server =
        Server::start(Script { body: "hello".to_owned(), status: 200, ..Script::default() });
    let server = server.await;
    let url = server.url();
    let config = [("does", does), ("count", "2"), ("url", url.as_str())];
    let (running, _) = start(&host, granted(&server), dispatch(LONG, &config));
    let parked = format!("parked:{send}");
    let run = until(&host, |run| run.doing.as_str() == parked && run.in_flight.len() == 2).await;
    assert_eq!(run.in_flight[1].0, parked);
    assert_eq!(lease.parked(), 2);
    assert!(server.requests().is_empty(), "nothing is sent without a lease");
    lease.extend(lease.now().after(LONG));
    let report = within(running).await.expect("no panic");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert_eq!(lease.parked(), 0);
    let sends = report.host_calls.by_function.iter().find(|calls| calls.name == send);
    assert_eq!(sends.map(|calls| calls.parked.count), Some(2));

    // A run that ends meanwhile has sent nothing, and its replay agrees.
    let host = host_with(Lease::expired(), 4);
    let limits = RecordingLimits::default();
    let run = dispatch(Duration::from_millis(50), &config).recorded(limits);
    let (running, _) = start(&host, granted(&server), run);
    let report = within(running).await.expect("no panic");
    assert_eq!((report.dying_span.as_deref(), &report.dying_call), (Some(&*parked), &None));
    assert_eq!(server.requests().len(), 2, "those from before");
    let replayed = replay(&host, &report).await;
    assert_eq!(replayed.divergence, None);
}

#[tokio::test]
async fn a_replay_delivers_completions_in_the_recorded_order_and_names_one_that_differs() {
    let host = host();
    let config = [("does", "sleep_many"), ("count", "3"), ("ms", "20")];
    let run = dispatch(LONG, &config).recorded(RecordingLimits::default());
    let (running, _) = start(&host, Manifest::named("tasks"), run);
    let report = within(running).await.expect("no panic");
    let end = RecordedEnd::from(&report);
    let recording = whole(&report);

    // An item of four: the call, the point, three calls that had begun, and nothing as its result.
    let items: Vec<usize> = (0..recording.len().saturating_sub(6))
        .filter(|at| {
            recording[*at] == 0x84 && recording[at + 3..at + 7] == [0x03, 0x82, 0xf5, 0xf6]
        })
        .collect();
    let [first, second, third] = items.as_slice() else { panic!("{items:?}") };
    let calls = [first, second, third].map(|at| recording[*at + 1]);
    assert_eq!(calls, [3, 2, 1], "the shortest sleep ends first");

    let replay = async |recording: Arc<[u8]>| {
        let run = RecordedRun::read(recording).expect("a recording");
        let guest = host.load_for_replay(TASKS, &run).expect("the guest");
        host.replay(&guest, Replay::new(&run, &end)).await.expect("replayed").divergence
    };
    assert_eq!(replay(Arc::clone(&recording)).await, None);
    let mut other_order = recording.to_vec();
    other_order.swap(first + 1, second + 1);
    let divergence = replay(other_order.into()).await.expect("it returns another order");
    assert_eq!(divergence.what, "another outcome");
    let mut unknown = recording.to_vec();
    unknown[second + 1] = 3;
    let divergence = replay(unknown.into()).await.expect("call 3 has completed before");
    assert_eq!(divergence.what, "a guest that waits");
    assert!(divergence.recorded.contains("the completion of call 3"), "{divergence:?}");
    assert!(divergence.came.contains(&format!("waits for call 1, `{SLEEP}`, and 1 more")));
    let mut late = recording.to_vec();
    late[first + 2] = 9;
    let divergence = replay(late.into()).await.expect("the guest does not yield so often");
    assert_eq!(divergence.what, "a guest that waits");
    // The completion of the first call moves before the call of the last one.
    let begins =
        recording[..*first].windows(SLEEP.len()).rposition(|text| text == SLEEP.as_bytes());
    let entry = begins.expect("the last call") - 3;
    let mut interrupted = recording[..entry].to_vec();
    interrupted.extend(&recording[*third..]);
    interrupted.extend(&recording[entry..*third]);
    let divergence = replay(interrupted.into()).await.expect("the guest goes on");
    assert_eq!(divergence.what, "a host call while the recorded guest waited", "{divergence:?}");
}

/// Seeds of programs that once diverged, and of some others.
const SEEDS: [u64; 6] = [1, 2, 3, 1795816789796008, 1795816803498548, 1795817311564190];

/// How many fresh programs are executed; the campaign sets it.
fn fresh_programs() -> u64 {
    let programs = std::env::var("SANDGLASS_TASK_PROGRAMS");
    programs.map_or(40, |programs| programs.parse().expect("a number"))
}

/// Some known seeds, and fresh ones.
fn seeds(host: &Host) -> Vec<u64> {
    let now = u64::try_from(host.clock().wall().as_millis()).expect("after 1970");
    // Fewer programs are executed in a second.
    let first = now * 1_000;
    SEEDS.into_iter().chain((0..fresh_programs()).map(|program| first + program)).collect()
}

/// Executes random programs of tasks, a few at a time, within the budget that `budget` has for the seed,
/// and replays each. A seed that fails is printed; `SEEDS` repeats it. Returns the reports.
async fn execute_and_replay(budget: impl Fn(u64) -> Duration) -> Vec<(u64, RunReport)> {
    let settings = Settings { max_runs: 8, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let mut reports = Vec::new();
    for few in seeds(&host).chunks(8) {
        let runs: Vec<_> = few
            .iter()
            .map(|seed| {
                let text = seed.to_string();
                let config = [("does", "random"), ("seed", text.as_str())];
                let run = dispatch(budget(*seed), &config).recorded(RecordingLimits::default());
                start(&host, Manifest::named("tasks"), run).0
            })
            .collect();
        for (seed, running) in few.iter().zip(runs) {
            let report = within(running).await.expect("no panic");
            if report.started_at.is_some() {
                let replayed = replay(&host, &report).await;
                assert_eq!(replayed.divergence, None, "seed {seed}: {report:?}");
                assert_eq!(replayed.calls, report.host_calls.count, "seed {seed}: {report:?}");
            }
            reports.push((*seed, report));
        }
    }
    reports
}

#[tokio::test]
async fn random_programs_of_tasks_are_replayed_as_they_were_executed() {
    for (seed, report) in execute_and_replay(|_| LONG).await {
        assert!(matches!(report.outcome, Outcome::Completed(_)), "seed {seed}: {report:?}");
    }
}

#[tokio::test]
async fn random_programs_of_tasks_that_are_killed_are_replayed_until_then() {
    let reports = execute_and_replay(|seed| Duration::from_micros(500 + seed * 37 % 12_000)).await;
    let killed = |report: &RunReport| matches!(report.outcome, Outcome::TimedOut(_));
    assert!(reports.iter().any(|(_, report)| killed(report)), "none was killed");
}

/// Responds to asks once two wait.
#[derive(Debug)]
struct Pair(Arc<Barrier>);

impl Asks for Pair {
    fn knows(&self, entity_type: &str, _: &str) -> bool {
        entity_type == "Tool"
    }

    fn ask(&self, _: Ask) -> Answer<'static, Result<Answered, AskError>> {
        let pair = Arc::clone(&self.0);
        Box::pin(async move {
            pair.wait().await;
            let (sequence, state) = (Sequence(1), "Used".to_owned());
            Ok(Answered { sequence, state, fields: Object::new() })
        })
    }
}

#[tokio::test]
async fn two_asks_at_a_time_count_as_one_handler_that_asks() {
    let host = host_with(Lease::default(), 1);
    let target = "Tool.*".parse().expect("a target");
    let manifest = Manifest::named("tasks").ask_targets([target]);
    let config = [("does", "ask"), ("count", "2"), ("entity_type", "Tool"), ("action", "Use")];
    // The permit that the first handler released and took back serves the second one.
    for _ in 0..2 {
        let pair = Arc::new(Pair(Arc::new(Barrier::new(2))));
        let asking = dispatch(LONG, &config).asks(pair);
        let (running, _) = start(&host, manifest.clone(), asking);
        let report = within(running).await.expect("no panic");
        let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
        let answers = &completion.result["params"]["answers"];
        assert_eq!(answers, &serde_json::json!(["Used", "Used"]));
    }
}

/// Responds to three requests once all of them are there, with a status and further headers.
async fn serve_three(listener: TcpListener, head: &'static str) {
    let mut streams = Vec::new();
    for _ in 0..3 {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            assert!(stream.read_buf(&mut request).await.expect("a request") > 0, "it ended early");
        }
        streams.push(stream);
    }
    for stream in &mut streams {
        let response = format!("HTTP/1.1 {head}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(response.as_bytes()).await.expect("it reads");
    }
}

/// Executes a guest with the URL of a server that responds to three requests at once.
async fn run_with_three(
    guest: &[u8],
    head: &'static str,
    request: impl Fn(&str) -> Dispatch,
) -> RunReport {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("it is bound").to_string();
    let serving = tokio::spawn(serve_three(listener, head));
    let manifest = Manifest::named("tasks").allow_hosts([address.parse().expect("a host")]);
    let host = host();
    let guest = host.load(guest, manifest).expect("a guest");
    let running = host.run(&guest, request(&format!("http://{address}/")));
    let report = within(running).await.expect("it ran");
    within(serving).await.expect("it served");
    report
}

#[tokio::test]
async fn requests_that_the_sdk_awaits_together_are_in_flight_together() {
    const SDK: &[u8] = include_bytes!("../../../../guest-fixtures/built/sdk_async.wasm");
    let request = |url: &str| {
        let input = serde_json::json!({ "does": "get_together", "url": url });
        let params = input.as_object().expect("an object").clone().into_iter().collect();
        let context = Context { params, ..Context::default() };
        Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
            .deadline(DispatchDeadline::after(LONG))
    };
    let report = run_with_three(SDK, "200 OK", request).await;
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(completion.result["params"]["statuses"], serde_json::json!([200, 200, 200]));
}

#[tokio::test]
async fn a_guest_of_wasi_http_gets_a_redirect_as_a_response() {
    let request = |url: &str| dispatch(LONG, &[("does", "wasi_get"), ("count", "3"), ("url", url)]);
    let head = "302 Found\r\nlocation: http://elsewhere.example/";
    let report = run_with_three(TASKS, head, request).await;
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    let one = serde_json::json!({ "status": 302, "headers": true, "bytes": 0 });
    assert_eq!(completion.result["params"]["responses"], serde_json::json!([one, one, one]));
}

/// Responds to no ask, or to each at once.
#[derive(Debug)]
struct Responds(bool);

impl Asks for Responds {
    fn knows(&self, entity_type: &str, _: &str) -> bool {
        entity_type == "Tool"
    }

    fn ask(&self, _: Ask) -> Answer<'static, Result<Answered, AskError>> {
        let responds = self.0;
        Box::pin(async move {
            if !responds {
                std::future::pending::<()>().await;
            }
            let (sequence, state) = (Sequence(1), "Used".to_owned());
            Ok(Answered { sequence, state, fields: Object::new() })
        })
    }
}

#[tokio::test]
async fn a_handler_that_cancels_its_ask_no_longer_counts_as_one_that_asks() {
    let settings = Settings { max_runs: 2, max_asking: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let target = "Tool.*".parse().expect("a target");
    let manifest = Manifest::named("tasks").ask_targets([target]);
    let with = [("entity_type", "Tool"), ("action", "Use")];
    let cancels = [&[("does", "cancel_ask")], &with[..]].concat();
    let (cancelling, stop) =
        start(&host, manifest.clone(), dispatch(LONG, &cancels).asks(Arc::new(Responds(false))));
    until(&host, |run| matches!(run.in_flight.as_slice(), [(name, _)] if name == SLEEP)).await;
    let asks = [&[("does", "ask"), ("count", "1")], &with[..]].concat();
    let (asking, _) = start(&host, manifest, dispatch(LONG, &asks).asks(Arc::new(Responds(true))));
    let report = within(asking).await.expect("no panic");
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(completion.result["params"]["answers"], serde_json::json!(["Used"]));
    stop.stop(Cause::Cancel, "it is over");
    within(cancelling).await.expect("no panic");
}

/// Reads a request whose body is in chunks, and returns that body a bit at a time.
async fn serve_echo(listener: TcpListener) {
    let (mut stream, _) = listener.accept().await.expect("a client");
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n0\r\n\r\n") {
        assert!(stream.read_buf(&mut request).await.expect("a request") > 0, "it ended early");
    }
    let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    let (mut chunks, mut body) = (&request[head + 4..], Vec::new());
    loop {
        let line = chunks.windows(2).position(|bytes| bytes == b"\r\n").expect("a chunk");
        let length = std::str::from_utf8(&chunks[..line]).expect("a length");
        let length = usize::from_str_radix(length, 16).expect("a length");
        if length == 0 {
            break;
        }
        body.extend(&chunks[line + 2..line + 2 + length]);
        chunks = &chunks[line + 2 + length + 2..];
    }
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.expect("it reads");
    for bit in body.chunks(333) {
        #[allow(clippy::disallowed_methods, reason = "the server is slow")]
        tokio::time::sleep(Duration::from_millis(1)).await;
        stream.write_all(bit).await.expect("it reads");
    }
}

#[tokio::test]
async fn a_step_of_a_body_that_is_cancelled_loses_nothing_and_sends_nothing_twice() {
    let host = host();
    let hesitated = serde_json::json!({ "same": true, "cancelled": true });
    let uploaded = serde_json::json!({ "unsent": 0, "same": true, "transmitted": true });
    let does = [("hesitate", hesitated), ("wasi_upload", uploaded)];
    for (does, expected) in does.iter().cycle().take(20) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        let serving = tokio::spawn(serve_echo(listener));
        let manifest = Manifest::named("tasks").allow_hosts([address.parse().expect("a host")]);
        let url = format!("http://{address}/");
        let config = [("does", *does), ("count", "20"), ("url", url.as_str())];
        let run = dispatch(LONG, &config).recorded(RecordingLimits::default());
        let report = within(start(&host, manifest, run).0).await.expect("no panic");
        within(serving).await.expect("it served");
        let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(completion.result["params"], *expected);
        let replayed = replay(&host, &report).await;
        assert_eq!(replayed.divergence, None);
    }
}

#[tokio::test]
async fn a_body_that_its_guest_did_not_end_is_not_complete() {
    for is_abandoned in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (begins, has_begun) = oneshot::channel();
        let received = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut bytes = Vec::new();
            while bytes.len() < 1000 {
                assert!(stream.read_buf(&mut bytes).await.expect("a request") > 0);
            }
            begins.send(()).expect("the test waits");
            // It responds while it reads. The end may be a reset.
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("it reads");
            let _ = stream.read_to_end(&mut bytes).await;
            bytes
        });
        let manifest = Manifest::named("tasks").allow_hosts([address.parse().expect("a host")]);
        let url = format!("http://{address}/");
        let config = [("does", "upload"), ("count", "1000000000"), ("url", url.as_str())];
        let (running, stop) = start(&host(), manifest, dispatch(LONG, &config));
        within(has_begun).await.expect("it begins");
        if is_abandoned {
            running.abort();
        } else {
            stop.stop(Cause::Cancel, "it is over");
            let report = within(running).await.expect("no panic");
            assert!(matches!(report.outcome, Outcome::Cancelled(_)), "{report:?}");
        }
        let bytes = within(received).await.expect("no panic");
        assert!(!bytes.ends_with(b"0\r\n\r\n"), "the body must not seem complete");
    }
}
