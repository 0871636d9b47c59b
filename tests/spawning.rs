//! Effects that emit events and create other entities, in a daemon that is killed and started again.

mod binary;

use std::ffi::OsStr;
use std::process::Stdio;

use binary::{Folder, Running, answer_of, sandglass};
use serde_json::{Value, json};

const ORDER: &str = r#"
[automaton]
name = "Order"
states = ["Open", "Closed"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[action]]
name = "Ship"
from = ["Open"]
params = ["id", "street"]
effect = [
  { type = "emit", event = "Shipping" },
  { type = "spawn", entity_type = "Parcel", entity_id_source = "id", initial_action = "Send", store_id_in = "parcel" },
]

[[action]]
name = "Close"
from = ["Open"]
to = "Closed"
"#;

const PARCEL: &str = r#"
[automaton]
name = "Parcel"
states = ["Packed", "Sent", "Lost"]
initial = "Packed"
allow_indefinite_states = ["Packed", "Sent"]

[[state]]
name = "street"
type = "string"

[[state]]
name = "order_id"
type = "string"

[[action]]
name = "Send"
from = ["Packed"]
to = "Sent"
params = ["street"]

[[action]]
name = "Lose"
from = ["Sent"]
to = "Lost"
"#;

fn up(folder: &Folder) -> (Running, String) {
    let (specs, journal) = (folder.path("."), folder.path("runs.db"));
    let arguments: [&dyn AsRef<OsStr>; 7] =
        [&"up", &"--specs", &specs, &"--journal", &journal, &"--listen", &"127.0.0.1:0"];
    let mut running = Running::with_variables(&[], Stdio::null(), &arguments);
    let address = running.address();
    (running, address)
}

fn request(address: &str, request: &str, body: &Value) -> (u16, String) {
    let kind = "content-type: application/json\r\n";
    answer_of(address, request, kind, body.to_string().as_bytes())
}

fn entity(address: &str, name: &str) -> Value {
    let (status, body) = answer_of(address, &format!("GET /v1/entities/{name}"), "", b"");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

#[test]
fn a_spawned_entity_exists_once_with_what_its_parent_gave_it() {
    let folder = Folder::new();
    folder.write("order.ioa.toml", ORDER);
    folder.write("parcel.ioa.toml", PARCEL);
    sandglass(&[&"check", &folder.path(".")]).exits(0);
    let (running, address) = up(&folder);
    assert_eq!(request(&address, "POST /v1/entities/Order/7", &json!({})).0, 201);
    let ship = json!({ "params": { "id": "p1", "street": "Elm" } });
    let (status, body) = request(&address, "POST /v1/entities/Order/7/actions/Ship", &ship);
    assert_eq!(status, 200, "{body}");
    let parcel = entity(&address, "Parcel/p1");
    assert_eq!((&parcel["state"], &parcel["sequence"]), (&json!("Sent"), &json!(1)));
    let fields = &parcel["fields"];
    assert_eq!((&fields["street"], &fields["order_id"]), (&json!("Elm"), &json!("7")));
    let order = entity(&address, "Order/7");
    // Neither the id that is stored nor the param has a variable.
    assert_eq!((&order["fields"]["parcel"], &order["spawning"]), (&json!("p1"), &json!([])));
    assert_eq!(order["fields"]["street"], "Elm", "{order}");
    // The id is taken, so the action is refused, and changes nothing.
    let (status, body) = request(&address, "POST /v1/entities/Order/7/actions/Ship", &ship);
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("not_taken") && body.contains("Parcel/p1"), "{body}");
    assert_eq!(entity(&address, "Order/7")["sequence"], 1);
    let (_, events) = answer_of(&address, "GET /v1/events?after=0&follow=false", "", b"");
    for kind in ["emitted", "spawning", "spawned"] {
        assert_eq!(events.matches(&format!("event: {kind}\n")).count(), 1, "{events}");
    }

    running.signal("KILL");
    assert_eq!(running.ended().code(), None, "it was killed");
    let (running, address) = up(&folder);
    assert_eq!(entity(&address, "Parcel/p1")["state"], "Sent");
    running.signal("TERM");
    running.ended();
    let journal = folder.path("runs.db");
    let log = sandglass(&[&"log", &journal]).exits(0);
    let log = log.says("Shipping, emitted by Ship").says("Parcel/p1 with Send");
    log.says("spawned by Order/7").says("its first action");
    sandglass(&[&"replay", &journal]).exits(0);
}

#[test]
fn a_spawned_type_without_a_spec_is_reported_and_refuses_the_action() {
    let folder = Folder::new();
    folder.write("order.ioa.toml", ORDER);
    let check = sandglass(&[&"check", &folder.path(".")]).exits(0);
    check.says("no spec of the folder is of the type `Parcel`, which is spawned");
    let (running, address) = up(&folder);
    assert_eq!(request(&address, "POST /v1/entities/Order/7", &json!({})).0, 201);
    let (status, body) = request(&address, "POST /v1/entities/Order/7/actions/Ship", &json!({}));
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("whose type has no spec"), "{body}");
    running.signal("TERM");
    running.ended();
}
