//! What the caller does with a server that runs, whichever one it is.

use std::sync::Arc;

use crate::error::{Error, Result};

/// Receives what the operator has to know, in lines.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// How a server has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything that has to be recorded is recorded.
    Recorded,
    /// The outcomes of some handlers could not be recorded; the next start finds these handlers as
    /// interrupted.
    Unrecorded,
}

/// A server that accepts requests.
pub trait Server {
    /// The address at which clients reach it.
    fn url(&self) -> String;

    /// Does the regular work of the server, such as pruning. It may be dropped at any time. It ends
    /// only if the server cannot continue, with the reason; the server is then to be stopped.
    fn upkeep(&self) -> impl Future<Output = Error> + Send;

    /// Reads again what can change while the server runs, and returns a line for the operator.
    ///
    /// # Errors
    /// Errors if anything is wrong; then nothing has changed.
    fn reload(&self) -> impl Future<Output = Result<String>> + Send + 'static;

    /// What becomes of the work in flight if the process ends without [`Server::stop`].
    fn if_ended_at_once(&self) -> &'static str;

    /// Accepts no more, lets handlers end for a grace period, stops and records the others.
    fn stop(self) -> impl Future<Output = Stopped> + Send;
}
