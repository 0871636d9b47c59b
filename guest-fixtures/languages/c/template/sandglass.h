/*
 * sandglass.h: what a handler in C uses of its host, and as much JSON as that takes.
 *
 *     #include "sandglass.h"
 *
 *     static sg_answer greet(sg_text context) {
 *         sg_object params = {0};
 *         sg_put_string(&params, "hello", sg_string(sg_at(context, "trigger_params.name")));
 *         return sg_completed(&params);
 *     }
 *     SG_HANDLER(greet)
 *
 * It is the core-module ABI of Sandglass, whose page says what each host function
 * takes and answers. Every run has an instance of its own, which is dropped when
 * the run ends: so nothing here has to be freed, and nothing is kept between runs.
 *
 * The deadline is the host's. When it has passed, the run ends wherever it is, in
 * the handler's own code too, and no function here returns any more.
 *
 * It needs C11 with a libc for WASI (wasi-libc), and clang or a compiler that knows
 * its attributes. Texts are UTF-8. Times are milliseconds, sizes are bytes.
 */
#ifndef SANDGLASS_H
#define SANDGLASS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Room for one response of HTTP, or one answer of `sg_ask`. As much as the host
 * lets through by default, and a status line; define it larger where the manifest
 * grants a larger `response`. */
#ifndef SG_RESPONSE_BYTES
#define SG_RESPONSE_BYTES ((1 << 20) + 16)
#endif

/* ---- Texts ------------------------------------------------------------------ */

/* A text, or the text of one JSON value. Nothing where `at` is NULL: something was
 * not there. It has no zero at its end unless its maker says so. */
typedef struct {
    const char *at;
    size_t length;
} sg_text;

/* A literal as a text. */
#define SG(literal) ((sg_text){"" literal, sizeof(literal) - 1})

/* A text that ends with a zero. */
static inline sg_text sg_from(const char *text) { return (sg_text){text, text ? strlen(text) : 0}; }

/* Whether two texts are the same. */
static inline bool sg_same(sg_text a, sg_text b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.at, b.at, a.length) == 0);
}

/* ---- The functions of the host, as they are ----------------------------------- */

#define SG_IMPORT(name) __attribute__((import_module("env"), import_name(#name))) extern

SG_IMPORT(host_get_context) int32_t host_get_context(char *out, size_t room);
SG_IMPORT(host_set_result) void host_set_result(const char *json, size_t length);
SG_IMPORT(host_last_error) int32_t host_last_error(char *out, size_t room);
SG_IMPORT(host_log) void host_log(const char *level, size_t level_length, const char *line, size_t length);
SG_IMPORT(host_log_structured) int32_t host_log_structured(const char *json, size_t length);
SG_IMPORT(host_set_status) int32_t host_set_status(const char *line, size_t length);
SG_IMPORT(host_emit_progress) int32_t host_emit_progress(const char *json, size_t length);
SG_IMPORT(host_emit_wide_event) int32_t host_emit_wide_event(const char *json, size_t length);
SG_IMPORT(host_emit_metric) int32_t host_emit_metric(const char *json, size_t length);
SG_IMPORT(host_start_span) int64_t host_start_span(const char *json, size_t length);
SG_IMPORT(host_add_span_event) int32_t host_add_span_event(int64_t span, const char *json, size_t length);
SG_IMPORT(host_set_span_attributes) int32_t host_set_span_attributes(int64_t span, const char *json, size_t length);
SG_IMPORT(host_end_span) int32_t host_end_span(int64_t span, const char *json, size_t length);
SG_IMPORT(host_get_time_millis) int64_t host_get_time_millis(void);
SG_IMPORT(host_deadline_remaining_ms) int64_t host_deadline_remaining_ms(void);
SG_IMPORT(host_should_stop) int32_t host_should_stop(void);
SG_IMPORT(host_read_field) int32_t host_read_field(const char *name, size_t length, char *out, size_t room);
SG_IMPORT(host_get_secret) int32_t host_get_secret(const char *name, size_t length, char *out, size_t room);
SG_IMPORT(host_ask) int32_t host_ask(const char *json, size_t length, char *out, size_t room);
SG_IMPORT(host_signal) int32_t host_signal(const char *json, size_t length);
SG_IMPORT(host_http_call) int32_t host_http_call(
    const char *method, size_t method_length, const char *url, size_t url_length,
    const char *headers, size_t headers_length, const char *body, size_t body_length,
    char *out, size_t room);
