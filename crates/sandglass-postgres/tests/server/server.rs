//! A PostgreSQL server of the tests' own, on a free port of 127.0.0.1, in a folder of its own, as a user
//! other than root.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use sandglass_journal::Error;
use sandglass_postgres::{Address, Database, Settings};
use tokio::task::JoinHandle;

#[path = "standby.rs"]
mod standby;

/// The user `nobody`, who exists everywhere; a server refuses to run as root.
const NOBODY: u32 = 65_534;

/// How long it may take until a server takes connections.
const LONGEST_START: Duration = Duration::from_secs(60);

/// A server, which ends when this is dropped, or with this process.
#[derive(Debug)]
pub(crate) struct Server {
    folder: PathBuf,
    /// Where its log for recovery is, if that is elsewhere.
    wal: Option<PathBuf>,
    pub(crate) port: u16,
    keeper: Option<Child>,
}

/// Starts the server and waits until its input ends; then ends the server. So it does not outlive the
/// tests, even if they are killed.
const KEEPER: &str = r#"trap "" INT TERM HUP
"$1/postgres" -D "$2/data" >>"$2/log" 2>&1 </dev/null &
server=$!
read -r last
# Its parent removes it from the process table; until then a new server takes it for a running one.
[ "$last" = gone ] && { wait $server; exit; }
kill -INT $server
wait $server
rm -rf "$2" "$3""#;

impl Server {
    /// A new, empty server with these lines in its configuration.
    pub(crate) fn start(lines: &[&str]) -> Self {
        let temporary = std::env::temp_dir();
        Self::start_in(&temporary, &temporary, lines)
    }

    /// As [`Server::start`], with its tables and its log for recovery in these folders.
    pub(crate) fn start_in(tables: &Path, wal: &Path, lines: &[&str]) -> Self {
        let (folder, wal) = (new_folder(tables), new_folder(wal));
        let place = format!("--waldir={}", wal.display());
        let options = ["--username=sandglass", "--auth=trust", "--encoding=UTF8", "--no-sync"];
        run(&folder, "initdb", &[&["-D", "data", &place][..], &options].concat());
        let server = Self { folder, wal: Some(wal), port: free_port(), keeper: None };
        server.configure(&[
            "listen_addresses = '127.0.0.1'",
            "unix_socket_directories = ''",
            "fsync = on",
            "shared_preload_libraries = 'pg_stat_statements'",
            "max_connections = 60",
            // A standby reads what was written since its copy began.
            "wal_keep_size = '128MB'",
            // A gigabyte by default, which is more than the rest of what the tests write.
            "max_wal_size = '256MB'",
        ]);
        server.configure(lines);
        server.started()
    }

    /// A standby of `primary`, which calls itself `name`.
    pub(crate) fn standby_of(primary: &Self, name: &str) -> Self {
        let folder = new_folder(&std::env::temp_dir());
        let standby = Self { folder, wal: None, port: free_port(), keeper: None };
        standby::copy(primary, &standby.folder);
        let source =
            format!("host=127.0.0.1 port={} user=sandglass application_name={name}", primary.port);
        standby.configure(&[&format!("primary_conninfo = '{source}'")]);
        standby.started()
    }

    fn started(mut self) -> Self {
        self.configure(&[&format!("port = {}", self.port)]);
        self.resume();
        self
    }

    /// Adds lines to the configuration, for the next start or reload.
    pub(crate) fn configure(&self, lines: &[&str]) {
        let path = self.folder.join("data/postgresql.auto.conf");
        let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
        lines.iter().for_each(|line| writeln!(file, "{line}").unwrap());
    }

    /// Starts it again, and waits until it takes connections.
    pub(crate) fn resume(&mut self) {
        let begun = Instant::now();
        // After a kill, the children of the former server have to end first.
        loop {
            let mut keeper = command("sh", &self.folder);
            keeper.args(["-c", KEEPER, "sh"]).arg(programs()).arg(&self.folder);
            keeper.args(&self.wal);
            keeper.stdin(Stdio::piped());
            self.keeper = Some(keeper.spawn().unwrap());
            let log = loop {
                if self.is_up() {
                    return;
                }
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                if log.trim_end().ends_with("is still in use") {
                    break log;
                }
                assert!(begun.elapsed() < LONGEST_START, "the server does not start:\n{log}");
                pause();
            };
            self.forget();
            assert!(begun.elapsed() < LONGEST_START, "the server does not start:\n{log}");
        }
    }

