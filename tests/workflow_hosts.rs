//! Runs of workflows on several hosts that share a PostgreSQL database, which the tests start;
//! `.ci/check-postgres` runs them. Each request goes to another host than the one before it.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod binary;
#[path = "openwop/client.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod client;
#[path = "workflow_hosts/cluster.rs"]
mod cluster;
#[path = "openwop/schema.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod schema;
#[allow(dead_code, reason = "this test uses a part of it")]
#[path = "../crates/sandglass-postgres/tests/server/server.rs"]
#[allow(clippy::disallowed_methods, reason = "it waits for real servers")]
mod server;

use std::collections::BTreeSet;
use std::thread;

use client::Frame;
use cluster::{Cluster, HOSTS, Seen};
use serde_json::{Value, json};

/// A run that was created with an idempotency key, which decides who owns it.
fn create(cluster: &Cluster, host: usize, workflow: &str, key: &str) -> String {
    let created = cluster.create(host, &json!({ "workflowId": workflow }), key).expect(201);
    created["runId"].as_str().unwrap().to_owned()
}

/// The run of this workflow that `host` owns, created through another host.
fn create_at(cluster: &Cluster, owner: usize, workflow: &str) -> String {
    let mut numbers = 0..;
    loop {
        let key = format!("{workflow}-{owner}-{}", numbers.next().unwrap());
        // The id follows from the key, so a run that is elsewhere is cancelled at once.
        let run = create(cluster, (owner + 1) % HOSTS, workflow, &key);
        if cluster.owner_of(&run) == Some(owner) {
            return run;
        }
        cluster.post(owner, &format!("/v1/runs/{run}/cancel"), &json!({})).expect(200);
    }
}

#[test]
fn every_host_serves_every_run() {
    let cluster = Cluster::start("every_run");
    let mut owners = BTreeSet::new();
    // Which host owns a run is random.
    for number in 0..200 {
        if number >= 12 && owners.len() == HOSTS {
            break;
        }
        let (host, key) = (number % HOSTS, format!("key-{number}"));
        let body = json!({ "workflowId": "linear", "inputs": { "a": 2, "b": number } });
        // The same request at all hosts at once is one run.
        let created: Vec<_> = thread::scope(|scope| {
            let sent = |host| {
                let (cluster, body, key) = (&cluster, &body, &key);
                scope.spawn(move || cluster.create(host, body, key))
            };
            let sent: Vec<_> = (0..HOSTS).map(sent).collect();
            sent.into_iter().map(|sent| sent.join().unwrap()).collect()
        });
        let replayed =
            |reply: &&client::Reply| reply.header("openwop-idempotent-replay") == Some("true");
        assert_eq!(created.iter().filter(replayed).count(), HOSTS - 1, "{created:?}");
        let ids: BTreeSet<String> =
            created.into_iter().map(|one| one.expect(201)["runId"].to_string()).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        let run: String = serde_json::from_str(ids.first().unwrap()).unwrap();
        let other = json!({ "workflowId": "linear", "inputs": { "a": 3 } });
        let refused = cluster.create((host + 1) % HOSTS, &other, &key);
        refused.fails(409, "idempotency_key_mismatch");
        owners.insert(cluster.owner_of(&run).unwrap());

        let events = cluster.finished(&run);
        for host in 0..HOSTS {
            assert_eq!(cluster.events(host, &run), events);
            let snapshot = cluster.get(host, &format!("/v1/runs/{run}")).expect(200);
            assert_eq!(snapshot["status"], "completed", "{snapshot}");
            schema::snapshot(&snapshot);
        }
    }
    assert_eq!(owners.len(), HOSTS, "runs of all hosts: {owners:?}");
    // Without a key, too, the host that gets the request need not own the run.
    let unkeyed: BTreeSet<_> = (0..100)
        .map(|number| {
            let body = json!({ "workflowId": "linear" });
            let created = cluster.post(number % HOSTS, "/v1/runs", &body).expect(201);
            let run = created["runId"].as_str().unwrap().to_owned();
            cluster.owner_of(&run) == Some(number % HOSTS)
        })
        .collect();
    assert_eq!(unkeyed.len(), 2, "some runs are elsewhere");
    let missing = "/v1/runs/run-00000000000000000000000000000000";
    for host in 0..HOSTS {
        cluster.get(host, missing).fails(404, "not_found");
        cluster.get(host, "/v1/runs/nothing").fails(404, "not_found");
        cluster.post(host, "/v1/runs", &json!({})).fails(400, "validation_error");
        cluster.post(host, &format!("{missing}:fork"), &json!({})).fails(400, "validation_error");
        let fork = json!({ "mode": "replay" });
        cluster.post(host, &format!("{missing}:fork"), &fork).fails(404, "not_found");
        let without_key = client::Ask::without_key(&format!("GET {missing}"));
        let forged = without_key.header("sandglass-cluster-key", "this-is-not-the-key");
        cluster.ask(host, &without_key_of(missing)).fails(401, "unauthenticated");
        cluster.ask(host, &forged).fails(401, "wrong_cluster_key");
    }
}

