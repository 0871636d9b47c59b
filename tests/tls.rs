//! HTTPS of both servers, and of the commands that reach them.

mod binary;

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use binary::{Folder, LAMP, Running, Said, sandglass, until, with_variable};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair};

const KEY: &str = "a-key-of-more-than-16-characters";

struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("a name");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// A certificate and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Writes the certificate of the CA.
    fn write(&self, folder: &Folder, name: &str) -> PathBuf {
        folder.write(name, self.0.pem())
    }

    /// Writes a certificate and a key of a server.
    fn write_server(&self, folder: &Folder) {
        let (certificate, key) = self.sign("127.0.0.1");
        folder.write("chain.pem", certificate);
        let key = folder.write("key.pem", key);
        std::fs::set_permissions(key, PermissionsExt::from_mode(0o600)).expect("it is ours");
    }
}

/// A server that listens.
struct Server {
    running: Running,
    address: String,
    said: PathBuf,
}

impl Server {
    fn start(folder: &Folder, arguments: &[&dyn AsRef<std::ffi::OsStr>]) -> Self {
        let said = folder.path("said");
        let stderr = Stdio::from(File::create(&said).expect("made"));
        let mut all = arguments.to_vec();
        all.extend_from_slice(&[&"--listen", &"127.0.0.1:0"]);
        let mut running = Running::with_variables(&[("SERVER_KEY", KEY)], stderr, &all);
        let address = running.address();
        Self { running, address, said }
    }

    /// A daemon with a configuration of this `[tls]`.
    fn daemon(folder: &Folder, tls: &str) -> Self {
        folder.write("specs/lamp.ioa.toml", LAMP);
        let config = folder.write("sandglass.toml", tls);
        let specs = folder.path("specs");
        Self::start(
            folder,
            &[&"up", &"--specs", &specs, &"--config", &config, &"--api-key-env", &"SERVER_KEY"],
        )
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("it is there")
    }

    /// What `budgets` says, which both servers have metrics for.
    fn budgets(&self, scheme: &str, more: &[&dyn AsRef<std::ffi::OsStr>]) -> Said {
        let url = format!("{scheme}://{}", self.address);
        let mut all: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"budgets", &url, &"--api-key-env", &"CLIENT_KEY"];
        all.extend_from_slice(more);
        with_variable("CLIENT_KEY", KEY, &all)
    }

    #[track_caller]
    fn ends(self) -> String {
        self.running.signal("TERM");
        let ended = self.running.ended();
        let said = std::fs::read_to_string(&self.said).expect("it is there");
        assert_eq!(ended.code(), Some(0), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        said
    }
}

const TLS: &str = "[tls]\ncertificate = \"chain.pem\"\nkey = \"key.pem\"\n";