    /// Whether its first process is gone.
    pub(crate) fn has_ended(&self) -> bool {
        let file = fs::read_to_string(self.folder.join("data/postmaster.pid"));
        let process = file.ok().and_then(|text| text.lines().next().map(str::to_owned));
        !process.is_some_and(|it| Path::new(&format!("/proc/{it}/exe")).exists())
    }

    /// Starts it again if it has ended by itself, as an operator does. Waits until it takes connections.
    pub(crate) fn revive(&mut self) {
        until(|| self.is_up() || self.has_ended());
        if self.has_ended() {
            self.forget();
            self.resume();
        }
    }

    fn is_up(&self) -> bool {
        let mut ready = command(programs().join("pg_isready"), &self.folder);
        ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
        ready.status().unwrap().success()
    }

    /// Ends its first process with SIGKILL, and waits until the others have noticed it.
    pub(crate) fn kill(&mut self) {
        let processes = self.processes();
        self.kill_some(&processes[..1], &processes);
    }

    /// Ends all its processes with SIGKILL, as a crash of the machine does.
    pub(crate) fn kill_all(&mut self) {
        let processes = self.processes();
        self.kill_some(&processes, &processes);
    }

    /// Its first process, and the children of that.
    pub(crate) fn processes(&self) -> Vec<String> {
        let file = fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap();
        let first = file.lines().next().unwrap();
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap();
        [first].into_iter().chain(children.split_whitespace()).map(str::to_owned).collect()
    }

    fn kill_some(&mut self, killed: &[String], processes: &[String]) {
        // A child may have ended before.
        let _ = Command::new("kill").arg("-9").args(killed).stderr(Stdio::null()).status();
        until(|| !processes.iter().any(|it| Path::new(&format!("/proc/{it}/exe")).exists()));
        self.forget();
    }

    /// Ends it in order.
    pub(crate) fn stop(&mut self) {
        let stop = ["stop", "-D", "data", "-m", "fast", "-w"];
        run(&self.folder, "pg_ctl", &stop);
        self.forget();
    }