SG_IMPORT(host_scratch_get) int32_t host_scratch_get(const char *key, size_t length, char *out, size_t room);
SG_IMPORT(host_scratch_set) int32_t host_scratch_set(
    const char *key, size_t length, const char *value, size_t value_length);
SG_IMPORT(host_scratch_delete) int32_t host_scratch_delete(const char *key, size_t length);

/* ---- JSON that comes in ------------------------------------------------------- */

/* Room for `bytes`. A handler without memory traps, which its entity is told. */
static inline char *sg_room(char *old, size_t bytes) {
    char *room = realloc(old, bytes);
    if (!room) __builtin_trap();
    return room;
}

static inline bool sg_is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static inline const char *sg_skip_space(const char *at, const char *end) {
    while (at < end && sg_is_space(*at)) at++;
    return at;
}

/* Behind the string that begins at `at`, or the end where it doesn't end. */
static inline const char *sg_skip_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end) at++;
    return at < end ? at + 1 : end;
}

static inline bool sg_is_mark(char c) {
    return c == '"' || c == ',' || c == ':' || c == '{' || c == '}' || c == '[' || c == ']' || sg_is_space(c);
}

/* Behind the value that begins at `at`, however deep it is. */
static inline const char *sg_skip_value(const char *at, const char *end) {
    size_t depth = 0;
    do {
        at = sg_skip_space(at, end);
        if (at == end) return end;
        if (*at == '"') {
            at = sg_skip_string(at, end);
        } else if (*at == '{' || *at == '[') {
            depth++, at++;
        } else if (*at == '}' || *at == ']') {
            if (depth > 0) depth--;
            at++;
        } else {
            do at++;
            while (at < end && !sg_is_mark(*at));
        }
    } while (depth > 0);
    return at;
}

/* The value of `key` in the object, or that of its number in the array, that `json` is. */
static inline sg_text sg_member(sg_text json, sg_text key) {
    const sg_text nothing = {NULL, 0};
    if (!json.at) return nothing;
    const char *end = json.at + json.length, *at = sg_skip_space(json.at, end);
    if (at == end || (*at != '{' && *at != '[')) return nothing;
    const bool is_array = *at == '[';
    size_t wanted = 0;
    for (size_t i = 0; is_array && i < key.length; i++) {
        if (key.at[i] < '0' || key.at[i] > '9' || i > 8) return nothing;
        wanted = wanted * 10 + (size_t)(key.at[i] - '0');
    }
    for (size_t index = 0;; index++) {
        at = sg_skip_space(at + 1, end);
        if (at >= end || *at == '}' || *at == ']') return nothing;
        bool found = is_array && index == wanted;
        if (!is_array) {
            const char *behind = sg_skip_string(at, end);
            found = behind - at >= 2 && sg_same((sg_text){at + 1, (size_t)(behind - at) - 2}, key);
            at = sg_skip_space(behind, end);
            if (at == end || *at != ':') return nothing;
            at = sg_skip_space(at + 1, end);
        }
        const char *behind = sg_skip_value(at, end);
        if (found) return (sg_text){at, (size_t)(behind - at)};
        at = sg_skip_space(behind, end);
        if (at == end || *at != ',') return nothing;
    }
}

/* The value at a path of keys and numbers, `"trigger_params.items.0.id"`, as JSON.
 * Nothing where there is none. Keys that have a dot or an escape in them can't be
 * named. It finds; it doesn't validate. */
static inline sg_text sg_at(sg_text json, const char *path) {
    while (*path) {
        const size_t length = strcspn(path, ".");
        json = sg_member(json, (sg_text){path, length});
        path += length + (path[length] == '.');
    }
    return json;
}

