//! What a cluster of hosts on one machine does and costs: dispatches of one, two and four hosts in turns,
//! what forwarding adds to an accepted action, how soon a record reaches a reader on another host, for how
//! long entities are not available in planned moves and after `kill -9`, and the memory of hosts with many
//! sleeping entities. Hosts, database and load share the machine. It starts PostgreSQL; .ci/install-postgres
//! installs it.
//!
//! ```text
//! cargo bench -p sandglass-cli --bench hosts
//! SANDGLASS_SLEEPING=1000000 cargo bench -p sandglass-cli --bench hosts -- sleeping
//! ```
//!
//! The names of measurements restrict it to these: dispatches, actions, feed, moves, kills, sleeping.
#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "it prints its results")]
#![allow(clippy::unwrap_used, reason = "it is not part of the product")]
#![allow(clippy::cast_precision_loss, reason = "some thousand dispatches")]

#[path = "../../tests/binary/mod.rs"]
mod binary;
mod client;
mod cluster;
mod sample;
#[path = "../../crates/sandglass-postgres/tests/server/server.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod server;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use client::{Client, Reader};
use cluster::{Cluster, entities_of_all_partitions};
use sample::Sample;
use server::Server;

/// Rounds of the measurement of dispatches; the medians are printed.
const ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_secs(2);
const LENGTH: Duration = Duration::from_secs(6);
/// Dispatches in flight.
const AT_ONCE: usize = 64;
/// Actions of each kind, one after the other.
const ACTIONS: usize = 1_000;
/// Records, each of which a reader waits for.
const RECORDS: usize = 300;
const KILLS: usize = 5;
/// The pause between two requests of a client that observes moves, so that its load does not slow them.
const BETWEEN: Duration = Duration::from_millis(20);

type Measurement = fn(&Server);

fn main() {
    let server = Server::start(&["shared_buffers = '256MB'", "max_connections = 200"]);
    let wanted: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let measurements: [(&str, Measurement); 6] = [
        ("dispatches", dispatches),
        ("actions", actions),
        ("feed", feed),
        ("moves", moves),
        ("kills", kills),
        ("sleeping", sleeping),
    ];
    for (name, measure) in measurements {
        // It takes minutes.
        let is_default = name != "sleeping";
        if wanted.iter().any(|it| it == name) || (wanted.is_empty() && is_default) {
            measure(&server);
        }
    }
}

/// Dispatches per second of all hosts together, each awaited by its client, in turns.
fn dispatches(server: &Server) {
    let counts = [1, 2, 4];
    // By hosts, and whether clients send to the owner.
    let mut rates: BTreeMap<(bool, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for hosts in counts {
            let cluster = Cluster::start(server, hosts);
            for to_owner in [true, false] {
                rates.entry((to_owner, hosts)).or_default().push(rate(&cluster, to_owner));
            }
        }
    }
    for to_owner in [true, false] {
        let one = median(&rates[&(to_owner, 1)]);
        let whom = if to_owner { "the owner" } else { "any host" };
        for hosts in counts {
            let rate = median(&rates[&(to_owner, hosts)]);
            let ratio = rate / one;
            println!(
                "dispatches by {hosts} hosts, sent to {whom}: {rate:.0}/s ({ratio:.2} of one)"
            );
        }
    }
}

