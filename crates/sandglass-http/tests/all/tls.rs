//! HTTPS: who gets through the handshake, and what the others cost.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream;
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use reqwest::Version;
use reqwest::blocking::{Client, Response};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sandglass_http::{
    ConnectionSlot, PeerTls, Settings, Tls, TlsError, TlsSettings, parse_root_store,
};
use tokio::sync::Notify;

use crate::world::{SHORT, World};

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(3_600);
const LARGE_BYTES: usize = 3 << 20;

/// A CA.
struct Ca(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, both as PEM.
struct Signed {
    certificate: String,
    key: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("a name");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate").pem();
        Signed { certificate, key: key.serialize_pem() }
    }

    fn server(&self, client_ca: Option<&Self>) -> TlsSettings {
        let Signed { certificate, key } = self.sign("127.0.0.1");
        let client_ca = client_ca.map(Self::pem);
        let client_ca = client_ca.as_ref().map(String::as_bytes);
        TlsSettings::from_pem(certificate.as_bytes(), key.as_bytes(), client_ca).expect("settings")
    }

    /// The settings of a host of the cluster with this CA.
    fn peer(&self) -> PeerTls {
        self.try_peer(&self.sign("127.0.0.1"), "127.0.0.1").expect("settings")
    }

    fn try_peer(
        &self,
        Signed { certificate, key }: &Signed,
        host: &str,
    ) -> Result<PeerTls, TlsError> {
        PeerTls::from_pem(self.pem().as_bytes(), certificate.as_bytes(), key.as_bytes(), host)
    }

    /// A client that trusts this CA.
    fn client(&self, identity: Option<&Signed>, alpn: &[u8]) -> Client {
        let roots = parse_root_store(self.pem().as_bytes()).expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(Signed { certificate, key }) => {
                let chain = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(vec![chain], key).expect("an identity")
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        client_of(config)
    }
}

fn client_of(config: ClientConfig) -> Client {
    let client = Client::builder().tls_backend_preconfigured(config).no_proxy();
    // None: a test must not take its own time for what the server does.
    client.timeout(None).http2_initial_stream_window_size(64 << 10).build().expect("a client")
}

fn world(settings: Settings, tls: &Tls) -> World {
    World::with_tls(router(), settings, Some(tls.clone()))
}

fn router() -> Router {
    Router::new()
        .route("/", get(async || "here"))
        .route("/large", get(async || "x".repeat(LARGE_BYTES)))
        .route("/endless", get(async || "x".repeat(64 << 20)))
        .route("/host", get(host))
        .route(
            "/peer",
            get(async |Extension(slot): Extension<ConnectionSlot>| slot.is_peer().to_string()),
        )
}

async fn host(headers: HeaderMap) -> Vec<u8> {
    headers["host"].as_bytes().to_vec()
}

fn get_from(world: &World, client: &Client, path: &str) -> reqwest::Result<Response> {
    client.get(format!("https://{}{path}", world.address())).send()
}

/// A host that connects as `peer` says. This client takes HTTP/2 for granted.
fn host_of(peer: &PeerTls) -> Client {
    let client = Client::builder().tls_backend_preconfigured((*peer.client()).clone());
    client.http2_prior_knowledge().no_proxy().timeout(None).build().expect("a client")
}

/// Whether a connection of `client` is served as one of a host; `None` if it is not served.
fn is_peer(world: &World, client: &Client) -> Option<bool> {
    get_from(world, client, "/peer").ok()?.text().ok()?.parse().ok()
}

fn gets_through(world: &World, client: &Client) -> bool {
    get_from(world, client, "/").is_ok_and(|answer| answer.status().is_success())
}

#[test]
fn clients_choose_between_http_1_and_http_2() {
    let ca = Ca::new("a CA");
    let world = world(Settings::default(), &Tls::new(ca.server(None)));
    for (alpn, version) in [("http/1.1", Version::HTTP_11), ("h2", Version::HTTP_2)] {
        let client = ca.client(None, alpn.as_bytes());
        let answer = get_from(&world, &client, "/").expect("an answer");
        assert_eq!(answer.version(), version);
        assert_eq!(answer.text().expect("text"), "here");
        let large = get_from(&world, &client, "/large").expect("an answer");
        assert_eq!(large.bytes().expect("a body").len(), LARGE_BYTES);
        let host = get_from(&world, &client, "/host").expect("an answer");
        assert_eq!(host.text().expect("text"), world.address().to_string());
    }
}

#[test]
fn without_tls_a_client_that_knows_it_speaks_http_2() {
    let world = World::new(router(), Settings::default());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let unused = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let client = Client::builder().tls_backend_preconfigured(unused).http2_prior_knowledge();
    let client = client.no_proxy().build().expect("a client");
    let get = |path: &str| client.get(format!("http://{}{path}", world.address())).send();
    let answer = get("/host").expect("an answer");
    assert_eq!(answer.version(), Version::HTTP_2);
    assert_eq!(answer.text().expect("text"), world.address().to_string());
    let large = get("/large").expect("an answer");
    assert_eq!(large.bytes().expect("a body").len(), LARGE_BYTES);
    // Texts that begin as the preface does, and go on differently or not at all.
    for (text, status) in [("P", ""), ("PR", ""), ("PRI", ""), ("PUT / HTTP/1.1\r\n\r\n", "405 ")] {
        let mut stream = world.connect();
        stream.write_all(text.as_bytes()).expect("it listens");
        stream.shutdown(std::net::Shutdown::Write).expect("a socket");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status =
            if status.is_empty() { status.to_owned() } else { format!("HTTP/1.1 {status}") };
        assert!(answer.starts_with(&status), "{text:?}: {answer}");
    }
}

#[test]
fn the_number_of_headers_is_bounded_over_http_2_too() {
    let ca = Ca::new("a CA");
    let settings = Settings { headers_max: 8, ..Settings::default() };
    let world = world(settings, &Tls::new(ca.server(None)));
    for alpn in ["http/1.1", "h2"] {
        let client = ca.client(None, alpn.as_bytes());
        let request = client.get(format!("https://{}/", world.address()));
        let request = (0..9).fold(request, |request, n| request.header(format!("x-{n}"), "1"));
        assert_eq!(request.send().expect("an answer").status(), 431, "{alpn}");
        // With `host` and `accept`, the most that a client may send; another host adds three.
        let request = client.get(format!("https://{}/", world.address()));
        let request = (0..6).fold(request, |request, n| request.header(format!("x-{n}"), "1"));
        let many =
            ["a", "b", "c"].iter().fold(request.try_clone().expect("no body"), |all, name| {
                all.header(format!("sandglass-{name}"), "1")
            });
        assert_eq!(request.send().expect("an answer").status(), 200, "{alpn}");
        let expected = if alpn == "h2" { 200 } else { 431 };
        assert_eq!(many.send().expect("an answer").status(), expected, "{alpn}");
        assert!(gets_through(&world, &client));
    }
}

#[test]
fn a_request_without_tls_is_refused_with_what_to_do() {
    let ca = Ca::new("a CA");
    let world = world(Settings::default(), &Tls::new(ca.server(None)));
    let answer = world.ask("GET", "/");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.ends_with("use https:// to reach it\n"));
    assert!(gets_through(&world, &ca.client(None, b"h2")));
}

