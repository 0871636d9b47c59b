//! How the hosts of a cluster prove to each other what they are: by certificates of a CA of their own, or by
//! a key; and how both are replaced while requests are served.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};

use super::empty;
use crate::binary::{Folder, Running, Said, answer_of, with_variable};
use crate::server::{self, until};

const SPEC: &str = r#"
[automaton]
name = "Counter"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[action]]
name = "Count"
from = ["Open"]
to = "Open"
"#;

/// The key of an operator.
const API_KEY: &str = "the-key-of-an-operator";
/// Entities that are read through each host: enough for each of two hosts to own some.
const ENTITIES: usize = 16;

/// The hosts of a test, which have a database and a folder of specs in common.
struct Hosts {
    folder: Folder,
    journal: String,
    /// How many were started, because each has files of its own.
    started: Cell<usize>,
}

struct Host {
    running: Running,
    address: String,
    url: String,
    said: PathBuf,
}

impl Hosts {
    fn new(name: &str) -> Self {
        let folder = Folder::new();
        folder.write("specs/counter.ioa.toml", SPEC);
        Self { folder, journal: empty(name), started: Cell::new(0) }
    }

    /// Starts a host that serves `scheme`, and waits until it owns partitions.
    fn start(&self, scheme: &str, config: &str, cluster_key: &str) -> Host {
        let number = self.started.replace(self.started.get() + 1);
        let address = format!("127.0.0.1:{}", server::free_port());
        let url = format!("{scheme}://{address}");
        let said = self.folder.path(&format!("said-{number}"));
        let arguments = self.arguments(number, config, &address, &url);
        let variables = self.variables(cluster_key);
        let mut running = Running::with_variables(
            &variables,
            Stdio::from(File::create(&said).expect("made")),
            &arguments.iter().map(|one| one as &dyn AsRef<std::ffi::OsStr>).collect::<Vec<_>>(),
        );
        assert_eq!(running.address(), address);
        Host { running, address, url, said }
    }

    /// Starts a host that must refuse to serve, and returns what it says.
    fn refuses(&self, scheme: &str, config: &str, cluster_key: &str) -> String {
        let number = self.started.replace(self.started.get() + 1);
        let address = format!("127.0.0.1:{}", server::free_port());
        let said = self.folder.path(&format!("said-{number}"));
        let url = format!("{scheme}://{address}");
        let arguments = self.arguments(number, config, &address, &url);
        let running = Running::with_variables(
            &self.variables(cluster_key),
            Stdio::from(File::create(&said).expect("made")),
            &arguments.iter().map(|one| one as &dyn AsRef<std::ffi::OsStr>).collect::<Vec<_>>(),
        );
        let code = running.ended().code();
        let said = fs::read_to_string(said).expect("text");
        assert_eq!(code, Some(2), "{said}");
        said
    }

    fn arguments(&self, number: usize, config: &str, address: &str, url: &str) -> Vec<String> {
        let config = self.folder.write(&format!("host-{number}.toml"), config);
        let (specs, config) = (self.folder.path("specs"), config.display().to_string());
        let specs = specs.display().to_string();
        [
            "up",
            "--specs",
            &specs,
            "--config",
            &config,
            "--listen",
            address,
            "--journal-env",
            "JOURNAL",
            "--advertise",
            url,
            "--api-key-env",
            "API_KEY",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn variables<'a>(&'a self, cluster_key: &'a str) -> [(&'a str, &'a str); 3] {
        [("JOURNAL", &self.journal), ("API_KEY", API_KEY), ("CLUSTER_KEY", cluster_key)]
    }
}

impl Host {
    /// A command with the URL of this host.
    fn command(&self, command: &[&str], more: &[&str]) -> Said {
        let (url, access) = ([self.url.as_str()], ["--api-key-env", "API_KEY"]);
        let all = [command, &url, &access, more].concat();
        let all: Vec<&dyn AsRef<std::ffi::OsStr>> = all.iter().map(|one| one as _).collect();
        with_variable("API_KEY", API_KEY, &all)
    }