static inline int sg_hex(const char *at, const char *end) {
    if (end - at < 4) return -1;
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static inline char *sg_write_utf8(char *out, int c) {
    if (c < 0x80) return *out++ = (char)c, out;
    if (c < 0x800) return *out++ = (char)(0xc0 | c >> 6), *out++ = (char)(0x80 | (c & 63)), out;
    if (c < 0x10000) *out++ = (char)(0xe0 | c >> 12);
    else *out++ = (char)(0xf0 | c >> 18), *out++ = (char)(0x80 | (c >> 12 & 63));
    return *out++ = (char)(0x80 | (c >> 6 & 63)), *out++ = (char)(0x80 | (c & 63)), out;
}

/* What the JSON string means, with a zero behind it. Nothing where it is no string. */
static inline sg_text sg_string(sg_text json) {
    if (!json.at || json.length < 2 || *json.at != '"') return (sg_text){NULL, 0};
    const char *at = json.at + 1, *end = json.at + json.length - 1;
    char *text = sg_room(NULL, json.length), *out = text;
    while (at < end) {
        if (*at != '\\' || at + 1 == end) {
            *out++ = *at++;
            continue;
        }
        const char escape = at[1];
        at += 2;
        if (escape == 'u') {
            int c = sg_hex(at, end);
            if (c >= 0) at += 4;
            if (c >= 0xd800 && c < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u') {
                const int low = sg_hex(at + 2, end);
                if (low >= 0xdc00 && low < 0xe000) c = 0x10000 + ((c - 0xd800) << 10 | (low - 0xdc00)), at += 6;
            }
            if (c < 0 || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
            out = sg_write_utf8(out, c);
        } else {
            *out++ = escape == 'n' ? '\n' : escape == 't' ? '\t' : escape == 'r' ? '\r'
                   : escape == 'b' ? '\b' : escape == 'f' ? '\f' : escape;
        }
    }
    *out = 0;
    return (sg_text){text, (size_t)(out - text)};
}

/* The number that `json` is, or `otherwise` where it is none. */
static inline double sg_number(sg_text json, double otherwise) {
    char digits[64], *end = digits;
    if (!json.at || json.length == 0 || json.length >= sizeof digits) return otherwise;
    if (*json.at != '-' && (*json.at < '0' || *json.at > '9')) return otherwise;
    memcpy(digits, json.at, json.length);
    digits[json.length] = 0;
    const double number = strtod(digits, &end);
    return *end ? otherwise : number;
}

/* The whole number that `json` is, or `otherwise` where it is none. */
static inline int64_t sg_integer(sg_text json, int64_t otherwise) {
    char digits[32], *end = digits;
    if (!json.at || json.length == 0 || json.length >= sizeof digits) return otherwise;
    if (*json.at != '-' && (*json.at < '0' || *json.at > '9')) return otherwise;
    memcpy(digits, json.at, json.length);
    digits[json.length] = 0;
    const int64_t number = strtoll(digits, &end, 10);
    return *end ? otherwise : number;
}

/* Whether `json` is `true`. */
static inline bool sg_is_true(sg_text json) { return sg_same(json, SG("true")); }

/* ---- JSON that goes out ------------------------------------------------------- */

/* An object that is being written: begin with `sg_object it = {0};`. */
typedef struct {
    char *at;
    size_t length, room;
} sg_object;

static inline void sg_write(sg_object *to, const char *bytes, size_t length) {
    if (to->room - to->length < length) {
        to->room = 2 * to->room + length + 64;
        to->at = sg_room(to->at, to->room);
    }
    if (length) memcpy(to->at + to->length, bytes, length);
    to->length += length;
}

static inline void sg_write_string(sg_object *to, sg_text text) {
    sg_write(to, "\"", 1);
    for (size_t i = 0; i < text.length; i++) {
        const unsigned char c = (unsigned char)text.at[i];
        if (c == '"' || c == '\\') {
            sg_write(to, "\\", 1);
            sg_write(to, &text.at[i], 1);
        } else if (c < 0x20) {
            const char escape[] = {'\\', 'u', '0', '0', (char)('0' + (c >> 4)), "0123456789abcdef"[c & 15]};
            sg_write(to, escape, sizeof escape);
        } else {
            sg_write(to, &text.at[i], 1);
        }
    }
    sg_write(to, "\"", 1);
}

/* Puts a JSON value under a key: `null` where it is nothing. */
static inline void sg_put(sg_object *to, const char *key, sg_text json) {
    sg_write(to, to->length ? "," : "{", 1);
    sg_write_string(to, sg_from(key));
    sg_write(to, ":", 1);
    if (json.at) sg_write(to, json.at, json.length);
    else sg_write(to, "null", 4);
}

/* Puts a text under a key: `null` where it is nothing. The host refuses a result
 * that isn't UTF-8. */
static inline void sg_put_string(sg_object *to, const char *key, sg_text text) {
    sg_object string = {0};
    if (text.at) sg_write_string(&string, text);
    sg_put(to, key, (sg_text){string.at, string.length});
    free(string.at);
}

/* Puts a whole number under a key. */
static inline void sg_put_integer(sg_object *to, const char *key, int64_t number) {
    char digits[24], *at = digits + sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    do *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--at = '-';
    sg_put(to, key, (sg_text){at, (size_t)(digits + sizeof digits - at)});
}

/* Puts a truth value under a key. */
static inline void sg_put_bool(sg_object *to, const char *key, bool value) {
    sg_put(to, key, value ? SG("true") : SG("false"));
}

/* The object as JSON. It stays writable; what was had before is then stale. */
static inline sg_text sg_json(sg_object *object) {
    if (!object || !object->length) return SG("{}");
    sg_write(object, "}", 1);
    return (sg_text){object->at, object->length--};
}

/* ---- What a handler answers --------------------------------------------------- */

/* The result, as the host reads it. */
typedef struct {
    sg_text json;
} sg_answer;

/* The work is done, and the entity takes `action`. */
static inline sg_answer sg_completed_as(const char *action, sg_object *params) {
    sg_object answer = {0};
    sg_put_bool(&answer, "success", true);
    if (action) sg_put_string(&answer, "action", sg_from(action));
    sg_put(&answer, "params", sg_json(params));
    return (sg_answer){sg_json(&answer)};
}

/* The work is done, and the entity takes what its spec declares as `on_success`.
 * No params where `params` is NULL. */
static inline sg_answer sg_completed(sg_object *params) { return sg_completed_as(NULL, params); }

/* The work could not be done, for a reason that people read. */
static inline sg_answer sg_failed(sg_text reason) {
    sg_object answer = {0};
    sg_put_bool(&answer, "success", false);
    sg_put_string(&answer, "error", reason.at ? reason : SG("no reason given"));
    return (sg_answer){sg_json(&answer)};
}

/* The work could not be done, for a reason that tools read: `category` and `code`
 * must not be empty. `retryability` is `retryable` by custom where trying again can
 * help, or NULL; so may be `details`. */
static inline sg_answer sg_failed_typed(
    const char *category, const char *code, const char *retryability, sg_object *details) {
    sg_object failure = {0}, answer = {0};
    sg_put_integer(&failure, "version", 1);
    sg_put_string(&failure, "category", sg_from(category));
    sg_put_string(&failure, "code", sg_from(code));
    if (retryability) sg_put_string(&failure, "retryability", sg_from(retryability));
    if (details) sg_put(&failure, "details", sg_json(details));
    sg_put_bool(&answer, "success", false);
    sg_put(&answer, "typed_failure", sg_json(&failure));
    return (sg_answer){sg_json(&answer)};
}

/* ---- What a handler asks of its host ------------------------------------------ */

/* Why the last function that failed did so, in a sentence of the host's. */
static inline sg_text sg_last_error(void) {
    char *text = sg_room(NULL, 1024);
    const int32_t length = host_last_error(text, 1024);
    return length > 0 ? (sg_text){text, (size_t)length} : SG("the host gives no reason");
}

/* The context of the run: an object with `trigger_params`, `entity_state`,
 * `integration_config` and more. A handler is given it. */
static inline sg_text sg_context(void) {
    const int32_t needed = host_get_context(NULL, 0);
    if (needed <= 0) return (sg_text){NULL, 0};
    char *text = sg_room(NULL, (size_t)needed);
    const int32_t length = host_get_context(text, (size_t)needed);
    return length > 0 && length <= needed ? (sg_text){text, (size_t)length} : (sg_text){NULL, 0};
}

/* A secret that the manifest grants, with a zero behind it; nothing where there is
 * none, and `sg_last_error` says why. */
static inline sg_text sg_secret(const char *name) {
    const int32_t needed = host_get_secret(name, strlen(name), NULL, 0);
    if (needed < 0) return (sg_text){NULL, 0};
    char *text = sg_room(NULL, (size_t)needed + 1);
    const int32_t length = host_get_secret(name, strlen(name), text, (size_t)needed);
    if (length < 0 || length > needed) return (sg_text){NULL, 0};
    text[length] = 0;
    return (sg_text){text, (size_t)length};
}

/* Writes a line to the log: `trace`, `debug`, `info`, `warn` or `error`. */
static inline void sg_log(const char *level, sg_text line) {
    host_log(level, strlen(level), line.at, line.length);
}

/* Tells people in a line what the handler is doing; cut after 256 bytes. */
static inline void sg_status(sg_text line) { (void)host_set_status(line.at, line.length); }

/* Tells how far the handler has come. A text `kind` is the kind of the signal, which
 * is `progress` without one. False where the host refuses it. */
static inline bool sg_progress(sg_object *progress) {
    const sg_text json = sg_json(progress);
    return host_emit_progress(json.at, json.length) == 0;
}

/* Milliseconds since 1970 (UTC). */
static inline int64_t sg_now_ms(void) { return host_get_time_millis(); }

/* What is left of the budget, in milliseconds, rounded down. */
static inline int64_t sg_deadline_remaining_ms(void) { return host_deadline_remaining_ms(); }

/* Whether the soft deadline has passed: time to save the work and answer. Never
 * true where the manifest has no `soft_deadline`. */
static inline bool sg_should_stop(void) { return host_should_stop() == 1; }

/* Of all that is answered into it, the last. */
static char sg_response_room[SG_RESPONSE_BYTES];

/* The answer to a request. Any status is one. */
typedef struct {
    int status;   /* 0 where the request failed: `sg_last_error` says why */
    sg_text body; /* until the next `sg_http` or `sg_ask` */
} sg_response;

/* Makes a request to a host that the manifest grants, and waits for the whole
 * response. `headers` are a JSON array of pairs, `[["accept","text/plain"]]`, or
 * nothing; so may the body be. Past the soft deadline a wait that began before it
 * ends as failed, so that the work can be saved. */
static inline sg_response sg_http(sg_text method, sg_text url, sg_text headers, sg_text body) {
    sg_response response = {0, {NULL, 0}};
    const int32_t length = host_http_call(
        method.at, method.length, url.at, url.length, headers.at, headers.length,
        body.at, body.length, sg_response_room, sizeof sg_response_room);
    if (length <= 0) return response;
    const char *at = sg_response_room, *end = at + length;
    for (; at < end && *at != '\n'; at++) response.status = response.status * 10 + (*at - '0');
    if (at < end) response.body = (sg_text){at + 1, (size_t)(end - at - 1)};
    return response;
}

/* GETs a URL. */
static inline sg_response sg_get(sg_text url) {
    return sg_http(SG("GET"), url, (sg_text){NULL, 0}, (sg_text){NULL, 0});
}

/* Asks another entity to take an action, `{"entity", "action", "params", "until"}`,
 * and waits for `{"sequence", "state", "fields"}`. Nothing where that failed:
 * `sg_last_error` says why. The answer is there until the next `sg_ask` or `sg_http`. */
static inline sg_text sg_ask(sg_object *ask) {
    const sg_text json = sg_json(ask);
    const int32_t length = host_ask(json.at, json.length, sg_response_room, sizeof sg_response_room);
    return length < 0 ? (sg_text){NULL, 0} : (sg_text){sg_response_room, (size_t)length};
}

/* Sends a signal to another entity, `{"entity", "name", "payload"}`, and waits until
 * the entity has recorded it. A signal changes no state. False if that failed:
 * `sg_last_error` returns why, beginning with a code such as `signal_not_allowed`. */
static inline bool sg_signal(sg_object *notice) {
    const sg_text json = sg_json(notice);
    return host_signal(json.at, json.length) == 0;
}

/* Makes `handler`, an `sg_answer (sg_text context)`, what the host runs. Once, in
 * one file of the module. */
#define SG_HANDLER(handler)                                                                        \
    __attribute__((export_name("run"))) int32_t sg_run(int32_t context, int32_t context_length) {  \
        (void)context, (void)context_length;                                                       \
        const sg_answer answer = handler(sg_context());                                            \
        host_set_result(answer.json.at, answer.json.length);                                       \
        return 0;                                                                                  \
    }

#endif
