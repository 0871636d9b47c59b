//! Hosts on one database, as processes on this machine.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use sandglass_model::{EntityRef, Partition};
use serde_json::Value;

use crate::binary::{Folder, Running, with_variable};
use crate::client::Client;
use crate::server::{Server, free_port};

const JOURNAL: &str = "JOURNAL";
/// How long a cluster may take until each host has its part.
const BALANCED_WITHIN: Duration = Duration::from_secs(60);

const COUNTER: &str = r#"
[automaton]
name = "Counter"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[action]]
name = "Touch"
from = ["Open"]
"#;

const WORKER: &str = r#"
[automaton]
name = "Worker"
states = ["Idle", "Running"]
initial = "Idle"
allow_indefinite_states = ["Idle", "Running"]

[[action]]
name = "Begin"
from = ["Idle"]
to = "Running"
effect = ["trigger work"]

[[action]]
name = "Finish"
from = ["Running"]
to = "Idle"

[[integration]]
name = "work"
module = "work"
deadline = "60s"
on_success = "Finish"
on_failure = "Finish"
on_timeout = "Finish"
on_interrupted = "Finish"
"#;

/// Its timer fires after the measurement.
const SLEEPER: &str = r#"
[automaton]
name = "Sleeper"
states = ["Asleep", "Awake"]
initial = "Asleep"
allow_indefinite_states = ["Awake"]

[[action]]
name = "Wake"
from = ["Asleep"]
to = "Awake"

[[state_timeout]]
state = "Asleep"
after_seconds = 864000
on_timeout = "Wake"
"#;

const GUEST: &str = r#"(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
  (func (export "run") (param i32 i32) (result i32)
    (call $set_result (i32.const 16) (i32.const 46))
    (i32.const 0)))
"#;

const MANIFEST: &str = "name = \"work\"\nmodule = \"work.wat\"\nabi = \"core\"\n";

pub(crate) struct Cluster {
    folder: Folder,
    journal: String,
    hosts: Vec<Host>,
}

struct Host {
    address: String,
    running: Option<Running>,
}

impl Cluster {
    /// Starts `hosts` hosts on a new database, and waits until each owns partitions.
    pub(crate) fn start(server: &Server, hosts: usize) -> Self {
        server.psql("postgres", "DROP DATABASE IF EXISTS hosts WITH (FORCE)");
        server.psql("postgres", "CREATE DATABASE hosts");
        let journal = server.url("hosts");
        with_variable(JOURNAL, &journal, &[&"journal", &"create", &"env:JOURNAL"]).exits(0);
        let folder = Folder::new();
        for (name, text) in [("counter", COUNTER), ("worker", WORKER), ("sleeper", SLEEPER)] {
            folder.write(&format!("specs/{name}.ioa.toml"), text);
        }
        folder.write("specs/integration.toml", MANIFEST);
        folder.write("specs/work.wat", GUEST);
        let host = |_| Host { address: format!("127.0.0.1:{}", free_port()), running: None };
        let mut cluster = Self { folder, journal, hosts: (0..hosts).map(host).collect() };
        (0..hosts).for_each(|host| cluster.run(host));
        cluster.until_balanced(None);
        cluster
    }

    fn run(&mut self, host: usize) {
        let (specs, address) = (self.folder.path("specs"), self.hosts[host].address.clone());
        let url = format!("http://{address}");
        let mut running = Running::with_variables(
            &[(JOURNAL, &*self.journal)],
            Stdio::null(),
            &[
                &"up",
                &"--specs",
                &specs,
                &"--journal-env",
                &JOURNAL,
                &"--listen",
                &address,
                &"--advertise",
                &url,
            ],
        );
        running.address();
        self.hosts[host].running = Some(running);
    }

    /// Ends a host by SIGKILL.
    pub(crate) fn kill(&mut self, host: usize) {
        drop(self.hosts[host].running.take());
    }

    /// Starts a host again, and waits until it has its part.
    pub(crate) fn restart(&mut self, host: usize) {
        self.run(host);
        self.until_balanced(None);
    }

    pub(crate) fn address(&self, host: usize) -> &str {
        &self.hosts[host].address
    }

    /// A client of each host.
    pub(crate) fn clients(&self) -> Vec<Client> {
        self.hosts.iter().map(|host| Client::of(&host.address)).collect()
    }

    /// Lets a host give its partitions away, or take them back.
    pub(crate) fn drain(&self, host: usize, is_draining: bool) {
        let body = format!("{{\"draining\":{is_draining}}}");
        let sent = Client::of(&self.hosts[host].address).send("POST", "/v1/cluster/drain", &body);
        assert_eq!(sent.map(|(status, _)| status), Some(200));
    }

    /// The host that owns each partition.
    pub(crate) fn owners(&self) -> BTreeMap<Partition, usize> {
        self.owned().expect("each partition has an owner")
    }

    /// The owners, if each partition is owned by one of these hosts.
    fn owned(&self) -> Option<BTreeMap<Partition, usize>> {
        let running = self.hosts.iter().find(|host| host.running.is_some())?;
        let (_, body) = Client::of(&running.address).send("GET", "/v1/cluster", "")?;
        let cluster: Value = serde_json::from_slice(&body).ok()?;
        let index_of = |id: &Value| {
            let host = cluster["hosts"].as_array()?.iter().find(|host| host["host"] == *id)?;
            let url = host["url"].as_str()?;
            self.hosts.iter().position(|host| url.ends_with(&host.address))
        };
        let partitions = cluster["partitions"].as_array()?.iter();
        let owners: Option<BTreeMap<Partition, usize>> = partitions
            .map(|row| {
                let number = u8::try_from(row["partition"].as_u64()?).ok()?;
                Some((Partition::new(number)?, index_of(&row["owner"])?))
            })
            .collect();
        owners.filter(|owners| owners.len() == usize::from(Partition::COUNT))
    }

    /// Waits until each host but `without` owns partitions, `without` owns none, and nothing has changed for
    /// 1.5 s.
    pub(crate) fn until_balanced(&self, without: Option<usize>) {
        let begun = Instant::now();
        let (mut last, mut since) = (None, Instant::now());
        loop {
            let owned = self.owned();
            if owned != last {
                (last, since) = (owned, Instant::now());
            }
            let is_balanced = last.as_ref().is_some_and(|owners| {
                let owns = |host| owners.values().any(|owner| *owner == host);
                (0..self.hosts.len()).all(|host| owns(host) == (Some(host) != without))
            });
            if is_balanced && since.elapsed() > Duration::from_millis(1_500) {
                return;
            }
            assert!(begun.elapsed() < BALANCED_WITHIN, "the hosts do not share the partitions");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The memory of a host.
    pub(crate) fn resident_mib(&self, host: usize) -> u64 {
        let id = self.hosts[host].running.as_ref().expect("it runs").id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
        kib.expect("a number") / 1_024
    }
}

pub(crate) fn partition_of(name: &str) -> Partition {
    Partition::of(&name.parse::<EntityRef>().expect("a name"))
}

/// The name of an entity for each partition.
pub(crate) fn entities_of_all_partitions(kind: &str) -> Vec<String> {
    let mut entities = BTreeMap::new();
    for number in 0.. {
        if entities.len() == usize::from(Partition::COUNT) {
            break;
        }
        let name = format!("{kind}/{number}");
        entities.entry(partition_of(&name)).or_insert(name);
    }
    entities.into_values().collect()
}