fn without_key_of(path: &str) -> client::Ask {
    client::Ask::without_key(&format!("GET {path}"))
}

#[test]
fn runs_of_other_hosts_are_answered_cancelled_forked_and_listed() {
    let cluster = Cluster::start("operated");
    for owner in 0..HOSTS {
        let [second, third] = [1, 2].map(|step| (owner + step) % HOSTS);
        let waiting = create_at(&cluster, owner, "approval");
        cluster.until(&waiting, |event| event["type"] == "interrupt.requested");
        let answer = json!({ "resumeValue": { "action": "accept" } });
        let path = format!("/v1/runs/{waiting}/interrupts/ask");
        cluster.post(third, &path, &answer).expect(200);
        cluster.post(second, &path, &answer).fails(409, "interrupt_already_resolved");
        let events = cluster.finished(&waiting);
        assert_eq!(events.last().unwrap()["type"], "run.completed");

        // Forks with one key are one, whichever host they are sent to; the source may be elsewhere.
        for mode in ["replay", "branch"] {
            let body = json!({ "mode": mode, "fromSeq": 1 });
            let key = format!("{mode}-{owner}");
            let forked: BTreeSet<String> = (0..HOSTS)
                .map(|host| {
                    let path = format!("/v1/runs/{waiting}:fork");
                    let forked = cluster.keyed(host, &path, &body, &key).expect(201);
                    assert_eq!(forked["sourceRunId"], waiting);
                    forked["runId"].as_str().unwrap().to_owned()
                })
                .collect();
            assert_eq!(forked.len(), 1, "{forked:?}");
            let fork = forked.first().unwrap();
            if mode == "replay" {
                assert_eq!(cluster.finished(fork).len(), events.len());
            }
            let other =
                json!({ "mode": if mode == "replay" { "branch" } else { "replay" }, "fromSeq": 1 });
            let path = format!("/v1/runs/{waiting}:fork");
            cluster.keyed(second, &path, &other, &key).fails(409, "idempotency_key_mismatch");
        }
        let body = json!({ "mode": "replay" });
        let fork = cluster.post(third, &format!("/v1/runs/{waiting}:fork"), &body).expect(201);
        cluster.finished(fork["runId"].as_str().unwrap());

        let long = create_at(&cluster, owner, "steps");
        cluster.until(&long, |event| event["type"] == "node.started");
        // The daemon's lists show the runs of all hosts.
        for host in 0..HOSTS {
            let listed = cluster.get(host, "/v1/sessions?limit=1000").expect(200).to_string();
            assert!(listed.contains(&long), "{listed}");
        }
        let cancelled = cluster.post(third, &format!("/v1/runs/{long}/cancel"), &json!({}));
        let cancelled = cancelled.expect(200);
        assert!(["cancelled", "cancelling"].contains(&cancelled["status"].as_str().unwrap()));
        assert_eq!(cluster.finished(&long).last().unwrap()["type"], "run.cancelled");
    }
}

