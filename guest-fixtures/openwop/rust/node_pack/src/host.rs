//! What the host does for a node: the imports of the module `openwop`.
#![allow(unsafe_code, reason = "imports are foreign functions")]

use serde_json::Value;

use crate::memory::take;

/// How important a line of the log is.
#[derive(Clone, Copy, Debug)]
pub enum Level {
    /// 0.
    Trace,
    /// 1.
    Debug,
    /// 2.
    Info,
    /// 3.
    Warn,
    /// 4.
    Error,
}

#[link(wasm_import_module = "openwop")]
unsafe extern "C" {
    fn openwop_channel_read(name: *const u8, name_len: usize) -> u64;
    fn openwop_channel_write(
        name: *const u8,
        name_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> i32;
    fn openwop_variable_get(name: *const u8, name_len: usize) -> u64;
    fn openwop_variable_set(
        name: *const u8,
        name_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> i32;
    fn openwop_interrupt(payload: *const u8, payload_len: usize) -> u64;
    fn openwop_log(level: i32, message: *const u8, message_len: usize);
    fn openwop_now_ms() -> i64;
    fn openwop_random(out: *mut u8, len: usize);
}

/// The channel's value; none where there is no such channel, or it has no value.
#[must_use]
pub fn channel_read(name: &str) -> Option<Value> {
    // SAFETY: a name is as long as it says.
    json(take(unsafe { openwop_channel_read(name.as_ptr(), name.len()) }))
}

/// Writes `value`, which should be JSON, and answers the status: 0 where it was written.
#[must_use]
pub fn channel_write(name: &str, value: &str) -> i32 {
    // SAFETY: both texts are as long as they say.
    unsafe { openwop_channel_write(name.as_ptr(), name.len(), value.as_ptr(), value.len()) }
}

/// The variable's value; none where there is no such variable, or it has no value.
#[must_use]
pub fn variable_get(name: &str) -> Option<Value> {
    // SAFETY: a name is as long as it says.
    json(take(unsafe { openwop_variable_get(name.as_ptr(), name.len()) }))
}

/// Sets the variable to `value`, which should be JSON, and answers the status: 0 where it was set.
#[must_use]
pub fn variable_set(name: &str, value: &str) -> i32 {
    // SAFETY: both texts are as long as they say.
    unsafe { openwop_variable_set(name.as_ptr(), name.len(), value.as_ptr(), value.len()) }
}

/// Asks what `payload` says. Where nobody has answered yet, this doesn't come back: the host
/// unwinds the guest, and invokes the node again with the answer.
#[must_use]
pub fn interrupt(payload: &Value) -> Option<Value> {
    let payload = payload.to_string();
    // SAFETY: a payload is as long as it says.
    json(take(unsafe { openwop_interrupt(payload.as_ptr(), payload.len()) }))
}

/// Writes a line to the run's log.
pub fn log(level: Level, message: &str) {
    // SAFETY: a message is as long as it says.
    unsafe { openwop_log(level as i32, message.as_ptr(), message.len()) }
}

/// The host's wall clock, in milliseconds since the Unix epoch.
#[must_use]
pub fn now_ms() -> i64 {
    // SAFETY: it takes and writes nothing.
    unsafe { openwop_now_ms() }
}

/// `N` bytes that nobody could foretell, the same in a replay.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: there is room for `N` bytes.
    unsafe { openwop_random(bytes.as_mut_ptr(), N) };
    bytes
}

/// A host that answers what is no JSON has answered nothing.
fn json(bytes: Option<Vec<u8>>) -> Option<Value> {
    serde_json::from_slice(&bytes?).ok()
}
