//! The core-module ABI as the sample guests see it: safe, small, and no more than
//! they need. It is no SDK.

mod imports;

pub use serde_json::{Value, json};

/// Room for one HTTP response: the host's own default limit, and the status line.
const RESPONSE_MAX_BYTES: usize = (1 << 20) + 16;
/// Room for the sentence that says why a host function failed.
const ERROR_MAX_BYTES: usize = 4096;

/// Why a host function failed, in the host's words.
pub type Reason = String;

/// What a guest answers.
pub enum Answer {
    /// It worked. The params go to the action that follows.
    Success(Value),
    /// It did not.
    Failure(String),
    /// It did not, in the form that tools can read.
    TypedFailure(Value),
}

impl Answer {
    fn into_json(self) -> Value {
        match self {
            Self::Success(params) => {
                json!({ "action": "Finish", "success": true, "params": params })
            }
            Self::Failure(error) => json!({ "success": false, "error": error }),
            Self::TypedFailure(failure) => json!({ "success": false, "typed_failure": failure }),
        }
    }
}

/// Runs `handler` on the context, and gives its answer to the host. Called by
/// the `run` that [`guest!`] defines.
pub fn answer(handler: impl FnOnce(&Value) -> Answer) -> i32 {
    let answer = match context() {
        Ok(context) => handler(&context),
        Err(reason) => Answer::Failure(reason),
    };
    imports::set_result(&answer.into_json().to_string());
    0
}

fn context() -> Result<Value, Reason> {
    let needed = length(imports::context(&mut []))?;
    let mut bytes = vec![0; needed];
    let written = length(imports::context(&mut bytes))?;
    let bytes = bytes.get(..written).ok_or("the context grew while it was read")?;
    serde_json::from_slice(bytes).map_err(|error| format!("the context is no JSON: {error}"))
}

/// Writes a line to the host's log.
pub fn log(level: &str, text: &str) {
    imports::log(level, text);
}

/// Tells whoever watches how far the handler is. It is a signal, no action.
///
/// # Errors
/// The host refuses it.
pub fn progress(progress: &Value) -> Result<(), Reason> {
    length(imports::emit_progress(&progress.to_string())).map(drop)
}

/// Tells people in a line what the handler is about.
///
/// # Errors
/// The host refuses it.
pub fn status(text: &str) -> Result<(), Reason> {
    length(imports::set_status(text)).map(drop)
}

/// A secret of the integration.
///
/// # Errors
/// The host has none of that name for this handler.
pub fn secret(key: &str) -> Result<String, Reason> {
    let needed = length(imports::secret(key, &mut []))?;
    let mut bytes = vec![0; needed];
    let written = length(imports::secret(key, &mut bytes))?;
    bytes.truncate(written);
    String::from_utf8(bytes).map_err(|_| "the secret is no UTF-8".into())
}

/// Milliseconds since 1970.
pub fn time_millis() -> i64 {
    imports::time_millis()
}

/// The answer to an HTTP request.
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Makes an HTTP request, and waits for the whole answer.
///
/// # Errors
/// The host refused it, or it failed; the host says why.
pub fn http(
    method: &str,
    url: &str,
    headers: &[[&str; 2]],
    body: &str,
) -> Result<Response, Reason> {
    let mut out = vec![0; RESPONSE_MAX_BYTES];
    let headers = json!(headers).to_string();
    let written = length(imports::http_call(method, url, &headers, body, &mut out))?;
    out.truncate(written);
    let text = String::from_utf8(out).map_err(|_| "the response is no UTF-8")?;
    let (status, body) = text.split_once('\n').ok_or("the response has no status line")?;
    let status = status.parse().map_err(|_| "the response's status is no number")?;
    Ok(Response { status, body: body.to_owned() })
}

/// A count that a host function answered, or the reason why it failed.
fn length(answered: i32) -> Result<usize, Reason> {
    match usize::try_from(answered) {
        Ok(count) => Ok(count),
        Err(_) if answered == -2 => Err("the buffer is too small".into()),
        Err(_) => Err(last_error()),
    }
}

fn last_error() -> Reason {
    let mut bytes = vec![0; ERROR_MAX_BYTES];
    let written = usize::try_from(imports::last_error(&mut bytes)).unwrap_or(0);
    bytes.truncate(written);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Defines the module's export `run` by a function from the context to an [`Answer`].
#[macro_export]
macro_rules! guest {
    ($handler:path) => {
        /// The host calls this once per dispatch.
        #[allow(unsafe_code, reason = "the host finds the export by this name")]
        #[unsafe(no_mangle)]
        pub extern "C" fn run(_context: i32, _context_len: i32) -> i32 {
            $crate::answer($handler)
        }
    };
}
