//! One life of the daemon on the journal of the test, and the requests that it is sent.

use std::fs::{self, File};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::binary::{Folder, Running};
use crate::http::{self, Reply};
use crate::place::Place;

/// A daemon that takes requests. Dropped, it is killed.
pub(crate) struct Daemon {
    running: Running,
    pub(crate) address: String,
}

/// Begins to start one; its standard error goes behind that of those before it.
pub(crate) fn begin(folder: &Folder, place: &impl Place) -> Running {
    let (specs, (option, journal)) = (folder.path("."), place.option());
    let said = File::options().create(true).append(true).open(folder.path("said"));
    let stderr = Stdio::from(said.expect("made"));
    let variables = place.variables();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0", &option, &journal];
    Running::with_variables(&variables, stderr, &arguments)
}

impl Daemon {
    /// Waits until it takes requests.
    #[track_caller]
    pub(crate) fn listening(mut running: Running) -> Self {
        let address = running.address();
        Self { running, address }
    }

    /// Kills it, as nothing can prevent.
    pub(crate) fn kill(self) {}

    pub(crate) fn is_alive(&self) -> bool {
        // A process that has ended has no program any more.
        fs::exists(format!("/proc/{}/exe", self.running.id())).is_ok_and(|is_there| is_there)
    }

    pub(crate) fn is_healthy(&self) -> bool {
        exchange(&self.address, "GET /healthz", &Value::Null).is_some_and(|(code, _)| code == 200)
    }

    /// Waits for its end, and returns its exit code.
    pub(crate) fn ended(self) -> Option<i32> {
        self.running.ended().code()
    }
}

/// The codes of refusals while the journal does not respond: of its appends, and of what reads it.
pub(crate) const UNAVAILABLE: [&str; 2] = ["journal_unavailable", "unavailable"];

/// What came of a request.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// It was done.
    Done(Value),
    /// It was not done, and the code that says why.
    Refused(String),
    /// Nobody said: it may have been done.
    Lost,
}

impl Answer {
    /// Whether it was not done because the journal does not respond.
    pub(crate) fn is_unavailable(&self) -> bool {
        matches!(self, Self::Refused(code) if UNAVAILABLE.contains(&&**code))
    }
}

/// Sends a request. An answer that isn't whole is none.
pub(crate) fn ask(address: &str, request: &str, body: &Value) -> Answer {
    let Some((status, body)) = exchange(address, request, body) else { return Answer::Lost };
    if status < 400 {
        return Answer::Done(body);
    }
    match body["error"]["code"].as_str() {
        // The errors after which it may have been done.
        Some("timed_out" | "shutting_down") => Answer::Lost,
        Some(code) => Answer::Refused(code.to_owned()),
        None => panic!("{status} without a code: {body}"),
    }
}

/// Long enough for any machine: a test that would hang fails instead.
const LONGEST: Duration = Duration::from_secs(60);

fn exchange(address: &str, request: &str, body: &Value) -> Option<(u16, Value)> {
    match http::exchange(address, request, "", body, LONGEST) {
        Reply::Complete(status, body) => Some((status, body)),
        Reply::Refused | Reply::Broken => None,
    }
}
