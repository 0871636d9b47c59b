//! Hosts that are small, or that do less than they must.

use sandglass_host::{Host, Settings};
use sandglass_misbehaving::{Member, Verdicts, kit, run};
use sandglass_model::OutcomeKind;

fn members(names: &[&str]) -> Vec<Member> {
    let members: Vec<Member> =
        kit().into_iter().filter(|member| names.contains(&&*member.name)).collect();
    assert_eq!(members.len(), names.len(), "{names:?}");
    members
}

fn said(verdicts: &Verdicts) -> String {
    let said = verdicts.failures();
    assert_eq!(said.lines().count(), verdicts.iter().count(), "each differs: {said}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_one_thread_and_two_slots_passes() {
    let settings = Settings {
        max_runs: 2,
        max_asking: 8,
        max_queued: 30,
        max_queued_per_tenant: 30,
        guest_threads: 1,
        ..Settings::default()
    };
    let host = Host::builder().settings(settings).build().expect("a host");
    let members = members(&["spin", "nested asks", "self-ask", "many modules at once"]);
    let verdicts = run(&host, &members).await;
    assert!(verdicts.all_passed(), "\n{}", verdicts.failures());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_with_too_few_resources_for_a_member_fails() {
    let settings =
        Settings { max_runs: 2, max_queued: 0, max_memory_bytes: 64 << 20, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let members = members(&["late success", "many modules at once"]);
    let verdicts = run(&host, &members).await;
    let said = said(&verdicts);
    assert!(said.contains("late success: DIFFERS: it ended rejected ("), "{said}");
    let first = verdicts.iter().next().expect("one");
    let report = first.observed[0].report.as_ref().expect("the runtime reports it");
    assert_eq!(report.outcome.kind(), OutcomeKind::Rejected);
    assert_eq!(first.observed[0].transitions, ["Fail"]);
    assert!(said.contains("many modules at once: DIFFERS: it was not dispatched: "), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_shut_down_fails() {
    let settings = Settings { max_runs: 2, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    host.shutdown().await;
    let said = said(&run(&host, &members(&["spin"])).await);
    assert!(
        said.contains(
            "a handler that works, begun afterwards, did not complete: the host is shutting down"
        ),
        "{said}"
    );
}
