//! The hosts of a trial: processes on this machine, each with its own ways to the database and to its
//! peers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::binary::{Folder, Running};
use crate::effects;
use crate::history::Life;
use crate::http::{Reply, exchange};
use crate::plan::Cut;
use crate::proxy::{Flow, Proxy};
use crate::server::until;
use crate::specs::HOST_VARIABLE;

/// The variable with the URL of the database.
const JOURNAL_VARIABLE: &str = "JOURNAL";
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Host {
    pub(crate) life: Life,
    pub(crate) address: String,
    /// The URL by which peers reach it, through a proxy; `None` for a process that is in no cluster.
    url: Option<String>,
    peers: Proxy,
    /// Its way to the database.
    journal: String,
    running: Option<Running>,
}

impl Host {
    pub(crate) fn new(index: usize, journal: String, is_alone: bool) -> Self {
        let port = quiet_port(2 * index);
        let peers = Proxy::on(quiet_port(2 * index + 1), port);
        let url = (!is_alone).then(|| format!("http://127.0.0.1:{}", peers.port));
        let (life, address) = (Life { host: index, start: 0 }, format!("127.0.0.1:{port}"));
        Self { life, address, url, peers, journal, running: None }
    }

    /// Starts it, and waits until it listens. Its standard error goes behind that of its earlier lives.
    pub(crate) fn start(&mut self, folder: &Folder) {
        self.life.start += 1;
        self.peers.refuse(false);
        let errors = File::options().create(true).append(true).open(folder.path("said"));
        let (specs, configuration) = (folder.path("specs"), folder.path("sandglass.toml"));
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![
            &"up",
            &"--specs",
            &specs,
            &"--config",
            &configuration,
            &"--listen",
            &self.address,
            &"--journal-env",
            &JOURNAL_VARIABLE,
        ];
        if let Some(url) = &self.url {
            arguments.extend([&"--advertise" as &dyn AsRef<std::ffi::OsStr>, url]);
        }
        let name = effects::name(self.life);
        let variables = [(JOURNAL_VARIABLE, &*self.journal), (HOST_VARIABLE, &*name)];
        let mut running =
            Running::with_variables(&variables, Stdio::from(errors.expect("made")), &arguments);
        assert_eq!(running.address(), self.address);
        self.running = Some(running);
    }

    /// SIGKILL. The machine then refuses connections to it.
    pub(crate) fn kill(&mut self) {
        drop(self.running.take());
        self.peers.refuse(true);
    }

    /// SIGTERM; returns the exit code when it has ended.
    pub(crate) fn terminate(&mut self) -> Option<i32> {
        let running = self.running.take()?;
        running.signal("TERM");
        until(|| !is_alive(&running));
        self.peers.refuse(true);
        running.ended().code()
    }

    pub(crate) fn signal(&self, name: &str) {
        if let Some(running) = &self.running {
            running.signal(name);
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.running.as_ref().is_some_and(is_alive)
    }

    /// Begins or ends a cut of its peers' connections to it.
    pub(crate) fn cut_peers(&self, how: Cut, begins: bool) {
        apply(
            how,
            begins,
            || self.peers.cut(),
            |is_closed| self.peers.close(is_closed),
            |flow| self.peers.set(flow, flow),
        );
    }

    /// A request to it as an operator; `None` if it did not respond.
    pub(crate) fn ask(&self, request: &str, body: &Value) -> Option<(u16, Value)> {
        match exchange(&self.address, request, "", body, PATIENCE) {
            Reply::Complete(status, body) => Some((status, body)),
            Reply::Refused | Reply::Broken => None,
        }
    }

    /// Who owns what, as it sees it.
    pub(crate) fn membership(&self, hosts: &[Self]) -> Option<Membership> {
        match self.ask("GET /v1/cluster", &Value::Null)? {
            (200, body) => Membership::of_hosts(&body, hosts),
            _ => None,
        }
    }

    /// Lets a host of this id give its partitions away, or no longer.
    pub(crate) fn drain(&self, id: &str, is_draining: bool) -> Option<(u16, Value)> {
        self.ask("POST /v1/cluster/drain", &json!({"host": id, "draining": is_draining}))
    }
}

fn is_alive(running: &Running) -> bool {
    // A process that has ended has no program any more.
    std::fs::exists(format!("/proc/{}/exe", running.id())).is_ok_and(|is_there| is_there)
}

/// Begins or ends a cut, by means that exist for it.
pub(crate) fn apply(
    how: Cut,
    begins: bool,
    cut: impl Fn(),
    close: impl Fn(bool),
    set: impl Fn(Flow),
) {
    match how {
        Cut::Close => {
            close(begins);
            cut();
        }
        Cut::Hold => set(if begins { Flow::Hold } else { Flow::Pass }),
        Cut::Delay(length) => set(if begins { Flow::Delay(length) } else { Flow::Pass }),
        Cut::Reset if begins => cut(),
        Cut::Reset => {}
    }
}

/// A free port that no outgoing connection takes: a host that is started again needs the same one.
fn quiet_port(nth: usize) -> u16 {
    let from = u16::try_from(20_000 + 1_000 * nth).expect("there are few hosts");
    let start = from + u16::try_from(std::process::id() % 500).expect("it is small");
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (start..start + 500).find(is_free).expect("a free port")
}

/// The owners of all partitions, by what `GET /v1/cluster` returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Membership {
    /// The id of each live process, by its index.
    pub(crate) ids: BTreeMap<usize, String>,
    /// The index of the live owner of each partition.
    pub(crate) owners: BTreeMap<u64, Option<usize>>,
}

