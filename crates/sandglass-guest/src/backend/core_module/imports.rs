//! The functions of the module `env` with their raw types, and a safe wrapper for each. The only
//! unsafe code of the SDK.

#![allow(unsafe_code, reason = "calls of foreign functions are unsafe")]

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn host_get_context(out: *mut u8, out_len: usize) -> i32;
    fn host_set_result(result: *const u8, result_len: usize);
    fn host_last_error(out: *mut u8, out_len: usize) -> i32;
    fn host_log(level: *const u8, level_len: usize, text: *const u8, text_len: usize);
    fn host_set_status(text: *const u8, text_len: usize) -> i32;
    fn host_emit_progress(json: *const u8, json_len: usize) -> i32;
    fn host_log_structured(json: *const u8, json_len: usize) -> i32;
    fn host_emit_wide_event(json: *const u8, json_len: usize) -> i32;
    fn host_emit_metric(json: *const u8, json_len: usize) -> i32;
    fn host_start_span(json: *const u8, json_len: usize) -> i64;
    fn host_add_span_event(span: i64, json: *const u8, json_len: usize) -> i32;
    fn host_set_span_attributes(span: i64, json: *const u8, json_len: usize) -> i32;
    fn host_end_span(span: i64, json: *const u8, json_len: usize) -> i32;
    fn host_get_time_millis() -> i64;
    fn host_deadline_remaining_ms() -> i64;
    fn host_should_stop() -> i32;
    fn host_scratch_get(key: *const u8, key_len: usize, out: *mut u8, out_len: usize) -> i32;
    fn host_scratch_set(key: *const u8, key_len: usize, value: *const u8, value_len: usize) -> i32;
    fn host_scratch_delete(key: *const u8, key_len: usize) -> i32;
    fn host_get_secret(key: *const u8, key_len: usize, out: *mut u8, out_len: usize) -> i32;
    fn host_ask(json: *const u8, json_len: usize, out: *mut u8, out_len: usize) -> i32;
    fn host_signal(json: *const u8, json_len: usize) -> i32;
    fn host_http_call(
        method: *const u8,
        method_len: usize,
        url: *const u8,
        url_len: usize,
        headers: *const u8,
        headers_len: usize,
        body: *const u8,
        body_len: usize,
        out: *mut u8,
        out_len: usize,
    ) -> i32;
    fn host_http_call_batch(json: *const u8, json_len: usize, out: *mut u8, out_len: usize) -> i32;
}

/// A buffer that the host may fill.
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// How many bytes the host may write.
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the first `bytes` bytes, which the host states that it has written.
    pub(super) fn into_written(mut self, bytes: usize) -> Vec<u8> {
        let bytes = bytes.min(self.0.capacity());
        // SAFETY: `bytes` is within the capacity. By contract the host has written that many; and if it
        // has not, every byte of a WebAssembly memory is initialized.
        unsafe { self.0.set_len(bytes) };
        self.0
    }
}

// SAFETY (of every call below): each pointer and length come from one live slice, or from one
// allocation and its capacity, beyond which the host does not write. The host keeps no pointer.

pub(super) fn context(out: &mut Buffer) -> i32 {
    // SAFETY: see above.
    unsafe { host_get_context(out.0.as_mut_ptr(), out.0.capacity()) }
}

pub(super) fn set_result(result: &str) {
    // SAFETY: see above.
    unsafe { host_set_result(result.as_ptr(), result.len()) }
}

pub(super) fn last_error(out: &mut Buffer) -> i32 {
    // SAFETY: see above.
    unsafe { host_last_error(out.0.as_mut_ptr(), out.0.capacity()) }
}

pub(super) fn log(level: &str, text: &str) {
    // SAFETY: see above.
    unsafe { host_log(level.as_ptr(), level.len(), text.as_ptr(), text.len()) }
}

pub(super) fn set_status(text: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_set_status(text.as_ptr(), text.len()) }
}

pub(super) fn emit_progress(json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_emit_progress(json.as_ptr(), json.len()) }
}

pub(super) fn log_structured(json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_log_structured(json.as_ptr(), json.len()) }
}

pub(super) fn emit_wide_event(json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_emit_wide_event(json.as_ptr(), json.len()) }
}

pub(super) fn emit_metric(json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_emit_metric(json.as_ptr(), json.len()) }
}

pub(super) fn start_span(json: &str) -> i64 {
    // SAFETY: see above.
    unsafe { host_start_span(json.as_ptr(), json.len()) }
}

pub(super) fn add_span_event(span: i64, json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_add_span_event(span, json.as_ptr(), json.len()) }
}

pub(super) fn set_span_attributes(span: i64, json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_set_span_attributes(span, json.as_ptr(), json.len()) }
}

pub(super) fn end_span(span: i64, json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_end_span(span, json.as_ptr(), json.len()) }
}

pub(super) fn time_millis() -> i64 {
    // SAFETY: it has no arguments.
    unsafe { host_get_time_millis() }
}

pub(super) fn deadline_remaining_ms() -> i64 {
    // SAFETY: it has no arguments.
    unsafe { host_deadline_remaining_ms() }
}

pub(super) fn should_stop() -> i32 {
    // SAFETY: it has no arguments.
    unsafe { host_should_stop() }
}

pub(super) fn scratch_get(key: &str, out: &mut Buffer) -> i32 {
    // SAFETY: see above.
    unsafe { host_scratch_get(key.as_ptr(), key.len(), out.0.as_mut_ptr(), out.0.capacity()) }
}

pub(super) fn scratch_set(key: &str, value: &[u8]) -> i32 {
    // SAFETY: see above.
    unsafe { host_scratch_set(key.as_ptr(), key.len(), value.as_ptr(), value.len()) }
}

pub(super) fn scratch_delete(key: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_scratch_delete(key.as_ptr(), key.len()) }
}

pub(super) fn secret(key: &str, out: &mut Buffer) -> i32 {
    // SAFETY: see above.
    unsafe { host_get_secret(key.as_ptr(), key.len(), out.0.as_mut_ptr(), out.0.capacity()) }
}

pub(super) fn ask(json: &str, out: &mut Buffer) -> i32 {
    // SAFETY: see above.
    unsafe { host_ask(json.as_ptr(), json.len(), out.0.as_mut_ptr(), out.0.capacity()) }
}

pub(super) fn signal(json: &str) -> i32 {
    // SAFETY: see above.
    unsafe { host_signal(json.as_ptr(), json.len()) }
}

pub(super) fn http_call(
    method: &str,
    url: &str,
    headers: &str,
    body: &[u8],
    out: &mut Buffer,
) -> i32 {
    // SAFETY: see above.
    unsafe {
        host_http_call(
            method.as_ptr(),
            method.len(),
            url.as_ptr(),
            url.len(),
            headers.as_ptr(),
            headers.len(),
            body.as_ptr(),
            body.len(),
            out.0.as_mut_ptr(),
            out.0.capacity(),
        )
    }
}

pub(super) fn http_call_batch(json: &str, out: &mut Buffer) -> i32 {
    // SAFETY: see above.
    unsafe { host_http_call_batch(json.as_ptr(), json.len(), out.0.as_mut_ptr(), out.0.capacity()) }
}
