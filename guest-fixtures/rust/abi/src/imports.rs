//! The host functions that these guests use, with their raw types. The only
//! unsafe code of the fixtures; the crate's root makes it safe.

#![allow(unsafe_code, reason = "a foreign function is unsafe to call")]

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn host_log(level: *const u8, level_len: usize, text: *const u8, text_len: usize);
    fn host_get_context(out: *mut u8, out_len: usize) -> i32;
    fn host_set_result(result: *const u8, result_len: usize);
    fn host_last_error(out: *mut u8, out_len: usize) -> i32;
    fn host_emit_progress(json: *const u8, json_len: usize) -> i32;
    fn host_set_status(text: *const u8, text_len: usize) -> i32;
    fn host_get_secret(key: *const u8, key_len: usize, out: *mut u8, out_len: usize) -> i32;
    fn host_get_time_millis() -> i64;
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
}

// SAFETY (of every call here): each pointer and length come from one live slice,
// and the host writes at most the length that it is given.

pub(crate) fn log(level: &str, text: &str) {
    unsafe { host_log(level.as_ptr(), level.len(), text.as_ptr(), text.len()) }
}

pub(crate) fn context(out: &mut [u8]) -> i32 {
    unsafe { host_get_context(out.as_mut_ptr(), out.len()) }
}

pub(crate) fn set_result(result: &str) {
    unsafe { host_set_result(result.as_ptr(), result.len()) }
}

pub(crate) fn last_error(out: &mut [u8]) -> i32 {
    unsafe { host_last_error(out.as_mut_ptr(), out.len()) }
}

pub(crate) fn emit_progress(json: &str) -> i32 {
    unsafe { host_emit_progress(json.as_ptr(), json.len()) }
}

pub(crate) fn set_status(text: &str) -> i32 {
    unsafe { host_set_status(text.as_ptr(), text.len()) }
}

pub(crate) fn secret(key: &str, out: &mut [u8]) -> i32 {
    unsafe { host_get_secret(key.as_ptr(), key.len(), out.as_mut_ptr(), out.len()) }
}

pub(crate) fn time_millis() -> i64 {
    unsafe { host_get_time_millis() }
}

pub(crate) fn http_call(method: &str, url: &str, headers: &str, body: &str, out: &mut [u8]) -> i32 {
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
            out.as_mut_ptr(),
            out.len(),
        )
    }
}
