//! Host functions of an embedder, each called in every way.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use sandglass_host::{Host, HostCall, HostError, HostFunction, Json};
use sandglass_misbehaving::{Member, Verdict, against, run};
use sandglass_model::OutcomeKind;

use crate::world::host;

const INTERFACE: &str = "acme:crm/contacts";

async fn find(call: HostCall, email: String) -> Result<String, HostError> {
    let domain = email.split('@').nth(1).ok_or_else(|| HostError::new("that is not an address"))?;
    Ok(format!("{domain}, for {}", call.tenant()))
}

async fn wait(_: HostCall, _: String) -> Result<String, HostError> {
    std::future::pending().await
}

/// The verdict on the member with this name.
async fn verdict(host: &Host, name: &str, most_overrun: Option<Duration>) -> Verdict {
    let members = against(&host.functions());
    let names: Vec<&str> = members.iter().map(|member| &*member.name).collect();
    let member = members.iter().find(|member| member.name == name);
    let member = member.unwrap_or_else(|| panic!("no `{name}` in {names:?}"));
    let mut member = member.clone();
    member.most_overrun = most_overrun.unwrap_or(member.most_overrun);
    let verdicts = run(host, &[member]).await;
    verdicts.iter().next().expect("one").clone()
}

fn outcome(verdict: &Verdict) -> (OutcomeKind, Option<&str>) {
    let report = verdict.observed[0].report.as_ref().expect("it ran");
    (report.outcome.kind(), report.dying_span.as_deref())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_of_every_class_and_type_are_called_in_every_way() {
    let mixed = |_: HostCall, one: i32, two: i64, _: f64, bytes: Vec<u8>| {
        Ok(two.wrapping_add(i64::from(one)).wrapping_add(i64::from(bytes.is_empty())))
    };
    let tell = |_: HostCall, _: f32, _: bool| -> Result<(), HostError> { Ok(()) };
    let keep = |_: HostCall, Json(document): Json<Vec<String>>| -> Result<u64, HostError> {
        Ok(document.len() as u64)
    };
    let panics =
        |_: HostCall, _: u32, _: u64| -> Result<bool, HostError> { panic!("out of cheese") };
    let host = host([
        HostFunction::asynchronous(INTERFACE, "find", find),
        HostFunction::asynchronous(INTERFACE, "wait", wait),
        HostFunction::instant(INTERFACE, "mixed", mixed),
        HostFunction::instant("acme:crm/notes@1.2.0", "tell", tell),
        HostFunction::blocking(INTERFACE, "keep", Duration::from_secs(5), keep),
        HostFunction::instant(INTERFACE, "panics", panics),
    ]);
    // A function that panics logs each time. If it were called without a pause, it would fill the
    // log, so it is only called once or twice.
    let members = against(&host.functions());
    let members: Vec<Member> = members
        .into_iter()
        .filter(|member| !member.name.ends_with("panics") || member.name.starts_with("bad"))
        .collect();
    // There are 6 members for each of find, wait, mixed and keep, 3 for tell, and for panics only
    // those that call it rarely.
    assert_eq!(members.len(), 29);
    let verdicts = run(&host, &members).await;
    assert!(verdicts.all_passed(), "\n{}", verdicts.failures());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_is_killed_and_bad_pointers_reach_no_function() {
    let calls = Arc::new(Mutex::new(0_u64));
    let counted = Arc::clone(&calls);
    let count = move |_: HostCall, _: String| -> Result<(), HostError> {
        *counted.lock().expect("no panic") += 1;
        Ok(())
    };
    let host = host([
        HostFunction::instant(INTERFACE, "count", count),
        HostFunction::asynchronous(INTERFACE, "wait", wait),
    ]);
    let seen = || *calls.lock().expect("no panic");
    let bad = verdict(&host, "bad pointers to acme:crm/contacts.count", None).await;
    assert!(bad.passed(), "{bad}");
    assert_eq!(outcome(&bad).0, OutcomeKind::Completed);
    assert_eq!(seen(), 0, "none of them reached it");
    let late = verdict(&host, "acme:crm/contacts.count past the deadline", None).await;
    assert!(late.passed(), "{late}");
    assert_eq!(outcome(&late).0, OutcomeKind::TimedOut);
    // If a call was too late, it would be the last one.
    let story = &late.observed[0].report.as_ref().expect("it ran").story;
    assert_eq!((story.calls.len() as u64, story.calls_omitted), (seen(), 0), "{story:?}");
    assert!(story.calls.iter().all(|call| call.started_us <= 200_000), "{story:?}");
    let before = seen();
    let storm = verdict(&host, "storm of acme:crm/contacts.count", None).await;
    assert!(storm.passed(), "{storm}");
    assert_eq!(outcome(&storm).0, OutcomeKind::TimedOut);
    assert!(seen() > before);
    let waits = verdict(&host, "storm of acme:crm/contacts.wait", None).await;
    assert_eq!(outcome(&waits), (OutcomeKind::TimedOut, Some("acme:crm/contacts.wait")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_that_is_registered_as_instant_and_waits_fails() {
    let held = Arc::new((Mutex::new(()), Condvar::new()));
    let shared = Arc::clone(&held);
    // Longer than the budget and the allowed overrun together, on every machine.
    let waits = move |_: HostCall, _: String| -> Result<(), HostError> {
        let (lock, never) = &*shared;
        let guard = lock.lock().expect("no panic");
        drop(never.wait_timeout(guard, Duration::from_millis(1500)).expect("no panic"));
        Ok(())
    };
    let host = host([HostFunction::instant(INTERFACE, "waits", waits)]);
    let most = Duration::from_millis(500);
    let verdict = verdict(&host, "storm of acme:crm/contacts.waits", Some(most)).await;
    assert!(!verdict.passed(), "{verdict}");
    let said = verdict.to_string();
    assert!(said.starts_with("storm of acme:crm/contacts.waits: DIFFERS: "), "{said}");
    assert!(said.contains("ms after its deadline, and 500 are allowed"), "{said}");
}