#[test]
fn commands_reach_a_daemon_over_https_if_they_trust_its_certificate() {
    let folder = Folder::new();
    let (ca, other) = (Ca::new("a CA"), Ca::new("another CA"));
    ca.write_server(&folder);
    let (ca, other) = (ca.write(&folder, "ca.pem"), other.write(&folder, "other.pem"));
    let server = Server::daemon(&folder, TLS);
    let url = format!("https://{}", server.address);
    let session = "Lamp/1";
    let read: [&[&dyn AsRef<std::ffi::OsStr>]; 5] = [
        &[&"budgets", &url],
        &[&"status", &url],
        &[&"top", &url, &"--once", &"--json"],
        &[&"top", &url],
        &[&"status", &url, &session],
    ];
    for arguments in read {
        let with_key = [arguments, &[&"--api-key-env", &"CLIENT_KEY", &"--ca", &ca]].concat();
        let said = with_variable("CLIENT_KEY", KEY, &with_key);
        let is_absent = said.code == Some(1) && said.err.contains("there is no such session");
        assert!(said.code == Some(0) || is_absent, "{said:?}");
    }
    // A stream, which goes on as things happen.
    let follow: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&"top", &url, &"--json", &"--api-key-env", &"CLIENT_KEY", &"--ca", &ca];
    let mut follows = Running::with_variables(&[("CLIENT_KEY", KEY)], Stdio::null(), &follow);
    follows.line_with("in_flight");
    for (command, url) in [("cancel", &url), ("resume", &url)] {
        let arguments: [&dyn AsRef<std::ffi::OsStr>; 8] =
            [&command, &session, &"--url", url, &"--api-key-env", &"CLIENT_KEY", &"--ca", &ca];
        with_variable("CLIENT_KEY", KEY, &arguments).exits(1).says("Lamp/1");
    }
    server.budgets("https", &[&"--ca", &other]).exits(2).says("name its CA with --ca");
    server.budgets("https", &[]).exits(2).says("name its CA with --ca");
    server.budgets("http", &[]).exits(2).says("use https:// to reach it");
    let no_ca = folder.path("specs/lamp.ioa.toml");
    server.budgets("https", &[&"--ca", &no_ca]).exits(2).says("lamp.ioa.toml");
    let by_name = format!("https://localhost:{}", server.address.rsplit(':').next().expect("port"));
    sandglass(&[&"status", &by_name, &"--ca", &ca]).exits(2).says("for another name");
    let said = server.ends();
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn https_to_a_server_without_tls_is_reported() {
    let folder = Folder::new();
    let ca = Ca::new("a CA").write(&folder, "ca.pem");
    let server = Server::daemon(&folder, "");
    server.budgets("https", &[&"--ca", &ca]).exits(2).says("does not speak TLS");
    server.budgets("http", &[]).exits(0);
    server.ends();
}

#[test]
fn a_client_certificate_is_required_if_the_configuration_says_so() {
    let folder = Folder::new();
    let (ca, of_clients) = (Ca::new("a CA"), Ca::new("a CA of clients"));
    ca.write_server(&folder);
    of_clients.write(&folder, "clients.pem");
    let (certificate, key) = of_clients.sign("client.example");
    let identity = folder.write("identity.pem", certificate + &key);
    let (certificate, key) = ca.sign("client.example");
    let foreign = folder.write("foreign.pem", certificate + &key);
    let ca = ca.write(&folder, "ca.pem");
    let server = Server::daemon(&folder, &format!("{TLS}client_ca = \"clients.pem\"\n"));
    server.budgets("https", &[&"--ca", &ca, &"--identity", &identity]).exits(0);
    server.budgets("https", &[&"--ca", &ca, &"--identity", &foreign]).exits(2);
    server.budgets("https", &[&"--ca", &ca]).exits(2).says("--identity");
    server.ends();
}

/// Replaces the certificate of `server` by one of a new CA, and then by a broken one.
#[track_caller]
fn reloads(folder: &Folder, server: &Server, old: &Path) {
    let new = Ca::new("a new CA");
    let new_ca = new.write(folder, "new.pem");
    server.budgets("https", &[&"--ca", &old]).exits(0);
    new.write_server(folder);
    server.running.signal("HUP");
    until(|| server.budgets("https", &[&"--ca", &new_ca]).code == Some(0));
    server.budgets("https", &[&"--ca", &old]).exits(2);
    folder.write("key.pem", "no key");
    server.running.signal("HUP");
    until(|| {
        server.budgets("https", &[&"--ca", &new_ca]).exits(0).code == Some(0) && {
            let said = server.said();
            said.contains("nothing was reloaded")
                && said.contains("key.pem")
                && said.contains("no private key")
        }
    });
    server.budgets("https", &[&"--ca", &new_ca]).exits(0);
}

#[test]
fn a_daemon_serves_a_new_certificate_after_sighup_and_the_old_one_if_that_is_broken() {
    let folder = Folder::new();
    let ca = Ca::new("a CA");
    ca.write_server(&folder);
    let ca = ca.write(&folder, "ca.pem");
    let server = Server::daemon(&folder, TLS);
    reloads(&folder, &server, &ca);
    server.ends();
}