fn rate(cluster: &Cluster, to_owner: bool) -> f64 {
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let owners = cluster.owners();
    thread::scope(|threads| {
        for number in 0..AT_ONCE {
            let (is_over, done, owners) = (&is_over, &done, &owners);
            threads.spawn(move || {
                let name = format!("Worker/{to_owner}-{number}");
                let owner = owners[&cluster::partition_of(&name)];
                let mut clients: Vec<Client> = cluster.clients();
                clients[0].post(&format!("/v1/entities/{name}"));
                let path = format!("/v1/entities/{name}/actions/Begin?wait=settled&timeout=20s");
                for nth in number.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let host = if to_owner { owner } else { nth % clients.len() };
                    assert_eq!(clients[host].post(&path), 200, "{name}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(WARM_UP);
        let (before, begun) = (done.load(Ordering::Relaxed), Instant::now());
        thread::sleep(LENGTH);
        let counted = done.load(Ordering::Relaxed) - before;
        let rate = counted as f64 / begun.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        rate
    })
}

/// An accepted action, sent to the owner and to another host, in turns, without other load.
fn actions(server: &Server) {
    let cluster = Cluster::start(server, 2);
    let (mut direct, mut forwarded) = (Sample::default(), Sample::default());
    let mut clients = cluster.clients();
    let names = entities_of_all_partitions("Counter");
    names.iter().for_each(|name| assert_eq!(clients[0].post(&format!("/v1/entities/{name}")), 201));
    let owners = cluster.owners();
    for nth in 0..ACTIONS {
        let name = &names[nth % names.len()];
        let owner = owners[&cluster::partition_of(name)];
        let path = format!("/v1/entities/{name}/actions/Touch");
        // Each comes first as often as the other, because the first one may have to wake the entity.
        let is_first = (nth / names.len()).is_multiple_of(2);
        for is_direct in [is_first, !is_first] {
            let host = if is_direct { owner } else { 1 - owner };
            let sample = if is_direct { &mut direct } else { &mut forwarded };
            let begun = Instant::now();
            assert_eq!(clients[host].post(&path), 200, "{name}");
            sample.add([begun.elapsed()]);
        }
    }
    println!("an action, sent to the owner: {direct}");
    println!("an action, forwarded: {forwarded}");
    let added = |thousandths| forwarded.millis(thousandths) - direct.millis(thousandths);
    println!("forwarding adds {:.2} ms at p50 and {:.2} ms at p99", added(500), added(990));
}

/// From the response to an action until its record is with a reader of another host.
fn feed(server: &Server) {
    let cluster = Cluster::start(server, 2);
    let mut clients = cluster.clients();
    let names = entities_of_all_partitions("Counter");
    names.iter().for_each(|name| assert_eq!(clients[0].post(&format!("/v1/entities/{name}")), 201));
    let owners = cluster.owners();
    let mut readers: Vec<Reader> = (0..2).map(|host| Reader::of(cluster.address(host))).collect();
    let (mut same, mut other) = (Sample::default(), Sample::default());
    for nth in 0..RECORDS {
        let name = &names[nth % names.len()];
        let owner = owners[&cluster::partition_of(name)];
        assert_eq!(clients[owner].post(&format!("/v1/entities/{name}/actions/Touch")), 200);
        let begun = Instant::now();
        let (host, sample) =
            if nth % 2 == 0 { (owner, &mut same) } else { (1 - owner, &mut other) };
        readers[host].wait_for_action_of(name);
        sample.add([begun.elapsed()]);
        // So that records are written at different moments between two polls.
        thread::sleep(Duration::from_millis((nth as u64 * 37) % 120));
    }
    println!("from an action to a reader of its host: {same}");
    println!("from an action to a reader of another host: {other}");
}

/// The longest request to an entity of each partition that an operator moves, without other load.
fn moves(server: &Server) {
    let cluster = Cluster::start(server, 3);
    let names = entities_of_all_partitions("Counter");
    let mut clients = cluster.clients();
    names.iter().for_each(|name| assert_eq!(clients[0].post(&format!("/v1/entities/{name}")), 201));
    let (mut quiet, mut moved, mut failed) = (Sample::default(), Sample::default(), 0);
    for host in 0..3 {
        let before = cluster.owners();
        let watched = || {
            observe(&cluster, &names, || {
                thread::sleep(Duration::from_secs(2));
            })
        };
        quiet.add(watched().longest.into_values());
        for is_draining in [true, false] {
            let seen = observe(&cluster, &names, || {
                cluster.drain(host, is_draining);
                cluster.until_balanced(is_draining.then_some(host));
            });
            failed += seen.failed;
            let was_moved = |name: &&String| before[&cluster::partition_of(name)] == host;
            moved.add(names.iter().filter(was_moved).map(|name| seen.longest[name]));
        }
    }
    println!("the longest request to each entity in 2 s without moves: {quiet}");
    println!("the longest request to each entity that was moved: {moved}; {failed} failed");
}

struct Seen {
    longest: BTreeMap<String, Duration>,
    failed: usize,
}

/// Sends requests to all entities, one after the other for eight of them, by hosts in turn, until `what`
/// has happened.
fn observe(cluster: &Cluster, names: &[String], what: impl FnOnce()) -> Seen {
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let watchers: Vec<_> = names
            .chunks(8)
            .map(|names| {
                let is_over = &is_over;
                threads.spawn(move || {
                    let mut clients = cluster.clients();
                    let mut seen = Seen { longest: BTreeMap::new(), failed: 0 };
                    for nth in 0.. {
                        let name = &names[nth % names.len()];
                        let begun = Instant::now();
                        let host = nth % clients.len();
                        if clients[host].post(&format!("/v1/entities/{name}/actions/Touch")) != 200
                        {
                            seen.failed += 1;
                        }
                        let longest = seen.longest.entry(name.clone()).or_default();
                        *longest = begun.elapsed().max(*longest);
                        if is_over.load(Ordering::Relaxed) && nth >= names.len() {
                            break;
                        }
                        thread::sleep(BETWEEN);
                    }
                    seen
                })
            })
            .collect();
        what();
        is_over.store(true, Ordering::Relaxed);
        let mut all = Seen { longest: BTreeMap::new(), failed: 0 };
        for watcher in watchers {
            let seen = watcher.join().unwrap();
            all.longest.extend(seen.longest);
            all.failed += seen.failed;
        }
        all
    })
}

/// How long the entities of a host that is killed accept no actions.
fn kills(server: &Server) {
    let mut cluster = Cluster::start(server, 3);
    let names = entities_of_all_partitions("Counter");
    let mut clients = cluster.clients();
    names.iter().for_each(|name| assert_eq!(clients[0].post(&format!("/v1/entities/{name}")), 201));
    let mut all = Sample::default();
    for nth in 0..KILLS {
        let host = nth % 3;
        let owners = cluster.owners();
        let of_host = |name: &&String| owners[&cluster::partition_of(name)] == host;
        let names: Vec<&String> = names.iter().filter(of_host).collect();
        cluster.kill(host);
        let begun = Instant::now();
        thread::scope(|threads| {
            let cluster = &cluster;
            let waiting: Vec<_> = names
                .iter()
                .map(|name| {
                    threads.spawn(move || {
                        let mut client = Client::of(cluster.address((host + 1) % 3));
                        let path = format!("/v1/entities/{name}/actions/Touch");
                        while client.post(&path) != 200 {}
                        begun.elapsed()
                    })
                })
                .collect();
            // The last one counts: all entities of the host.
            all.add(waiting.into_iter().map(|one| one.join().unwrap()).max());
        });
        cluster.restart(host);
    }
    println!("from `kill -9` until all entities of the host accept actions: {all}");
}

/// The memory of each of two hosts with many entities that sleep.
fn sleeping(server: &Server) {
    let count = std::env::var("SANDGLASS_SLEEPING").ok().and_then(|text| text.parse().ok());
    let count: usize = count.unwrap_or(100_000);
    let mut cluster = Cluster::start(server, 2);
    let created = AtomicU64::new(0);
    thread::scope(|threads| {
        for number in 0..AT_ONCE {
            let (cluster, created) = (&cluster, &created);
            threads.spawn(move || {
                let mut client = Client::of(cluster.address(number % 2));
                for nth in (number..count).step_by(AT_ONCE) {
                    assert_eq!(client.post(&format!("/v1/entities/Sleeper/{nth}")), 201);
                    let created = created.fetch_add(1, Ordering::Relaxed) + 1;
                    if created % 100_000 == 0 {
                        println!("{created} entities created");
                    }
                }
            });
        }
    });
    let memory = |cluster: &Cluster| {
        let all: Vec<String> =
            (0..2).map(|host| format!("{} MiB", cluster.resident_mib(host))).collect();
        all.join(" and ")
    };
    println!("{count} entities, created just now: {}", memory(&cluster));
    for host in 0..2 {
        cluster.kill(host);
        cluster.restart(host);
    }
    println!("{count} entities, after restarts of both hosts: {}", memory(&cluster));
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