#[test]
fn a_client_that_never_completes_its_handshake_is_cut_off_and_delays_no_other() {
    let ca = Ca::new("a CA");
    let client = ca.client(None, b"http/1.1");
    // The head of a record whose rest never comes.
    let started = [22, 3, 1, 2, 0, 1];
    let tls = Tls::new(ca.server(None));
    let patient = world(Settings { head_timeout: LONG, ..Settings::default() }, &tls);
    let stuck: Vec<_> = (0..200)
        .map(|number| {
            let mut stuck = patient.connect();
            // It may have been closed by now.
            let _ = stuck.write_all(&started[..number % 2 * started.len()]);
            stuck
        })
        .collect();
    assert!(gets_through(&patient, &client));
    drop(stuck);

    let brief = world(Settings { head_timeout: SHORT, ..Settings::default() }, &tls);
    let mut stuck = brief.connect();
    stuck.write_all(&started).expect("it listens");
    // By an end or a reset; the socket's own timeout would be another error.
    let ended = stuck.read(&mut [0; 64]);
    assert!(
        !matches!(&ended, Ok(1..))
            && ended.err().is_none_or(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
    );
}

#[test]
fn handshakes_and_idle_connections_do_not_delay_the_shutdown() {
    let ca = Ca::new("a CA");
    let settings = Settings { head_timeout: LONG, ..Settings::default() };
    let mut world = world(settings, &Tls::new(ca.server(None)));
    let mut stuck = world.connect();
    stuck.write_all(&[22, 3, 1]).expect("it listens");
    let idle = ca.client(None, b"h2");
    assert!(gets_through(&world, &idle));
    assert!(world.drain(Duration::from_secs(30)), "it waited for a client");
}

#[test]
fn a_client_certificate_is_required_if_there_is_a_ca_for_them() {
    let (ca, of_clients) = (Ca::new("one"), Ca::new("another"));
    let world = world(Settings::default(), &Tls::new(ca.server(Some(&of_clients))));
    for alpn in ["http/1.1", "h2"] {
        let alpn = alpn.as_bytes();
        let known = of_clients.sign("client.example");
        assert!(gets_through(&world, &ca.client(Some(&known), alpn)));
        let foreign = ca.sign("client.example");
        for refused in [ca.client(None, alpn), ca.client(Some(&foreign), alpn)] {
            assert!(!gets_through(&world, &refused));
        }
    }
}

#[test]
fn a_certificate_is_replaced_while_a_connection_is_open() {
    let (old, new) = (Ca::new("one"), Ca::new("another"));
    let tls = Tls::new(old.server(None));
    let world = world(Settings::default(), &tls);
    let open = old.client(None, b"h2");
    assert!(gets_through(&world, &open));
    tls.replace(new.server(None));
    assert!(gets_through(&world, &open), "its connection is as it was");
    assert!(gets_through(&world, &new.client(None, b"h2")));
    let refused = get_from(&world, &old.client(None, b"h2"), "/").expect_err("another CA");
    assert!(format!("{refused:?}").contains("UnknownIssuer"), "{refused:?}");
}

#[test]
fn over_http_2_a_client_that_reads_nothing_is_disconnected() {
    let ca = Ca::new("a CA");
    let settings = Settings { max_connections: 1, write_timeout: SHORT, ..Settings::default() };
    let world = world(settings, &Tls::new(ca.server(None)));
    let get = |client: &Client, path: &str| {
        let request = client.get(format!("https://{}{path}", world.address()));
        request.header("authorization", "operator").send().expect("an answer")
    };
    let slow = get(&ca.client(None, b"h2"), "/endless");
    assert_eq!(slow.status(), 200);
    // It is busy, so it keeps its slot until it is let go.
    while get(&ca.client(None, b"h2"), "/").status() == 429 {}
    slow.bytes().expect_err("it got all of it");
}

#[test]
fn over_http_2_a_response_that_is_not_read_does_not_end_the_others() {
    let (ca, may) = (Ca::new("a CA"), Arc::new(Notify::new()));
    let (held, dropped) = mpsc::channel::<()>();
    let (held, may_end) = (Arc::new(Mutex::new(Some(held))), may.clone());
    let unread = get(async move || {
        let held = held.lock().expect("no panic").take();
        let piece = Bytes::from(vec![0; 64 << 10]);
        Body::from_stream(stream::unfold((held, piece), async |(held, piece)| {
            Some((Ok::<_, Infallible>(piece.clone()), (held, piece)))
        }))
    });
    let waits = get(async move || {
        let ends = async move {
            may_end.notified().await;
            Ok::<_, Infallible>("the end")
        };
        Body::from_stream(stream::once(ends))
    });
    let router = Router::new().route("/unread", unread).route("/waits", waits);
    // One connection, which carries both requests.
    let settings = Settings { max_connections: 1, write_timeout: SHORT, ..Settings::default() };
    let world = World::with_tls(router, settings, Some(Tls::new(ca.server(None))));
    let client = ca.client(None, b"h2");
    let get = |path: &str| {
        let request = client.get(format!("https://{}{path}", world.address()));
        let answer = request.header("authorization", "operator").send().expect("an answer");
        assert_eq!(answer.status(), 200);
        answer
    };
    let waits = get("/waits");
    let unread = get("/unread");
    let ended = dropped.recv_timeout(Duration::from_secs(30));
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected), "it was never ended");
    may.notify_one();
    assert_eq!(waits.text().expect("text"), "the end");
    unread.bytes().expect_err("it got all of it");
}

