//! `sandglass cluster`: the hosts of a cluster, as people and scripts see them, and draining one. The
//! cluster of these tests is a server that responds as a host would.

mod binary;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use binary::{Folder, Running, fixture, sandglass, with_variable};
use serde_json::{Value, json};

const KEY: &str = "a-key-of-an-operator";

/// A request: its head, and its body.
type Asked = (String, String);

/// A server that responds to each request with `status` and `body`.
fn host(status: &'static str, body: &Value) -> (String, Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it has one"));
    let (asked, requests) = mpsc::channel();
    let body = body.to_string();
    thread::Builder::new()
        .spawn(move || {
            for stream in listener.incoming() {
                let Ok(one) = respond(stream.expect("a connection"), status, &body) else { return };
                if asked.send(one).is_err() {
                    return;
                }
            }
        })
        .expect("a thread");
    (url, requests)
}

fn respond(mut stream: TcpStream, status: &str, body: &str) -> std::io::Result<Asked> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        head.push_str(&line);
    }
    let mut sent = vec![0; length];
    reader.read_exact(&mut sent)?;
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )?;
    Ok((head, String::from_utf8_lossy(&sent).into_owned()))
}

/// An id of a host: 32 times the same digit.
fn id(digit: char) -> String {
    digit.to_string().repeat(32)
}

/// A cluster in which a host owns each partition but the last `free`.
fn cluster(free: usize) -> Value {
    let host = |digit, name: &str, state: &str, partitions: usize, last_seen_ms: Option<u64>| {
        let url = (state != "dead").then(|| format!("http://{name}:7341"));
        json!({
            "host": id(digit), "name": name, "url": url, "version": "0.1.0", "state": state,
            "partitions": partitions, "beats": 9, "last_seen_ms": last_seen_ms,
        })
    };
    let owner = |number: usize| (number < 64 - free).then(|| id('a'));
    let partition = |number| json!({"partition": number, "owner": owner(number), "epoch": 2});
    json!({
        "host": id('a'),
        "hosts": [
            host('a', "alpha", "live", 64 - free, None),
            host('b', "be\u{1b}ta", "silent", 0, Some(2_500)),
            host('c', "gamma", "draining", 0, Some(400)),
            host('d', "delta", "dead", 0, Some(90_000)),
        ],
        "partitions": (0..64).map(partition).collect::<Vec<_>>(),
        "generation": null,
    })
}