    /// Waits until `hosts` hosts live, all partitions have an owner, and this one knows that.
    fn wait_until_whole(&self, hosts: usize, more: &[&str]) {
        until(|| {
            let status = self.command(&["cluster", "status"], &[&["--json"], more].concat());
            let Some(status) = status.json_lines().pop() else { return false };
            let live = status["hosts"].as_array().expect("hosts").iter();
            let owns = |host: &&serde_json::Value| {
                host["state"] == "live" && host["partitions"].as_u64() >= Some(1)
            };
            let is_owned = |one: &serde_json::Value| one["owner"].is_string();
            status["partitions"].as_array().is_some_and(|all| all.iter().all(is_owned))
                && live.filter(owns).count() == hosts
        });
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).expect("text")
    }

    /// Ends it in order, so that the others take over at once.
    fn stop(self) {
        self.running.signal("TERM");
        let code = self.running.ended().code();
        assert_eq!(code, Some(0), "{}", fs::read_to_string(&self.said).expect("text"));
    }
}

/// A CA, which signs certificates for this machine.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("a name");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Writes a certificate for `name`, and its key, as `file`.pem and `file`-key.pem.
    fn sign(&self, folder: &Folder, file: &str, name: &str) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate").pem();
        folder.write(&format!("{file}.pem"), certificate);
        let key = folder.write(&format!("{file}-key.pem"), key.serialize_pem());
        fs::set_permissions(key, PermissionsExt::from_mode(0o600)).expect("it is ours");
    }
}

/// The configuration of a host with the certificate `file` for its peers.
fn certified(file: &str) -> String {
    format!(
        "[tls]\ncertificate = \"web.pem\"\nkey = \"web-key.pem\"\n\
         [cluster]\nca = \"hosts-ca.pem\"\ncertificate = \"{file}.pem\"\n\
         certificate_key = \"{file}-key.pem\"\n"
    )
}

#[test]
fn hosts_know_each_other_by_certificates_that_are_replaced_while_they_serve() {
    let hosts = Hosts::new("certified");
    let (web, ca, other) = (Ca::new("of clients"), Ca::new("of hosts"), Ca::new("another"));
    web.sign(&hosts.folder, "web", "127.0.0.1");
    let web = hosts.folder.write("web-ca.pem", web.0.pem()).display().to_string();
    let trust = ["--ca", web.as_str()];
    let write_ca = |text: String| drop(hosts.folder.write("hosts-ca.pem", text));
    write_ca(ca.0.pem());
    for file in ["a", "b"] {
        ca.sign(&hosts.folder, file, "127.0.0.1");
    }
    let both = ["a", "b"].map(|file| hosts.start("https", &certified(file), ""));
    both.iter().for_each(|host| host.wait_until_whole(2, &trust));
    // Each host returns the response of the owner for each entity. The client presents no certificate.
    let is_served = |both: &[Host; 2]| {
        for (host, number) in both.iter().flat_map(|host| (0..ENTITIES).map(move |n| (host, n))) {
            let session = format!("Counter/{number}");
            let said = host.command(&["status"], &[&[session.as_str()], &trust[..]].concat());
            said.exits(1).says("there is no such session");
        }
    };
    is_served(&both);
    let status = both[0].command(&["cluster", "status"], &trust).exits(0);
    assert!(!status.out.contains("certificate"), "{}", status.out);

    // A process without a certificate of this CA is no host of this cluster.
    other.sign(&hosts.folder, "c", "127.0.0.1");
    let said = hosts.refuses("https", &certified("c"), "");
    assert!(said.contains("c.pem` cannot be used") && said.contains("signed it"), "{said}");
    ca.sign(&hosts.folder, "d", "host.example");
    let said = hosts.refuses("https", &certified("d"), "");
    assert!(said.contains("d.pem") && said.contains("not for `127.0.0.1`"), "{said}");
    let ca_file = hosts.folder.write("other-ca.pem", other.0.pem()).display().to_string();
    let foreign = certified("c").replace("hosts-ca.pem", &ca_file);
    let said = hosts.refuses("https", &foreign, "");
    assert!(said.contains("no TLS connection that both trust"), "{said}");

    // A new CA: trusted by all, then used by all, and then alone.
    let reload = |times: usize| {
        for host in &both {
            host.running.signal("HUP");
            until(|| {
                host.said().lines().filter(|line| line.starts_with("reloaded")).count() == times
            });
        }
        is_served(&both);
    };
    write_ca(ca.0.pem() + &other.0.pem());
    reload(1);
    for file in ["a", "b"] {
        other.sign(&hosts.folder, file, "127.0.0.1");
    }
    reload(2);
    write_ca(other.0.pem());
    reload(3);
    hosts.folder.write("a.pem", "no certificate");
    both[0].running.signal("HUP");
    until(|| both[0].said().contains("nothing was reloaded"));
    assert!(both[0].said().contains("a.pem"), "{}", both[0].said());
    is_served(&both);

    // Connections that are made now: the new CA alone counts.
    other.sign(&hosts.folder, "a", "127.0.0.1");
    let third = hosts.start("https", &certified("a"), "");
    third.wait_until_whole(3, &trust);
    both[0].wait_until_whole(3, &trust);
    is_served(&both);
    both.into_iter().chain([third]).for_each(Host::stop);
}