#[test]
fn over_http_2_a_health_check_is_answered_while_all_others_are_busy() {
    let ca = Ca::new("a CA");
    let settings = Settings { max_unauthenticated: 1, head_timeout: LONG, ..Settings::default() };
    let world = world(settings, &Tls::new(ca.server(None)));
    let busy = ca.client(None, b"h2");
    let endless = get_from(&world, &busy, "/endless").expect("an answer");
    for _ in 0..3 {
        assert_eq!(
            get_from(&world, &ca.client(None, b"h2"), "/").expect("an answer").status(),
            200
        );
    }
    let refused = get_from(&world, &ca.client(None, b"h2"), "/host").expect("an answer");
    assert_eq!(refused.status(), 429);
    drop(endless);
}

#[test]
fn errors_of_tls_settings_name_the_file_and_the_reason() {
    let ca = Ca::new("a CA");
    let (signed, other) = (ca.sign("127.0.0.1"), ca.sign("127.0.0.1"));
    let read = |certificate: &str, key: &str, client_ca: Option<&str>| {
        let client_ca = client_ca.map(str::as_bytes);
        TlsSettings::from_pem(certificate.as_bytes(), key.as_bytes(), client_ca)
    };
    let Signed { certificate, key } = &signed;
    read(certificate, key, None).expect("settings");
    let broken = "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n";
    for bad in ["", key, broken] {
        assert!(matches!(read(bad, key, None), Err(TlsError::Certificate(_))), "{bad}");
        assert!(matches!(read(certificate, key, Some(bad)), Err(TlsError::ClientCa(_))), "{bad}");
    }
    for bad in ["", certificate, &other.key] {
        assert!(matches!(read(certificate, bad, None), Err(TlsError::Key(_))), "{bad}");
    }
    let error = read(certificate, &other.key, None).expect_err("another key").to_string();
    assert!(error.contains("does not match the server's certificate"), "{error}");
    for encrypted in [
        key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"),
        key.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n"),
    ] {
        let error = read(certificate, &encrypted, None).expect_err("encrypted").to_string();
        assert!(error.contains("encrypted"), "{error}");
    }
    let cut = &certificate[..certificate.len() / 2];
    let error = read(cut, key, None).expect_err("cut").to_string();
    assert!(error.contains("not all of it"), "{error}");
}

