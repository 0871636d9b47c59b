//! A host does to each member what it must, and the page describes what was observed.

use std::collections::BTreeSet;

use sandglass_misbehaving::{Verdicts, kit, markdown, run};

use crate::world::host;

/// The ways to hang or do harm that the kit must cover, by name.
const WAYS: [&str; 23] = [
    "spin",
    "spin in `start`",
    "tail-call spin",
    "recursion",
    "sleep by the monotonic clock",
    "sleep by the real-time clock",
    "sleep by wasi:clocks, for a time",
    "poll forever",
    "drip progress",
    "slow-drip HTTP body",
    "connect to nowhere",
    "storm of host calls",
    "log flood",
    "span flood",
    "bulk memory fill",
    "growth",
    "table growth",
    "huge result",
    "bad pointers",
    "bad UTF-8",
    "late success",
    "ignoring errors",
    "catching exceptions around host calls",
];

#[test]
fn every_way_to_hang_or_harm_has_a_member_with_a_unique_name() {
    let kit = kit();
    let names: BTreeSet<&str> = kit.iter().map(|member| &*member.name).collect();
    assert_eq!(names.len(), kit.len(), "two members have the same name");
    let rest = ["reading the clock in a loop", "nested asks", "self-ask", "many modules at once"];
    for way in WAYS.into_iter().chain(rest) {
        assert!(names.contains(way), "`{way}` is missing");
    }
}

/// One test for both, because the page is generated from what was observed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_passes_every_member_and_the_page_shows_what_was_observed() {
    let host = host([]);
    let members = kit();
    let verdicts = run(&host, &members).await;
    assert!(verdicts.all_passed(), "\n{}", verdicts.failures());
    assert_eq!(host.live_runs(10).runs.len(), 0, "nothing is left");
    the_peers_behaved_as_declared(&verdicts);
    let page = include_str!("../../../../docs/guests/misbehaving.md");
    let observed = markdown(&members, &verdicts);
    let mut lines = page.lines().zip(observed.lines());
    let first = lines.find(|(page, observed)| page != observed);
    assert!(
        page == observed,
        "{first:#?}\nregenerate it: cargo run -p sandglass-misbehaving --example \
         misbehaving-page > docs/guests/misbehaving.md"
    );
    host.shutdown().await;
}

fn the_peers_behaved_as_declared(verdicts: &Verdicts) {
    let report = |name: &str| {
        let verdict = verdicts.iter().find(|verdict| verdict.member == name).expect("a member");
        verdict.observed[0].report.clone().expect("it ran")
    };
    // The peer neither accepted nor refused, so the first connection was still waiting at the end.
    let calls = report("connect to nowhere").host_calls.by_function;
    let http = calls.iter().find(|of| of.name == "host_http_call").expect("it called");
    assert_eq!(http.count, 1, "{calls:?}");
    for (name, status) in [("slow-drip HTTP body", Some(200)), ("server that never answers", None)]
    {
        let requests = report(name).story.requests;
        let [request] = requests.as_slice() else { panic!("{name}: {requests:?}") };
        assert_eq!(request.status, status, "{name}");
    }
}
