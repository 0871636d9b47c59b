//! A cluster of hosts that serve workflows, and what clients see of its runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::process::Stdio;
use std::sync::Mutex;

use sandglass_model::{EntityRef, Partition};
use serde_json::{Value, json};

use crate::binary::{Folder, LAMP, Running, fixture, sandglass};
use crate::client::{Ask, Frame, KEY, Reply, Stream};
use crate::server::{self, until};

pub(crate) const HOSTS: usize = 3;
/// How many nodes the workflow `steps` has.
pub(crate) const STEPS: usize = 8;
/// How often in a row the same owners are seen before a test begins: for some beats.
const STABLE_FOR: usize = 50;
const PARTITIONS: usize = Partition::COUNT as usize;

const CLUSTER_KEY: &str = "the-hosts-of-these-tests-share-this";
const PACKS: [&str; 2] = ["vendor.sandglass.samples", "vendor.sandglass.wat-echo"];

pub(crate) struct Cluster {
    folder: Folder,
    hosts: Vec<Option<Running>>,
    addresses: Vec<String>,
    /// The key with which each run was created.
    keys: Mutex<BTreeMap<String, String>>,
}

/// A workflow with these nodes, each of which follows the one before it.
fn workflow(id: &str, nodes: Vec<Value>, edges: &[(String, String)]) -> Value {
    let whole = |node: Value| {
        let mut whole = json!({
            "name": node["id"], "position": { "x": 0, "y": 0 }, "config": {}, "inputs": {},
        });
        whole.as_object_mut().unwrap().extend(node.as_object().unwrap().clone());
        whole
    };
    let edge = |(from, to): &(String, String)| json!({ "id": format!("{from}-{to}"), "sourceNodeId": from, "targetNodeId": to });
    json!({
        "id": id, "name": id, "version": "1.0",
        "nodes": nodes.into_iter().map(whole).collect::<Vec<_>>(),
        "edges": edges.iter().map(edge).collect::<Vec<_>>(),
        "triggers": [{ "id": "manual", "type": "manual", "enabled": true }],
        "variables": [], "metadata": {}, "settings": { "timeout": 0 },
    })
}

fn delay(id: &str, millis: u64) -> Value {
    let value = json!({ "delayMs": { "type": "static", "value": millis } });
    json!({ "id": id, "typeId": "core.delay", "inputs": value })
}

fn write_workflows(folder: &Folder) {
    for file in fs::read_dir(fixture("openwop/workflows")).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        folder.write(&format!("workflows/{name}"), fs::read(file.path()).unwrap());
    }
    let id = |number: usize| format!("step-{number}");
    let steps = (0..STEPS).map(|number| delay(&id(number), 400)).collect();
    let edges: Vec<_> = (1..STEPS).map(|number| (id(number - 1), id(number))).collect();
    let plan = json!([{ "kind": "next-worker", "nextWorkerIds": ["child"] }]);
    let parent = vec![
        json!({ "id": "boss", "typeId": "core.orchestrator.supervisor", "config": { "plan": plan } }),
        json!({ "id": "dispatch", "typeId": "core.dispatch" }),
    ];
    let [boss, dispatch] = ["boss", "dispatch"].map(str::to_owned);
    let loops = [(boss.clone(), dispatch.clone()), (dispatch, boss)];
    for (name, whole) in [
        ("steps", workflow("steps", steps, &edges)),
        ("child", workflow("child", vec![delay("wait", 4_000)], &[])),
        ("parent", workflow("parent", parent, &loops)),
    ] {
        folder.write(&format!("workflows/{name}.json"), whole.to_string());
    }
    for pack in PACKS {
        for file in fs::read_dir(fixture("openwop/packs").join(pack)).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            folder.write(&format!("packs/{pack}/{name}"), fs::read(file.path()).unwrap());
        }
    }
}

impl Cluster {
    /// Hosts on a new database, each of which owns something.
    pub(crate) fn start(database: &str) -> Self {
        Self::start_with(database, |_| {})
    }