#[test]
fn hosts_are_known_by_a_certificate_of_their_ca_and_clients_need_none() {
    let (ca, of_clients, other) = (Ca::new("a CA"), Ca::new("of clients"), Ca::new("another"));
    let tls = Tls::new(of_clients.server(None).with_peers(&ca.peer()));
    let world = world(Settings::default(), &tls);
    assert_eq!(is_peer(&world, &host_of(&ca.peer())), Some(true));
    // Clients see the other certificate, and what they present gives them nothing.
    let known = ca.sign("127.0.0.1");
    for identity in [None, Some(&known)] {
        assert_eq!(is_peer(&world, &of_clients.client(identity, b"h2")), Some(false));
        assert_eq!(is_peer(&world, &of_clients.client(identity, b"http/1.1")), Some(false));
    }
    // Who begins as a host does must have a certificate of the CA.
    assert_eq!(is_peer(&world, &host_of(&other.peer())), None);
    let foreign = other.sign("127.0.0.1");
    for identity in [None, Some(&foreign)] {
        assert_eq!(is_peer(&world, &ca.client(identity, b"sandglass-peer")), None);
    }
    // Nor does the protocol alone make a host where there are none.
    tls.replace(of_clients.server(None));
    assert_eq!(is_peer(&world, &of_clients.client(Some(&known), b"sandglass-peer")), None);
    assert_eq!(is_peer(&world, &of_clients.client(Some(&known), b"h2")), Some(false));
}

