//! HTTP requests to the hosts that the integration was granted.
//!
//! A call waits for the whole response, at most for the integration's limit on host calls (300 s,
//! unless the host or the manifest sets another). If the soft deadline passes while it waits, it
//! returns an error; at the deadline the handler is killed. At most 5 redirects are followed, each
//! only to a granted host. The header `sandglass-deadline-remaining-ms` states the remaining time
//! to the server.

mod batch;
mod error;
mod request;
mod response;

pub use batch::batch;
pub use error::{Error, ErrorKind};
pub use request::Request;
pub use response::Response;