    /// As [`Cluster::start`]. `change` changes the folder before the last host reads it.
    pub(crate) fn start_with(database: &str, change: impl Fn(&Folder)) -> Self {
        server::shared().psql("postgres", &format!("CREATE DATABASE {database}"));
        let url = server::shared().url(database);
        sandglass(&[&"journal", &"create", &url]).exits(0);
        let folder = Folder::new();
        folder.write("specs/lamp.ioa.toml", LAMP);
        folder.write("sandglass.toml", "[cluster]\nttl = \"2s\"\n");
        write_workflows(&folder);
        let mut cluster =
            Self { folder, hosts: Vec::new(), addresses: Vec::new(), keys: Mutex::default() };
        for host in 0..HOSTS {
            if host == HOSTS - 1 {
                change(&cluster.folder);
            }
            cluster.start_host(&url);
        }
        // Partitions move for some seconds after a host has come.
        let (mut owners, mut seen) = (BTreeMap::new(), 0);
        until(|| {
            let present = cluster.owners(0);
            let is_same = present == owners && (0..HOSTS).all(|host| cluster.is_whole(host));
            seen = if is_same { seen + 1 } else { 0 };
            owners = present;
            seen > STABLE_FOR
        });
        cluster
    }

    fn start_host(&mut self, url: &str) {
        let said = File::options().create(true).append(true).open(self.folder.path("said"));
        let [specs, config, workflows, packs] =
            ["specs", "sandglass.toml", "workflows", "packs"].map(|name| self.folder.path(name));
        let address = format!("127.0.0.1:{}", server::free_port());
        let advertised = format!("http://{address}");
        let arguments: [&dyn AsRef<std::ffi::OsStr>; 19] = [
            &"up",
            &"--specs",
            &specs,
            &"--config",
            &config,
            &"--workflows",
            &workflows,
            &"--packs",
            &packs,
            &"--journal-env",
            &"JOURNAL",
            &"--listen",
            &address,
            &"--advertise",
            &advertised,
            &"--api-key-env",
            &"OPENWOP_TESTS_KEY",
            &"--cluster-key-env",
            &"CLUSTER_KEY",
        ];
        let variables =
            [("JOURNAL", url), ("OPENWOP_TESTS_KEY", KEY), ("CLUSTER_KEY", CLUSTER_KEY)];
        let mut running =
            Running::with_variables(&variables, Stdio::from(said.unwrap()), &arguments);
        assert_eq!(running.address(), address);
        self.hosts.push(Some(running));
        self.addresses.push(address);
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, host: usize) {
        drop(self.hosts[host].take());
    }