#[test]
fn the_hosts_are_shown_with_what_they_own() {
    let (url, requests) = host("200 OK", &cluster(0));
    let shown = with_variable("KEY", KEY, &[&"cluster", &"status", &url, &"--api-key-env", &"KEY"]);
    let shown = shown.exits(0);
    let (head, _) = requests.recv().expect("a request");
    assert!(head.starts_with("GET /v1/cluster HTTP/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("Bearer {KEY}")), "{head}");
    let lines: Vec<&str> = shown.out.lines().collect();
    assert_eq!(lines.len(), 4, "the dead one owns nothing: {}", shown.out);
    assert!(lines[0].starts_with("aaaaaaaa live     alpha"), "{}", lines[0]);
    assert!(
        lines[0].contains("64 partitions") && lines[0].ends_with("(this host)"),
        "{}",
        lines[0]
    );
    assert!(lines[1].starts_with("bbbbbbbb silent   be\\u{1b}ta"), "{}", lines[1]);
    assert!(lines[1].ends_with("seen 2.5 s ago"), "{}", lines[1]);
    assert!(lines[2].starts_with("cccccccc draining gamma"), "{}", lines[2]);
    assert_eq!(lines[3], "64 partitions owned");
    let json = sandglass(&[&"cluster", &"status", &url, &"--json"]).exits(0);
    assert_eq!(json.json_lines(), [cluster(0)]);
}

#[test]
fn partitions_without_a_live_owner_are_a_negative_result() {
    let (url, _requests) = host("200 OK", &cluster(2));
    let shown = sandglass(&[&"cluster", &"status", &url]).exits(1);
    shown.says("62 partitions owned, 2 without a live owner");
    let mut dead = cluster(0);
    dead["hosts"][0]["state"] = "dead".into();
    let (url, _requests) = host("200 OK", &dead);
    let shown = sandglass(&[&"cluster", &"status", &url]).exits(1);
    shown.says("aaaaaaaa dead").says("0 partitions owned, 64 without a live owner");
    let (url, _requests) = host("200 OK", &json!({"hosts": []}));
    sandglass(&[&"cluster", &"status", &url]).exits(2).says("not the status of a cluster");
}

#[test]
fn hosts_that_refuse_each_other_or_have_another_ttl_are_named() {
    let mut body = cluster(0);
    let hosts = body["hosts"].as_array_mut().expect("hosts");
    for (host, ttl) in hosts.iter_mut().zip([5_000, 5_000, 5_000, 30_000]) {
        host["ttl_ms"] = ttl.into();
        host["refusal"] = Value::Null;
    }
    let (url, _requests) = host("200 OK", &body);
    let out = sandglass(&[&"cluster", &"status", &url]).exits(0).out;
    assert!(!out.contains("ttl") && !out.contains("refuses"), "a dead host counts: {out}");
    let hosts = body["hosts"].as_array_mut().expect("hosts");
    hosts[2]["ttl_ms"] = 30_000.into();
    hosts[2]["refusal"] = "key_refused".into();
    let (url, _requests) = host("200 OK", &body);
    let said = sandglass(&[&"cluster", &"status", &url]).exits(0);
    assert!(said.out.contains("gamma refuses the cluster key of this host"), "{said:?}");
    assert!(said.out.contains("gamma has `ttl` 30"), "{said:?}");
}

#[test]
fn a_host_is_drained_by_its_address_or_through_another() {
    let (url, requests) = host("200 OK", &json!({"host": id('b'), "draining": true}));
    let drain = |more: &[&str]| {
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"cluster", &"drain"];
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<_>));
        let said = sandglass(&arguments).exits(0);
        let (head, body) = requests.recv().expect("a request");
        assert!(head.starts_with("POST /v1/cluster/drain HTTP/1.1\r\n"), "{head}");
        (said.out, serde_json::from_str::<Value>(&body).expect("JSON"))
    };
    let (out, body) = drain(&[&url]);
    assert_eq!(out, format!("host {} gives its partitions away\n", id('b')));
    assert_eq!(body, json!({"draining": true}));
    let (out, body) = drain(&["beta", "--via", &url, "--undo"]);
    assert_eq!(out, format!("host {} gets partitions again\n", id('b')));
    assert_eq!(body, json!({"host": "beta", "draining": false}));
    let (out, _) = drain(&[&url, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON")["host"], id('b'));
    sandglass(&[&"cluster", &"drain", &"beta"]).exits(2).says("--via");
    let refusal =
        json!({"error": {"code": "unknown_host", "message": "there is no such live host"}});
    let (url, _requests) = host("404 Not Found", &refusal);
    sandglass(&[&"cluster", &"drain", &url]).exits(1).says("no such live host");
}

#[test]
fn generations_are_shown_and_what_hosts_cannot_run() {
    let mut shown = cluster(0);
    shown["generation"] = 3.into();
    let generation = |number: u64, state: &str| {
        json!({"generation": number, "state": state, "proposed_by": "http://beta:7341",
            "version": "0.1.0", "at": 1, "activated_at": null})
    };
    shown["generations"] = json!([
        generation(1, "replaced"),
        generation(2, "replaced"),
        generation(3, "active"),
        generation(4, "proposed"),
    ]);
    shown["hosts"][0]["generation"] = 3.into();
    shown["hosts"][2]["generation"] = 2.into();
    shown["hosts"][2]["error"] = "this host cannot run generation 3: no secret".into();
    let (url, _requests) = host("200 OK", &shown);
    let said = sandglass(&[&"cluster", &"status", &url]).exits(0);
    let lines: Vec<&str> = said.out.lines().collect();
    assert!(lines[0].ends_with("generation 3  (this host)"), "{}", said.out);
    assert!(lines[2].contains("generation 2  seen"), "{}", said.out);
    let rest = [
        "  this host cannot run generation 3: no secret",
        "64 partitions owned",
        "generation 3 is active",
        "generation 4 is proposed by http://beta:7341 (0.1.0)",
        "replaced generations: 1, 2",
    ];
    assert_eq!(lines[3..], rest);
}

#[test]
fn a_generation_is_activated_and_a_format_upgraded() {
    let (url, requests) = host("200 OK", &json!({"generation": 4, "replaced": 3}));
    let activate = |more: &[&str]| {
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"cluster", &"activate", &"4", &url];
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<_>));
        let said = sandglass(&arguments).exits(0);
        let (head, body) = requests.recv().expect("a request");
        assert!(head.starts_with("POST /v1/cluster/activate HTTP/1.1\r\n"), "{head}");
        (said.out, serde_json::from_str::<Value>(&body).expect("JSON"))
    };
    let (out, body) = activate(&[]);
    assert_eq!(out, "generation 4 is active, and has replaced 3\n");
    assert_eq!(body, json!({"generation": 4}));
    let (out, body) = activate(&["--replacing", "3", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON")["replaced"], 3);
    assert_eq!(body, json!({"generation": 4, "replacing": 3}));
    let (url, _requests) = host("200 OK", &json!({"generation": 4, "replaced": 4}));
    let said = sandglass(&[&"cluster", &"activate", &"4", &url]).exits(0);
    said.says("generation 4 was active already");
    sandglass(&[&"cluster", &"activate", &"0", &url]).exits(2);
    let refusal = json!({"error": {"code": "unknown_generation", "message": "there is none"}});
    let (url, _requests) = host("404 Not Found", &refusal);
    sandglass(&[&"cluster", &"activate", &"4", &url]).exits(1).says("there is none");
    let (url, requests) = host("200 OK", &json!({"writes_format": 1}));
    let said = sandglass(&[&"cluster", &"upgrade-format", &url]).exits(0);
    said.says("records are written in format 1");
    let (head, _) = requests.recv().expect("a request");
    assert!(head.starts_with("POST /v1/cluster/upgrade-format HTTP/1.1\r\n"), "{head}");
}

#[test]
fn a_daemon_that_is_alone_is_not_a_cluster() {
    let specs = fixture("incident");
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 5] =
        [&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0"];
    let mut running = Running::with_stderr(Stdio::null(), &arguments);
    let url = format!("http://{}", running.address());
    sandglass(&[&"cluster", &"status", &url]).exits(2).says("not a member of a cluster");
    sandglass(&[&"cluster", &"drain", &url]).exits(1).says("not a member of a cluster");
    let activate = sandglass(&[&"cluster", &"activate", &"1", &url]);
    activate.exits(1).says("not a member of a cluster");
}

#[test]
fn a_host_that_cannot_be_a_member_says_what_it_lacks() {
    let folder = Folder::new();
    let specs = fixture("incident");
    let up = |more: &[&str]| {
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0"];
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<_>));
        with_variable("JOURNAL", "postgresql://app:hidden@127.0.0.1:1/app", &arguments)
    };
    let address = "http://127.0.0.1:7341";
    up(&["--advertise", address]).exits(2).says("--journal-env");
    up(&["--cluster-key-env", "JOURNAL"]).exits(2).says("--advertise");
    up(&["--activate"]).exits(2).says("--advertise");
    up(&["--advertise", "http://ann:hidden@host", "--journal-env", "JOURNAL"])
        .exits(2)
        .says("login");
    let wide = up(&["--advertise", "http://host.example:7341", "--journal-env", "JOURNAL"]);
    let wide = wide.exits(2).says("--cluster-key-env");
    assert!(!wide.err.contains("hidden"), "{}", wide.err);
    let config = folder.write("up.toml", "[cluster]\nttl = \"1s\"\n");
    let config = config.to_str().expect("text").to_owned();
    up(&["--config", &config]).exits(2).says("ttl");
}