impl Membership {
    /// Of these hosts; `None` if it has another form than documented.
    pub(crate) fn of_hosts(body: &Value, hosts: &[Host]) -> Option<Self> {
        Self::of(body, |url| hosts.iter().position(|host| host.url.as_deref() == Some(url)))
    }

    /// `None` if it has another form than documented.
    fn of(body: &Value, index: impl Fn(&str) -> Option<usize>) -> Option<Self> {
        let mut membership = Self::default();
        let mut indexes = BTreeMap::new();
        for host in body["hosts"].as_array()? {
            let (id, state) = (host["host"].as_str()?, host["state"].as_str()?);
            let index = host["url"].as_str().and_then(&index);
            if let (Some(index), "live" | "draining") = (index, state) {
                indexes.insert(id, index);
                membership.ids.insert(index, id.to_owned());
            }
        }
        for partition in body["partitions"].as_array()? {
            partition["epoch"].as_u64()?;
            let owner = partition["owner"].as_str().and_then(|id| indexes.get(id).copied());
            membership.owners.insert(partition["partition"].as_u64()?, owner);
        }
        Some(membership)
    }

    pub(crate) fn owned_by(&self, host: usize) -> Vec<usize> {
        let owned = self.owners.iter().filter(|(_, owner)| **owner == Some(host));
        owned.filter_map(|(partition, _)| usize::try_from(*partition).ok()).collect()
    }

    /// Whether each of so many partitions has a live owner, and each of so many hosts owns one.
    pub(crate) fn is_whole(&self, partitions: usize, hosts: usize) -> bool {
        let owners: BTreeSet<usize> = self.owners.values().copied().flatten().collect();
        self.owners.len() == partitions
            && self.owners.values().all(Option::is_some)
            && owners.len() == hosts
    }
}

#[test]
fn a_membership_is_whole_if_all_partitions_have_live_owners() {
    let of = |state: &str, owner: Value| {
        let host = |id: &str, state: &str| json!({"host": id, "url": format!("http://{id}"), "state": state, "partitions": 1});
        let partition =
            |number: u64, owner: Value| json!({"partition": number, "owner": owner, "epoch": 4});
        let body = json!({
            "hosts": [host("a", "live"), host("b", state), host("c", "dead")],
            "partitions": [partition(0, "a".into()), partition(1, owner)],
        });
        let index =
            |url: &str| ["http://a", "http://b", "http://c"].iter().position(|it| *it == url);
        Membership::of(&body, index).unwrap()
    };
    let whole = of("live", "b".into());
    assert!(whole.is_whole(2, 2) && !whole.is_whole(3, 2) && !whole.is_whole(2, 3));
    assert_eq!((whole.owned_by(1), whole.owned_by(2)), (vec![1], vec![]));
    assert_eq!(whole.ids.get(&1).map(String::as_str), Some("b"));
    assert!(!of("silent", "b".into()).is_whole(2, 2));
    assert!(!of("live", Value::Null).is_whole(2, 2));
    assert!(!of("live", "c".into()).is_whole(2, 2), "a dead host owns nothing");
    assert_eq!(Membership::of(&json!({"hosts": []}), |_| None), None);
}
