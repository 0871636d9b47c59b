//! HTTP to the hosts that the integration was granted, and no others.
//!
//! A call waits for the whole response, for no longer than the integration's bound on host
//! calls (300 s unless its host or manifest says otherwise). One that waits when the soft
//! deadline passes is ended with an error; at the deadline the run ends in it. Redirects
//! are followed, at most 5, each only to where the integration may go. The host tells the
//! server in `sandglass-deadline-remaining-ms` how long anybody waits.

mod batch;
mod error;
mod request;
mod response;

pub use batch::batch;
pub use error::{Error, ErrorKind};
pub use request::Request;
pub use response::Response;
