//! Several hosts on one database, as processes under load, while they, the database and the connections
//! between them fail by a plan that the seed decides. Afterwards the histories of clients, of the effect
//! server and of the database are compared: nothing acknowledged is lost, nothing is done twice, nothing
//! stays without an owner or an end, and no host has an effect without a lease.
//!
//! `SANDGLASS_FAULTS` is the number of faults (12 if it is not set), `SANDGLASS_HOSTS` that of hosts (3; 1
//! is a process in no cluster), and `SANDGLASS_SEED` repeats a plan, but not its timing. `.ci/cluster`
//! runs it.

#![allow(clippy::print_stdout, reason = "faults and figures of the trial")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod binary;
#[path = "cluster/clients.rs"]
mod clients;
#[path = "cluster/effects.rs"]
mod effects;
#[path = "cluster/figures.rs"]
mod figures;
#[path = "cluster/handlers.rs"]
mod handlers;
#[path = "cluster/history.rs"]
mod history;
#[path = "cluster/host.rs"]
mod host;
#[path = "recovery/http.rs"]
mod http;
#[path = "cluster/nemesis.rs"]
mod nemesis;
#[path = "recovery/place.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod place;
#[path = "cluster/plan.rs"]
mod plan;
#[path = "cluster/planted.rs"]
mod planted;
#[path = "cluster/probes.rs"]
mod probes;
#[path = "../crates/sandglass-postgres/tests/server/proxy.rs"]
mod proxy;
#[path = "recovery/random.rs"]
mod random;
#[path = "cluster/requests.rs"]
mod requests;
#[path = "outages/rig.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod rig;
#[path = "../crates/sandglass-postgres/tests/server/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
#[allow(clippy::disallowed_methods, reason = "it waits for real servers")]
mod server;
#[path = "cluster/specs.rs"]
mod specs;
#[path = "cluster/timers.rs"]
mod timers;
#[path = "cluster/verify.rs"]
mod verify;

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sandglass_model::{Clock as _, Cursor, Record};
use serde_json::json;

use binary::{Folder, sandglass};
use clients::{Client, World};
use effects::Effects;
use figures::Figures;
use history::{Kind, Observed, Violation};
use host::Host;
use nemesis::Nemesis;
use place::Place as _;
use plan::plan;
use probes::Probes;
use random::Random;
use rig::Rig;
use server::{Server, pause};
use specs::RULES;

const FAULTS: usize = 12;
const HOSTS: usize = 3;
const CLIENTS: usize = 8;
/// How long handlers and timers may take to end after the last fault.
const SETTLES_WITHIN: Duration = Duration::from_secs(120);
/// How much of the standard error of the hosts a failed test shows.
const SHOWN: usize = 20_000;

/// Lets clients end, also if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Shows what hosts wrote to their standard error if the test fails.
struct Said<'a>(&'a Folder, u64);

impl Drop for Said<'_> {
    #[expect(clippy::print_stderr, reason = "a test that fails states how to repeat it")]
    fn drop(&mut self) {
        if thread::panicking() {
            let said = fs::read_to_string(self.0.path("said")).unwrap_or_default();
            let from = said.len().saturating_sub(SHOWN);
            let from = (from..said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(0);
            eprintln!("{}\nit failed with SANDGLASS_SEED={}", &said[from..], self.1);
        }
    }
}

fn number<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// The records of all partitions that were read so far.
struct Log {
    after: Cursor,
    records: Vec<(usize, Record)>,
}

impl Log {
    fn read_on(&mut self, rig: &Rig) {
        self.records.extend(rig.read_to_end(&mut self.after));
    }
}

/// Waits until all handlers have ended and all timers have fired, or until that is late.
fn settle(nemesis: &Nemesis<'_>, log: &mut Log) {
    let late = nemesis.world.clock.wall().after(SETTLES_WITHIN);
    loop {
        if !nemesis.is_busy() {
            log.read_on(&nemesis.rig);
            let records = std::mem::take(&mut log.records);
            let observed = Observed { records, ..Observed::default() };
            let open = |one: &Violation| matches!(one.kind, Kind::NeverEnded | Kind::TimerLost);
            let is_settled = !verify::verify(&observed, &RULES).iter().any(open);
            log.records = observed.records;
            if is_settled {
                return;
            }
        }
        if nemesis.world.clock.wall() > late {
            return;
        }
        pause();
    }
}

