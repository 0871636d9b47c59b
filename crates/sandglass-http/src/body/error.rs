//! Errors of request bodies.

use axum::http::StatusCode;
use sandglass_source::json::{self, Violation, ViolationKind};
use sandglass_source::{printable, shortened};
use serde_json::error::Category;

use super::json::DEPTH_MAX;

/// Most characters of the pointer to what is nested too deep.
const POINTER_MAX_CHARS: usize = 80;

/// What is wrong with a body, and where. Each interface renders it in its own format; the text is for
/// people, and states what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It is larger than allowed.
    #[error("{}", too_large(*announced, *max))]
    TooLarge {
        /// Its size in bytes, if it was announced.
        announced: Option<u64>,
        /// The largest permitted size, in bytes.
        max: usize,
    },
    /// It, or a piece of it, took too long to arrive.
    #[error("the body took too long to arrive")]
    Slow,
    /// It ended before its end.
    #[error("the body ended early, or its chunks are invalid")]
    Broken,
    /// It is compressed.
    #[error("send the body uncompressed, without a `Content-Encoding`")]
    Coded,
    /// Its media type is not JSON.
    #[error("send the body as `Content-Type: application/json`")]
    MediaType,
    /// It nests deeper than [`DEPTH_MAX`].
    #[error("the body nests deeper than {DEPTH_MAX} at `{at}`")]
    TooDeep {
        /// The JSON pointer to what is nested too deep, shortened.
        at: String,
    },
    /// One of its objects has a duplicate key.
    #[error("the body has the key `{}` twice, at `{}`", printable(.key), printable(.pointer))]
    DuplicateKey {
        /// The JSON pointer to the object.
        pointer: String,
        /// The key.
        key: String,
    },
    /// It is not UTF-8.
    #[error("the body is not UTF-8 at byte {at}")]
    NotText {
        /// The offset, in bytes.
        at: usize,
    },
    /// It is JSON, but not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// It has more values than [`json::MAX_VALUES`], or none.
    #[error("the body cannot be read: {0}")]
    Values(json::Error),
    /// It is not JSON.
    #[error("the body cannot be read: {0}")]
    Syntax(serde_json::Error),
    /// It is a JSON object that does not have the expected shape.
    #[error("the body cannot be read: {0}")]
    Shape(serde_json::Error),
}

impl Error {
    /// The status of the response: 400, 408, 413 or 415.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Coded | Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Broken
            | Self::TooDeep { .. }
            | Self::DuplicateKey { .. }
            | Self::NotText { .. }
            | Self::NotAnObject
            | Self::Values(_)
            | Self::Syntax(_)
            | Self::Shape(_) => StatusCode::BAD_REQUEST,
        }
    }

    /// Whether the body is JSON that does not have the expected shape.
    #[must_use]
    pub const fn is_shape(&self) -> bool {
        matches!(self, Self::NotAnObject | Self::Shape(_))
    }
}

impl From<json::Error> for Error {
    fn from(error: json::Error) -> Self {
        match error {
            json::Error::Invalid(error) => match error.classify() {
                Category::Data => Self::Shape(error),
                Category::Syntax | Category::Eof | Category::Io => Self::Syntax(error),
            },
            json::Error::Violations(mut found) => match found.swap_remove(0) {
                Violation { pointer, kind: ViolationKind::DuplicateKey(key) } => {
                    Self::DuplicateKey { pointer, key }
                }
                Violation { pointer, kind: ViolationKind::TooDeep | ViolationKind::LongKey } => {
                    let pointer = printable(&pointer);
                    Self::TooDeep { at: shortened(&pointer, POINTER_MAX_CHARS).into_owned() }
                }
            },
            error @ (json::Error::Empty | json::Error::TooManyValues(_)) => Self::Values(error),
        }
    }
}

fn too_large(announced: Option<u64>, max: usize) -> String {
    match announced {
        Some(length) => format!("the body has {length} bytes, and {max} are allowed"),
        None => format!("the body is larger than {max} bytes"),
    }
}
