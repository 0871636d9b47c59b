//! What is visible of handlers that are queued or in flight.

use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Doing, Host, Integration, LiveRuns, Manifest, Settings,
};
use sandglass_model::Cause;
use tokio::task::JoinSet;

const SLEEPS: &str = include_str!("../../../../guest-fixtures/wat/sleeps_in_wasi_poll.wat");
const SPINS: &str = include_str!("../../../../guest-fixtures/wat/spins.wat");
const SPINS_IN_START: &str = include_str!("../../../../guest-fixtures/wat/spins_in_start.wat");

/// Polls until the handlers do all of these, in any order.
async fn until(host: &Host, expected: &[&str]) -> LiveRuns {
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    loop {
        let live = host.live_runs(100);
        let mut doing: Vec<_> = live.runs.iter().map(|run| run.doing.as_str()).collect();
        doing.sort_unstable();
        if doing == expected {
            return live;
        }
        tokio::task::yield_now().await;
    }
}

fn dispatch(seconds: u64) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(Duration::from_secs(seconds)))
}

#[tokio::test]
async fn each_live_handler_shows_its_present_call_and_since_when() {
    let settings = Settings { max_runs: 3, guest_threads: 2, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let load = |guest: &str| host.load(guest.as_bytes(), Manifest::default()).expect("a guest");
    let mut running = JoinSet::new();
    let mut start = |integration: &Integration, dispatch: Dispatch| {
        let (host, integration, stop) = (host.clone(), integration.clone(), dispatch.stop_handle());
        running.spawn(async move { host.dispatch(&integration, dispatch).await });
        stop
    };
    let before = host.clock().now();
    let stops = [
        start(&load(SLEEPS), dispatch(400)),
        start(&load(SPINS), dispatch(200)),
        start(&load(SPINS_IN_START), dispatch(300)),
    ];
    until(&host, &["wasi_snapshot_preview1.poll_oneoff", "guest", "instantiate"]).await;
    let queued = start(&load(SPINS), dispatch(100));
    let poll = "wasi_snapshot_preview1.poll_oneoff";
    let live = until(&host, &[poll, "guest", "instantiate", "queued"]).await;

    let doing: Vec<_> = live.runs.iter().map(|run| run.doing.clone()).collect();
    let call = Doing::HostCall(poll.to_owned());
    assert_eq!(doing, [Doing::Guest, Doing::Instantiating, call, Doing::Queued], "by deadline");
    let budgets = live.runs.iter().map(|run| run.budget.map(|(began, end)| end.since(began)));
    let seconds = [Some(200), Some(300), Some(400), None];
    assert_eq!(budgets.collect::<Vec<_>>(), seconds.map(|s| s.map(Duration::from_secs)));
    let now = host.clock().now();
    // Times are rounded down.
    let microsecond = Duration::from_micros(2);
    for run in &live.runs {
        assert!(run.since.after(microsecond) >= before && run.since <= now, "{run:?}");
    }
    let few = host.live_runs(1);
    assert_eq!((few.runs.len(), few.more), (1, 3));
    for stop in stops.iter().chain([&queued]) {
        stop.stop(Cause::Cancel, "");
    }
    while running.join_next().await.is_some() {}
    assert_eq!(host.live_runs(100), LiveRuns { runs: Vec::new(), more: 0 });
}