#[test]
fn a_run_and_its_stream_continue_when_the_owner_is_killed() {
    let mut cluster = Cluster::start("killed");
    let run = create_at(&cluster, 0, "steps");
    // A family stays together, so the parent finds its child on the next host, too.
    let parent = create_at(&cluster, 0, "parent");
    let started = |event: &Value| event["payload"]["phase"] == "dispatch.succeeded";
    let events = cluster.until(&parent, started);
    let child =
        events.iter().find(|event| started(event)).unwrap()["payload"]["childRunId"].clone();
    let child = child.as_str().unwrap().to_owned();
    assert_eq!(cluster.owner_of(&child), Some(0));
    assert_eq!(cluster::partition_of(&child), cluster::partition_of(&parent));

    let mut seen = Seen::default();
    // Its reader is connected to another host.
    for frame in cluster.stream(1, &run, None) {
        seen.take(frame);
        if seen.count("node.completed") == 2 {
            break;
        }
    }
    let mut stream = cluster.stream(1, &run, seen.last());
    cluster.kill(0);
    loop {
        match stream.next() {
            Some(frame) => seen.take(frame),
            None if seen.is_over() => break,
            // The host of the reader lives, so it ends the stream between two events.
            None => stream = cluster.stream_when_moved(2, &run, seen.last()),
        }
    }
    assert_eq!(seen.ids(), (0..seen.ids().len() as u64).collect::<Vec<_>>());
    assert_eq!(seen.count("run.completed"), 1);
    assert_eq!(seen.count("node.completed"), cluster::STEPS);
    for host in 1..HOSTS {
        assert_eq!(cluster.events(host, &run).len(), seen.ids().len());
    }
    for run in [&parent, &child] {
        let events = cluster.finished(run);
        assert_eq!(events.last().unwrap()["type"], "run.completed", "{events:?}");
    }
    let children = |event: &&Value| event["type"] == "node.dispatched";
    assert_eq!(cluster.finished(&parent).iter().filter(children).count(), 1);
    // The key of the run is known to its new owner.
    let again = cluster.create(2, &json!({ "workflowId": "steps" }), &cluster.key_of(&run));
    assert_eq!(again.expect(201)["runId"], run);
}

#[test]
fn a_stream_ends_and_continues_elsewhere_when_its_run_is_given_away() {
    let cluster = Cluster::start("given_away");
    let run = create_at(&cluster, 0, "approval");
    cluster.until(&run, |event| event["type"] == "interrupt.requested");
    let mut seen = Seen::default();
    let (own, other) = (cluster.stream(0, &run, None), cluster.stream(1, &run, None));
    cluster.drain(0);
    let frames: Vec<Frame> = own.collect();
    let other: Vec<Frame> = other.collect();
    let events = |frames: &[Frame]| {
        frames
            .iter()
            .filter(|frame| matches!(frame, Frame::Event { .. }))
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(events(&frames), events(&other));
    assert!(matches!(frames.last(), Some(Frame::Comment(why)) if why.contains("Last-Event-ID")));
    frames.into_iter().for_each(|frame| seen.take(frame));
    let mut stream = cluster.stream_when_moved(0, &run, seen.last());
    let answer = json!({ "resumeValue": { "action": "accept" } });
    cluster.post(1, &format!("/v1/runs/{run}/interrupts/ask"), &answer).expect(200);
    while !seen.is_over() {
        match stream.next() {
            Some(frame) => seen.take(frame),
            None => stream = cluster.stream_when_moved(0, &run, seen.last()),
        }
    }
    assert_eq!(seen.ids(), (0..seen.ids().len() as u64).collect::<Vec<_>>());
    assert_eq!(cluster.events(0, &run).len(), seen.ids().len());
}

#[test]
fn hosts_with_other_workflows_are_reported() {
    let cluster = Cluster::start_with("others", |folder| {
        let text = std::fs::read_to_string(folder.path("workflows/child.json")).unwrap();
        folder.write("workflows/other.json", text.replace("\"child\"", "\"other\""));
    });
    let mut numbers = 0..;
    server::until(|| {
        let key = format!("key-{}", numbers.next().unwrap());
        create(&cluster, HOSTS - 1, "linear", &key);
        cluster.said().contains("another host has other workflows or packs than this one")
    });
    // A run of the workflow that only one host has exists if that host owns it.
    let created = |number| {
        let body = json!({ "workflowId": "other" });
        cluster.create(0, &body, &format!("other-{number}")).status
    };
    assert_eq!((0..60).map(created).collect::<BTreeSet<_>>(), [201, 404].into());
}