#[test]
fn a_cluster_key_is_replaced_by_restarts_and_another_one_is_noticed() {
    let (old, new) = ("the-former-key-of-hosts", "the-next-key-of-all-hosts");
    let hosts = Hosts::new("rotated");
    let config = "[cluster]\nkey_env = \"CLUSTER_KEY\"\n";
    let start = |key: &str| hosts.start("http", config, key);
    let is_served = |both: &[Host; 2]| {
        both.iter().for_each(|host| host.wait_until_whole(2, &[]));
        for (host, number) in both.iter().flat_map(|host| (0..ENTITIES).map(move |n| (host, n))) {
            let request = format!("POST /v1/entities/Counter/{number}");
            let headers =
                format!("authorization: Bearer {API_KEY}\r\ncontent-type: application/json\r\n");
            let (status, body) = answer_of(&host.address, &request, &headers, b"");
            assert!(matches!(status, 200 | 201 | 409), "{status} {body}");
        }
    };
    let mut both = [start(old), start(old)];
    is_served(&both);
    for next in [format!("{old} {new}"), format!("{new}\n{old}"), new.to_owned()] {
        for _ in 0..2 {
            let [first, second] = both;
            first.stop();
            both = [second, start(&next)];
            is_served(&both);
        }
    }
    for wrong in [old, "a-key-of-nobody-at-all"] {
        let said = hosts.refuses("http", config, wrong);
        assert!(said.contains("refuses the cluster key of this host"), "{said}");
        assert!(!said.contains(wrong), "{said}");
    }
    let said = hosts.refuses("http", config, API_KEY);
    assert!(said.contains("holds the API key of `API_KEY`"), "{said}");
    assert!(!said.contains(API_KEY), "{said}");
    both.iter().for_each(|host| host.wait_until_whole(2, &[]));

    // Only when the others do not respond, a host with another key can begin. All notice that.
    both.iter().for_each(|host| host.running.signal("STOP"));
    let third = start(old);
    both.iter().for_each(|host| host.running.signal("CONT"));
    until(|| third.said().contains("refuses the cluster key of this host"));
    until(|| {
        let (status, body) = answer_of(&third.address, "GET /healthz", "", b"");
        status == 503 && body.contains("\"refused\"")
    });
    until(|| {
        let status = both[0].command(&["cluster", "status"], &[]);
        status.out.contains("refuses the cluster key of this host")
    });
    let (status, body) = answer_of(&both[0].address, "GET /healthz", "", b"");
    assert_eq!(status, 200, "{body}");
}