#[test]
fn an_openwop_host_serves_https_and_reloads_its_certificate() {
    let folder = Folder::new();
    let ca = Ca::new("a CA");
    ca.write_server(&folder);
    let ca = ca.write(&folder, "ca.pem");
    let workflows = folder.path("workflows");
    std::fs::create_dir(&workflows).expect("made");
    let (certificate, key) = (folder.path("chain.pem"), folder.path("key.pem"));
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 9] = [
        &"openwop",
        &"--workflows",
        &workflows,
        &"--api-key-env",
        &"SERVER_KEY",
        &"--tls-certificate",
        &certificate,
        &"--tls-key",
        &key,
    ];
    let server = Server::start(&folder, &arguments);
    reloads(&folder, &server, &ca);
    server.ends();
}

#[test]
fn unusable_files_are_named_and_a_world_readable_key_causes_a_warning() {
    let folder = Folder::new();
    let ca = Ca::new("a CA");
    ca.write_server(&folder);
    let (specs, config) = (folder.path("specs"), folder.path("sandglass.toml"));
    let start = || sandglass(&[&"up", &"--specs", &specs, &"--config", &config]);
    folder.write("specs/lamp.ioa.toml", LAMP);
    folder.write("sandglass.toml", "[tls]\ncertificate = \"gone.pem\"\nkey = \"key.pem\"\n");
    start().exits(2).says("the TLS certificate").says("gone.pem");
    folder.write("sandglass.toml", "[tls]\ncertificate = \"chain.pem\"\n");
    start().exits(2).says("sandglass.toml:1").says("key");
    let (_, key) = ca.sign("127.0.0.1");
    folder.write("other.pem", key);
    folder.write("sandglass.toml", "[tls]\ncertificate = \"chain.pem\"\nkey = \"other.pem\"\n");
    start().exits(2).says("other.pem").says("does not match the server's certificate");
    let key = folder.path("key.pem");
    std::fs::set_permissions(key, PermissionsExt::from_mode(0o644)).expect("it is ours");
    let server = Server::daemon(&folder, TLS);
    assert!(server.ends().contains("every user of this machine can read the TLS key"));
}

#[test]
fn a_key_is_not_sent_over_plain_http_to_another_machine() {
    let session = "Lamp/1";
    // An address of the documentation (RFC 5737): nobody is asked.
    let url = "http://192.0.2.1:7341";
    let commands: [&[&dyn AsRef<std::ffi::OsStr>]; 7] = [
        &[&"budgets", &url],
        &[&"status", &url],
        &[&"top", &url, &"--once"],
        &[&"top", &url, &"--json"],
        &[&"cancel", &session, &"--url", &url],
        &[&"resume", &session, &"--url", &url],
        &[&"signal", &url, &session, &"note"],
    ];
    for command in commands {
        let with_key = [command, &[&"--api-key-env", &"CLIENT_KEY"]].concat();
        let said = with_variable("CLIENT_KEY", KEY, &with_key).exits(2);
        said.says("plain HTTP to `192.0.2.1`").says("https://").says("--insecure");
    }
    // This address is not one of the loopback ones, and leads to this machine all the same.
    let folder = Folder::new();
    let server = Server::daemon(&folder, "");
    let port = server.address.rsplit(':').next().expect("a port");
    let url = format!("http://0.0.0.0:{port}");
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 4] =
        [&"status", &url, &"--api-key-env", &"CLIENT_KEY"];
    with_variable("CLIENT_KEY", KEY, &arguments).exits(2).says("--insecure");
    let insecure: &[&dyn AsRef<std::ffi::OsStr>] = &[&"--insecure"];
    with_variable("CLIENT_KEY", KEY, &[&arguments, insecure].concat()).exits(0);
    server.ends();
}
