//! Generations of a cluster, as operators see and activate them.

use std::sync::{Arc, Mutex};

use futures_util::future::{BoxFuture, FutureExt as _, ready};
use sandglass_daemon::{
    Cluster, Deployment, DeploymentError, Deployments, ExpectedActive, Key, Keys, Permission,
    Route, UploadedModule,
};
use sandglass_model::{DeploymentStatus, WallTime};
use serde_json::{Value, json};

use crate::client::Answer;
use crate::cluster::ANN;
use crate::peers::{Fake, OTHER, OWNER};
use crate::world::{FINISHES, Make, World};

const BOB: &str = "bobs-key-is-for-looking";

/// Generations as a test sets them.
#[derive(Debug, Default)]
struct Set {
    next: Mutex<Option<DeploymentError>>,
    activated: Mutex<Vec<(u64, ExpectedActive)>>,
    uploaded: Mutex<Vec<UploadedModule>>,
    runs_none: Mutex<bool>,
}

impl Set {
    fn result<T>(&self, value: T) -> Result<T, DeploymentError> {
        self.next.lock().expect("no panic").take().map_or(Ok(value), Err)
    }

    fn fail(&self, error: DeploymentError) {
        *self.next.lock().expect("no panic") = Some(error);
    }
}

impl Deployments for Set {
    fn list(&self) -> Arc<[Deployment]> {
        let one = |generation, activated: Option<i64>| Deployment {
            generation,
            proposed_by: "http://host-1:7341".to_owned(),
            version: "0.1.0".to_owned(),
            at: WallTime::from_millis(5),
            activated: activated.map(WallTime::from_millis),
        };
        Arc::new([one(1, Some(6)), one(2, Some(7)), one(3, None)])
    }

    fn has_generation(&self) -> bool {
        !*self.runs_none.lock().expect("no panic")
    }

    fn activate(
        &self,
        generation: u64,
        replaced: ExpectedActive,
    ) -> BoxFuture<'_, Result<Option<u64>, DeploymentError>> {
        self.activated.lock().expect("no panic").push((generation, replaced));
        ready(self.result(Some(2))).boxed()
    }

    fn upload(&self, module: UploadedModule) -> BoxFuture<'_, Result<(), DeploymentError>> {
        self.uploaded.lock().expect("no panic").push(module);
        ready(self.result(())).boxed()
    }

    fn upgrade_format(&self) -> BoxFuture<'_, Result<u32, DeploymentError>> {
        ready(self.result(1)).boxed()
    }
}

fn world() -> (World, Arc<Set>, Arc<Fake>) {
    let (set, peers) = (Arc::new(Set::default()), Fake::new(OWNER, Route::Here));
    let cluster = Cluster {
        peers: Arc::clone(&peers) as Arc<_>,
        key: None,
        has_certificates: false,
        deployments: Some(Arc::clone(&set) as Arc<dyn Deployments>),
    };
    let keys: Keys = [
        Key::new("ann", ANN).expect("a key"),
        Key::new("bob", BOB).expect("a key").may([Permission::Read]),
    ]
    .into_iter()
    .collect();
    (World::of(Make { cluster: Some(cluster), keys, ..Make::default() }), set, peers)
}

fn post(world: &World, key: &str, path: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    world.ask("POST", path, &headers, body.to_string().as_bytes())
}