#[test]
fn hosts_are_served_where_clients_need_certificates_of_another_ca() {
    let (ca, of_clients) = (Ca::new("a CA"), Ca::new("of clients"));
    let tls = Tls::new(of_clients.server(Some(&of_clients)).with_peers(&ca.peer()));
    let world = world(Settings::default(), &tls);
    assert_eq!(is_peer(&world, &host_of(&ca.peer())), Some(true));
    let client = of_clients.client(Some(&of_clients.sign("a client")), b"h2");
    assert_eq!(is_peer(&world, &client), Some(false));
    assert!(!gets_through(&world, &of_clients.client(Some(&ca.sign("127.0.0.1")), b"h2")));
    // A new CA counts for new connections.
    let new = Ca::new("a new CA");
    tls.replace(of_clients.server(None).with_peers(&new.peer()));
    assert_eq!(is_peer(&world, &host_of(&ca.peer())), None);
    assert_eq!(is_peer(&world, &host_of(&new.peer())), Some(true));
}

#[test]
fn certificates_that_other_hosts_would_refuse_are_named_with_the_reason() {
    let (ca, other) = (Ca::new("a CA"), Ca::new("another"));
    let wrong = |signed: &Signed, host: &str| match ca.try_peer(signed, host) {
        Err(TlsError::Certificate(why)) => why,
        found => panic!("{found:?}"),
    };
    let good = ca.sign("host-1.example");
    assert!(ca.try_peer(&good, "host-1.example").is_ok());
    assert!(wrong(&good, "host-2.example").contains("not for `host-2.example`"));
    assert!(wrong(&good, "127.0.0.1").contains("not for `127.0.0.1`"));
    assert!(wrong(&other.sign("host-1.example"), "host-1.example").contains("no certificate of"));
    let sign = |change: &dyn Fn(&mut CertificateParams)| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["a".to_owned()]).expect("a name");
        change(&mut params);
        let certificate = params.signed_by(&key, &ca.0).expect("a certificate").pem();
        Signed { certificate, key: key.serialize_pem() }
    };
    let expired = sign(&|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    assert!(wrong(&expired, "a").contains("has expired"));
    let early = sign(&|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1));
    assert!(wrong(&early, "a").contains("not valid yet"));
    let of_servers = sign(&|params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    assert!(wrong(&of_servers, "a").contains("clientAuth"));
    let of_clients = sign(&|params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    });
    assert!(wrong(&of_clients, "a").contains("serverAuth"));
    let mixed = Signed { key: ca.sign("a").key, ..sign(&|_| {}) };
    assert!(matches!(ca.try_peer(&mixed, "a"), Err(TlsError::Key(_))));
    let no_ca = PeerTls::from_pem(b"", good.certificate.as_bytes(), good.key.as_bytes(), "a");
    assert!(matches!(no_ca, Err(TlsError::ClientCa(_))));
}