/// Checks what the commands for people find in the database.
fn check_with_commands(rig: &Rig) {
    let url = rig.url();
    let replay = sandglass(&[&"replay", &url, &"--json"]).exits(0).json_lines().remove(0);
    assert_eq!(replay["divergence_count"], 0, "{replay}");
    let check = sandglass(&[&"journal", &"check", &url, &"--json"]).exits(0);
    let check = check.json_lines().remove(0);
    assert_eq!(check["flaw_count"], 0, "{check}");
}

fn end_all(nemesis: &mut Nemesis<'_>) {
    for host in &mut nemesis.hosts {
        let code = host.terminate();
        if code != Some(0) {
            let what = format!("host {} ended with {code:?} after SIGTERM", host.life.host);
            nemesis.violations.push(Violation::new(Kind::Ended, what));
        }
    }
    let said = fs::read_to_string(nemesis.folder.path("said")).unwrap_or_default();
    if let Some(line) = said.lines().find(|line| line.contains("panicked")) {
        nemesis.violations.push(Violation::new(Kind::Ended, line));
    }
}

#[test]
fn a_cluster_keeps_its_promises_whatever_fails() {
    let seed = number("SANDGLASS_SEED").unwrap_or_else(|| RandomState::new().hash_one(()));
    let faults = number("SANDGLASS_FAULTS").unwrap_or(FAULTS);
    let count = number("SANDGLASS_HOSTS").unwrap_or(HOSTS);
    assert!((1..=4).contains(&count), "SANDGLASS_HOSTS has to be from 1 to 4");
    let only = std::env::var("SANDGLASS_KINDS").ok().filter(|names| !names.is_empty());
    let only = only.map(|names| {
        plan::kinds(&names)
            .unwrap_or_else(|| panic!("SANDGLASS_KINDS has an unknown kind: {names}"))
    });
    println!("{count} hosts, {faults} faults with SANDGLASS_SEED={seed}");
    let mut random = Random::new(!seed);
    let effects = Effects::start(random.fork());
    let folder = specs::folder(effects.port);
    let said = Said(&folder, seed);
    let server = Server::start(&["wal_level = replica", "max_connections = 200"]);
    let rig = Rig::with_links(server, count);
    let journals: Vec<String> = rig.links.iter().map(|link| link.url.clone()).collect();
    let hosts = journals.into_iter().enumerate();
    let hosts: Vec<Host> = hosts.map(|(index, url)| Host::new(index, url, count == 1)).collect();
    let world = World::new(hosts.iter().map(|host| host.address.clone()).collect());
    let probes = Probes::new();
    let mut nemesis = Nemesis {
        rig,
        hosts,
        folder: &folder,
        world: &world,
        probes: &probes,
        figures: Figures::default(),
        happened: Vec::new(),
        violations: Vec::new(),
    };
    nemesis.begin();
    nemesis.measure_forwards(2);
    let mut clients: Vec<Client<'_>> =
        (0..CLIENTS).map(|nth| Client::new(nth, random.fork(), &world)).collect();
    clients[0].prepare();
    thread::scope(|threads| {
        let _ending = Ending(&world.is_ending);
        for client in &mut clients {
            threads.spawn(|| client.live());
        }
        let began = world.clock.wall();
        for step in plan(seed, count, faults, only.as_deref()) {
            println!("{:>7.1?} {:?}", world.clock.wall().since(began), step.fault);
            nemesis.step(step);
        }
    });
    let mut log = Log { after: Cursor::start(nemesis.rig.journals()), records: Vec::new() };
    settle(&nemesis, &mut log);
    end_all(&mut nemesis);
    nemesis.rig.settle();
    log.read_on(&nemesis.rig);
    let Nemesis { rig, figures, happened, mut violations, .. } = nemesis;
    let (requests, effects) = (world.take_requests(), effects.seen());
    let observed = Observed { requests, records: log.records, effects, faults: happened };
    violations.extend(verify::verify(&observed, &RULES));
    violations.extend(verify::failed_in_moves(&observed));
    let mut summary = figures.to_json();
    let figures = json!({
        "seed": seed,
        "hosts": count,
        "requests": verify::count(&observed),
        "failed_in_moves": violations.iter().filter(|one| one.kind == Kind::FailedInMove).count(),
        "records": observed.records.len(),
        "effects": observed.effects.len(),
        "violations": violations.len(),
    });
    summary.extend(figures.as_object().cloned().unwrap_or_default());
    println!("{}", serde_json::Value::Object(summary));
    violations.iter().take(40).for_each(|one| println!("{:?}: {}", one.kind, one.what));
    assert!(violations.is_empty(), "{} violations", violations.len());
    check_with_commands(&rig);
    drop(said);
}