#[test]
fn an_operator_activates_a_generation() {
    let (world, set, _) = world();
    let activate = |body: &Value| post(&world, ANN, "/v1/cluster/activate", body);
    let done = activate(&json!({"generation": 3})).is(200).json();
    assert_eq!(done, json!({"generation": 3, "replaced": 2}));
    activate(&json!({"generation": 1, "replacing": 2})).is(200);
    let activated = set.activated.lock().expect("no panic").clone();
    assert_eq!(activated, [(3, ExpectedActive::Present), (1, ExpectedActive::Only(2))]);
    activate(&json!({})).refuses(400, "bad_body");
    activate(&json!({"generation": "3"})).refuses(400, "bad_body");
    let why = || "a secret has no value".to_owned();
    for (error, status, code) in [
        (DeploymentError::Unknown, 404, "unknown_generation"),
        (DeploymentError::Conflict { active: Some(4) }, 409, "generation_replaced"),
        (DeploymentError::Refused(why()), 422, "generation_refused"),
        (DeploymentError::Unavailable(why()), 503, "journal_unavailable"),
    ] {
        set.fail(error);
        activate(&json!({"generation": 3})).refuses(status, code);
    }
    post(&world, BOB, "/v1/cluster/activate", &json!({"generation": 3})).refuses(403, "forbidden");
    let alone = World::new();
    alone.post("/v1/cluster/activate", "{\"generation\": 3}").refuses(404, "no_cluster");
    alone.post("/v1/cluster/upgrade-format", "").refuses(404, "no_cluster");
}

#[test]
fn a_newer_format_is_refused_as_long_as_a_host_cannot_read_it() {
    let (world, set, _) = world();
    let upgrade = |key| post(&world, key, "/v1/cluster/upgrade-format", &json!({}));
    assert_eq!(upgrade(ANN).is(200).json(), json!({"writes_format": 1}));
    set.fail(DeploymentError::Unreadable("host-2 reads up to 0".to_owned()));
    let refused = upgrade(ANN).refuses(409, "format_unreadable");
    assert_eq!(refused["message"], "host-2 reads up to 0");
    upgrade(BOB).refuses(403, "forbidden");
}

#[test]
fn the_cluster_shows_generations_and_what_each_host_runs() {
    let (world, set, peers) = world();
    peers.change(|table| {
        table.membership.agreed.generation = Some(2);
        for host in &mut table.membership.hosts {
            host.deployed = match host.host {
                OTHER => {
                    DeploymentStatus { generation: Some(1), trouble: Some("no secret".to_owned()) }
                }
                _ => DeploymentStatus { generation: Some(2), trouble: None },
            };
        }
    });
    let shown = world.send(BOB, "GET", "/v1/cluster", &[]).is(200).json();
    assert_eq!(shown["generation"], 2);
    let of = |list: &str, key: &str| -> Vec<Value> {
        shown[list].as_array().expect("a list").iter().map(|one| one[key].clone()).collect()
    };
    assert_eq!(of("generations", "state"), ["replaced", "active", "proposed"]);
    assert_eq!(of("generations", "activated_at"), [json!(6), json!(7), Value::Null]);
    assert_eq!(of("hosts", "generation"), [1, 2, 2]);
    assert_eq!(of("hosts", "error"), [json!("no secret"), Value::Null, Value::Null]);
    world.get("/healthz").is(200);
    *set.runs_none.lock().expect("no panic") = true;
    let health = world.get("/healthz").is(503).json();
    assert_eq!(health["reasons"][0]["code"], "deployment");
}

#[test]
fn a_module_is_checked_before_it_becomes_a_generation() {
    let (world, set, _) = world();
    let put = |name: &str, bytes: &[u8]| {
        let bearer = format!("Bearer {ANN}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/wasm")];
        world.ask("PUT", &format!("/v1/modules/{name}"), &headers, bytes)
    };
    let binary = wat::parse_str(FINISHES).expect("it is text");
    put("none", &binary).refuses(404, "unknown_module");
    put("waits", b"\0asm\x01\0\0\0").refuses(422, "module_refused");
    assert!(set.uploaded.lock().expect("no panic").is_empty());
    put("waits", &binary).is(200);
    let uploaded = set.uploaded.lock().expect("no panic").clone();
    assert_eq!((uploaded[0].name.as_str(), uploaded[0].by.as_str()), ("waits", "ann"));
    set.fail(DeploymentError::Conflict { active: None });
    put("waits", &binary).refuses(409, "generation_replaced");
}