    /// What its hosts have written to their standard error.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.folder.path("said")).unwrap()
    }

    fn cluster(&self, host: usize) -> Value {
        self.get(host, "/v1/cluster").expect(200)
    }

    /// Who owns each partition, as `host` sees it.
    fn owners(&self, host: usize) -> BTreeMap<u64, usize> {
        let view = self.cluster(host);
        let urls: BTreeMap<&str, &str> = view["hosts"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|host| Some((host["host"].as_str()?, host["url"].as_str()?)))
            .collect();
        let index = |owner: &str| {
            let address = urls.get(owner)?.strip_prefix("http://")?;
            self.addresses.iter().position(|one| one == address)
        };
        let owned =
            |one: &Value| Some((one["partition"].as_u64()?, index(one["owner"].as_str()?)?));
        view["partitions"].as_array().unwrap().iter().filter_map(owned).collect()
    }

    fn is_whole(&self, host: usize) -> bool {
        let owners = self.owners(host);
        owners.len() == PARTITIONS
            && (0..HOSTS).all(|one| owners.values().any(|owner| *owner == one))
    }

    /// Who owns a run, as the last host sees it.
    pub(crate) fn owner_of(&self, run: &str) -> Option<usize> {
        self.owners(HOSTS - 1).get(&partition_of(run)).copied()
    }

    /// Has a host give its partitions away.
    pub(crate) fn drain(&self, host: usize) {
        let view = self.cluster(host);
        let url = format!("http://{}", self.addresses[host]);
        let hosts = view["hosts"].as_array().unwrap();
        let id = &hosts.iter().find(|one| one["url"] == url).unwrap()["host"];
        let body = json!({ "host": id, "draining": true });
        self.post(host, "/v1/cluster/drain", &body).expect(200);
    }

    pub(crate) fn ask(&self, host: usize, ask: &Ask) -> Reply {
        let reply = ask.send(&self.addresses[host]);
        reply.unwrap_or_else(|| panic!("host {host} gave no whole response to {ask:?}"))
    }

    pub(crate) fn get(&self, host: usize, path: &str) -> Reply {
        self.ask(host, &Ask::new(&format!("GET {path}")).header("accept", "application/json"))
    }

    pub(crate) fn post(&self, host: usize, path: &str, body: &Value) -> Reply {
        self.ask(host, &Ask::new(&format!("POST {path}")).json(body))
    }

    pub(crate) fn keyed(&self, host: usize, path: &str, body: &Value, key: &str) -> Reply {
        let ask = Ask::new(&format!("POST {path}")).header("idempotency-key", key);
        self.ask(host, &ask.json(body))
    }

    pub(crate) fn create(&self, host: usize, body: &Value, key: &str) -> Reply {
        let reply = self.keyed(host, "/v1/runs", body, key);
        if let Some(run) = reply.body["runId"].as_str() {
            self.keys.lock().unwrap().insert(run.to_owned(), key.to_owned());
        }
        reply
    }

    /// The key with which a run was created.
    pub(crate) fn key_of(&self, run: &str) -> String {
        self.keys.lock().unwrap()[run].clone()
    }

    /// All events of a run so far, as `host` lists them.
    pub(crate) fn events(&self, host: usize, run: &str) -> Vec<Value> {
        let mut listed = self.get(host, &format!("/v1/runs/{run}/events")).expect(200);
        let Value::Array(events) = listed["events"].take() else { panic!("no list") };
        events
    }

    /// Its events up to its end, polled at one living host after the other.
    pub(crate) fn finished(&self, run: &str) -> Vec<Value> {
        self.until(run, |event| {
            let kind = event["type"].as_str().unwrap_or_default();
            ["run.completed", "run.failed", "run.cancelled"].contains(&kind)
        })
    }

    /// Its events up to the first that `holds`, or more, polled at one living host after the other.
    pub(crate) fn until(&self, run: &str, holds: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        let living = (0..HOSTS).filter(|host| self.hosts[*host].is_some());
        let mut hosts = living.collect::<Vec<_>>().into_iter().cycle();
        until(|| {
            let last = i64::try_from(all.len()).unwrap() - 1;
            let path = format!("/v1/runs/{run}/events/poll?lastSequence={last}&timeout=5");
            let mut reply = self.get(hosts.next().unwrap(), &path);
            if reply.status == 503 {
                return false;
            }
            assert_eq!(reply.status, 200, "{reply:?}");
            let Value::Array(events) = reply.body["events"].take() else { panic!("no list") };
            let found = events.iter().any(&holds);
            all.extend(events);
            assert!(found || reply.body["isComplete"] != true, "it never came: {all:#?}");
            found
        });
        for (number, event) in all.iter().enumerate() {
            assert_eq!(event["sequence"], number, "{all:#?}");
        }
        all
    }

    /// The stream of all events of a run behind number `last`.
    pub(crate) fn stream(&self, host: usize, run: &str, last: Option<u64>) -> Stream {
        self.stream_of(run, last).open(&self.addresses[host])
    }

    fn stream_of(&self, run: &str, last: Option<u64>) -> Ask {
        let ask = Ask::new(&format!("GET /v1/runs/{run}/events?streamMode=debug"));
        let ask = ask.header("accept", "text/event-stream");
        match last {
            Some(last) => ask.header("last-event-id", &last.to_string()),
            None => ask,
        }
    }

    /// As [`Cluster::stream`], as soon as the run has an owner again.
    pub(crate) fn stream_when_moved(&self, host: usize, run: &str, last: Option<u64>) -> Stream {
        until(|| {
            let reply = self.get(host, &format!("/v1/runs/{run}"));
            assert!([200, 503].contains(&reply.status), "{reply:?}");
            reply.status == 200
        });
        self.stream(host, run, last)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.hosts.clear();
        let said = self.said();
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "a test that fails shows what hosts wrote")]
            {
                eprintln!("{said}");
            }
        } else {
            assert!(!said.contains("panicked"), "{said}");
        }
    }
}

/// The number of the partition of a run.
pub(crate) fn partition_of(run: &str) -> u64 {
    Partition::of(&EntityRef::new("OpenwopRun", run).unwrap()).number().into()
}

/// What a reader of a stream has seen.
#[derive(Default)]
pub(crate) struct Seen(Vec<(u64, String)>);

impl Seen {
    pub(crate) fn take(&mut self, frame: Frame) {
        if let Frame::Event { id, event, .. } = frame {
            self.0.push((id, event));
        }
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.0.iter().map(|(id, _)| *id).collect()
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.0.last().map(|(id, _)| *id)
    }

    pub(crate) fn count(&self, kind: &str) -> usize {
        self.0.iter().filter(|(_, event)| event == kind).count()
    }

    pub(crate) fn is_over(&self) -> bool {
        ["run.completed", "run.failed", "run.cancelled"].iter().any(|kind| self.count(kind) > 0)
    }
}