    /// Lets the keeper of a server that is gone end, without removing the folder.
    fn forget(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            let _ = keeper.stdin.take().unwrap().write_all(b"gone\n");
            let _ = keeper.wait();
        }
    }

    pub(crate) fn pg_ctl(&self, arguments: &[&str]) {
        run(&self.folder, "pg_ctl", &[arguments, &["-D", "data"]].concat());
    }

    /// The URL of a database, as the user that may do everything.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgresql://sandglass@127.0.0.1:{}/{database}", self.port)
    }

    pub(crate) fn address(&self, database: &str) -> Address {
        Address::parse(&self.url(database)).unwrap()
    }

    /// Lets no connection in without a password, except by this line.
    pub(crate) fn require_passwords(&self, line: &str) {
        fs::write(self.folder.join("data/pg_hba.conf"), format!("{line}\n")).unwrap();
        self.pg_ctl(&["reload"]);
        // It takes effect with the next look of the server at its signals.
        until(|| !self.is_trusting());
    }

    fn is_trusting(&self) -> bool {
        let mut psql = command(programs().join("psql"), &self.folder);
        psql.args(["-wXAtqc", "SELECT 1"]).arg(self.url("postgres"));
        psql.output().unwrap().status.success()
    }

    /// Encrypts connections that request it.
    pub(crate) fn encrypt(&self, certificate: &str, key: &str) {
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.folder.join("data").join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            if is_root() {
                chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        self.configure(&["ssl = on"]);
        self.pg_ctl(&["reload"]);
        until(|| self.psql("postgres", "SHOW ssl") == "on");
    }

    /// Starts PgBouncer in transaction mode before a database; returns its port. It ends with the server.
    pub(crate) fn pooler(&self, database: &str) -> u16 {
        let port = free_port();
        let configuration = format!(
            "[databases]\n{database} = host=127.0.0.1 port={} dbname={database} user=sandglass\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 4\n",
            self.port
        );
        fs::write(self.folder.join("pgbouncer.ini"), configuration).unwrap();
        let configuration = self.folder.join("pgbouncer.ini");
        let mut pooler = command("sh", &self.folder);
        // It ends when its configuration is removed with the server's folder.
        pooler.args([
            "-c",
            r#"trap "" INT; pgbouncer -q "$1" >>log 2>&1 & pooler=$!
            while [ -e "$1" ] && kill -0 $pooler; do sleep 0.2; done; kill $pooler"#,
            "sh",
        ]);
        pooler.arg(configuration).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        pooler.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        drop(pooler.spawn().expect("a shell"));
        until(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        port
    }

    /// Lets new connections of a database see a clock that is so many seconds ahead of the server's, and
    /// changes the clock of those that see one already.
    pub(crate) fn set_clock(&self, database: &str, seconds: i64) {
        let sql = format!(
            "CREATE SCHEMA IF NOT EXISTS another; \
             CREATE TABLE IF NOT EXISTS another.difference (seconds float8); \
             CREATE OR REPLACE FUNCTION another.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
             'SELECT pg_catalog.clock_timestamp() + seconds * interval ''1 second'' \
             FROM another.difference'; \
             DELETE FROM another.difference; INSERT INTO another.difference VALUES ({seconds}); \
             ALTER DATABASE {database} SET search_path = another, pg_catalog"
        );
        self.psql(database, &sql);
    }

    /// Runs SQL as a person would; returns the rows, with `|` between columns.
    pub(crate) fn psql(&self, database: &str, sql: &str) -> String {
        let mut psql = command(programs().join("psql"), &self.folder);
        psql.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-c", sql]).arg(self.url(database));
        let output = psql.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{sql}: {errors}");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Ends all connections to a database, as an operator or a restart does.
    pub(crate) fn end_connections(&self, database: &str) {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE datname = '{database}' AND pid <> pg_backend_pid()"
        );
        self.psql("postgres", &sql);
    }

    /// A new database with a journal.
    pub(crate) fn new_database(&self, name: &str) -> Address {
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        let address = self.address(name);
        let created = address.clone();
        block(async move { sandglass_postgres::create(&created).await }).unwrap();
        address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
        for folder in [Some(&self.folder), self.wal.as_ref()].into_iter().flatten() {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// A server that tests share which do not disturb it.
pub(crate) fn shared() -> &'static Server {
    static SHARED: OnceLock<Server> = OnceLock::new();
    SHARED.get_or_init(|| Server::start(&[]))
}

/// Opens a database with limits that are short enough for tests.
pub(crate) fn open(address: &Address) -> Database {
    let address = address.clone();
    let settings = Settings::default().limits(Duration::from_secs(5), Duration::from_secs(2));
    block(async move { Database::open(&address, settings).await }).unwrap()
}

/// Opens a database with the usual limits.
pub(crate) fn open_as_usual(address: &Address) -> Result<Database, Error> {
    let address = address.clone();
    block(async move { Database::open(&address, Settings::default()).await })
}

/// Where connections may live on after a test.
fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().unwrap()
    })
}

/// Waits for a future that runs there.
pub(crate) fn block<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    runtime().spawn(async move { sender.send(work.await) });
    receiver.recv().expect("the work does not panic")
}

/// Runs a future there, beside what follows.
pub(crate) fn spawn<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime().spawn(work)
}

/// Waits for a condition, for up to a minute.
pub(crate) fn until(condition: impl FnMut() -> bool) {
    let mut condition = condition;
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the condition was never met");
        pause();
    }
}

#[allow(clippy::disallowed_methods, reason = "between two looks at a process")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn new_folder(parent: &Path) -> PathBuf {
    let mut builder = tempfile::Builder::new();
    let folder = builder.prefix("sandglass-postgres-").tempdir_in(parent).unwrap().keep();
    if is_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    folder
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The folder of PostgreSQL's programs: the one that .ci/check-postgres names, or Debian's.
fn programs() -> PathBuf {
    if let Some(folder) = std::env::var_os("SANDGLASS_POSTGRES_PROGRAMS") {
        return folder.into();
    }
    let versions = fs::read_dir("/usr/lib/postgresql").expect("run .ci/check-postgres");
    let folders = versions.map(|version| version.unwrap().path().join("bin"));
    folders.max().expect("run .ci/check-postgres")
}

fn command(program: impl AsRef<Path>, folder: &Path) -> Command {
    let mut command = Command::new(program.as_ref());
    command.current_dir(folder).env("LC_ALL", "C");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn run(folder: &Path, program: &str, arguments: &[&str]) {
    let output = command(programs().join(program), folder).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
}
