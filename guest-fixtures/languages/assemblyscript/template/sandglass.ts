/**
 * sandglass.ts: what a handler in AssemblyScript uses of its host, and as much JSON
 * as that takes.
 *
 *     import { JsonObject, answer, asString, at, completed } from "./sandglass";
 *
 *     function greet(context: string): string {
 *       const name = asString(at(context, "trigger_params.name"));
 *       return completed(new JsonObject().string("hello", name));
 *     }
 *
 *     export function run(_context: i32, _length: i32): i32 {
 *       return answer(greet);
 *     }
 *
 * Built with `--use abort=sandglass/abort` (a path as asc names it), since the host
 * has no `env.abort`.
 *
 * It is the core-module ABI of Sandglass, whose page says what each host function
 * takes and answers. Every run has an instance of its own, which is dropped when the
 * run ends; nothing is kept between runs.
 *
 * The deadline is the host's. When it has passed, the run ends wherever it is, in the
 * handler's own code too, and no function here returns any more.
 *
 * JSON is held as its text. Times are milliseconds, sizes are bytes.
 */

/** Room for one response of HTTP, or one answer of `ask`: as much as the host lets
 * through by default, and a status line. Larger where the manifest grants a larger
 * `response`. */
export const RESPONSE_BYTES: i32 = (1 << 20) + 16;

// ---- The functions of the host, as they are

@external("env", "host_get_context")
declare function host_get_context(out: usize, room: i32): i32;
@external("env", "host_set_result")
declare function host_set_result(json: usize, length: i32): void;
@external("env", "host_last_error")
declare function host_last_error(out: usize, room: i32): i32;
@external("env", "host_log")
declare function host_log(level: usize, levelLength: i32, line: usize, length: i32): void;
@external("env", "host_set_status")
declare function host_set_status(line: usize, length: i32): i32;
@external("env", "host_emit_progress")
declare function host_emit_progress(json: usize, length: i32): i32;
@external("env", "host_get_time_millis")
declare function host_get_time_millis(): i64;
@external("env", "host_deadline_remaining_ms")
declare function host_deadline_remaining_ms(): i64;
@external("env", "host_should_stop")
declare function host_should_stop(): i32;
@external("env", "host_get_secret")
declare function host_get_secret(name: usize, length: i32, out: usize, room: i32): i32;
@external("env", "host_ask")
declare function host_ask(json: usize, length: i32, out: usize, room: i32): i32;
@external("env", "host_signal")
declare function host_signal(json: usize, length: i32): i32;
@external("env", "host_http_call")
declare function host_http_call(
  method: usize, methodLength: i32, url: usize, urlLength: i32,
  headers: usize, headersLength: i32, body: usize, bodyLength: i32,
  out: usize, room: i32,
): i32;

// ---- Texts between here and the host

function utf8(text: string): ArrayBuffer {
  return String.UTF8.encode(text);
}

function pointer(bytes: ArrayBuffer): usize {
  return changetype<usize>(bytes);
}

function decoded(bytes: ArrayBuffer, length: i32): string {
  return String.UTF8.decodeUnsafe(pointer(bytes), <usize>length);
}

// ---- JSON that comes in

const QUOTE: i32 = 0x22, BACKSLASH: i32 = 0x5c, COMMA: i32 = 0x2c, COLON: i32 = 0x3a;
const OPEN_BRACE: i32 = 0x7b, CLOSE_BRACE: i32 = 0x7d, OPEN_BRACKET: i32 = 0x5b, CLOSE_BRACKET: i32 = 0x5d;

function isSpace(c: i32): bool {
  return c == 0x20 || c == 0x09 || c == 0x0a || c == 0x0d;
}

function isMark(c: i32): bool {
  return c == QUOTE || c == COMMA || c == COLON || c == OPEN_BRACE || c == CLOSE_BRACE
    || c == OPEN_BRACKET || c == CLOSE_BRACKET || isSpace(c);
}

function skipSpace(json: string, at: i32): i32 {
  while (at < json.length && isSpace(json.charCodeAt(at))) at++;
  return at;
}

/** Behind the string that begins at `at`, or the end where it doesn't end. */
function skipString(json: string, at: i32): i32 {
  for (at++; at < json.length && json.charCodeAt(at) != QUOTE; at++) {
    if (json.charCodeAt(at) == BACKSLASH && at + 1 < json.length) at++;
  }
  return at < json.length ? at + 1 : json.length;
}

/** Behind the value that begins at `at`, however deep it is. */
function skipValue(json: string, at: i32): i32 {
  let depth = 0;
  do {
    at = skipSpace(json, at);
    if (at == json.length) return at;
    const c = json.charCodeAt(at);
    if (c == QUOTE) {
      at = skipString(json, at);
    } else if (c == OPEN_BRACE || c == OPEN_BRACKET) {
      depth++;
      at++;
    } else if (c == CLOSE_BRACE || c == CLOSE_BRACKET) {
      if (depth > 0) depth--;
      at++;
    } else {
      do at++;
      while (at < json.length && !isMark(json.charCodeAt(at)));
    }
  } while (depth > 0);
  return at;
}

/** The number that a key of an array is, or -1. */
function indexOf(key: string): i32 {
  if (key.length == 0 || key.length > 9) return -1;
  let index = 0;
  for (let i = 0; i < key.length; i++) {
    const digit = key.charCodeAt(i) - 0x30;
    if (digit < 0 || digit > 9) return -1;
    index = index * 10 + digit;
  }
  return index;
}

/** The value of `key` in the object, or that of its number in the array, that `json` is. */
function member(json: string, key: string): string {
  let at = skipSpace(json, 0);
  if (at == json.length) return "";
  const isArray = json.charCodeAt(at) == OPEN_BRACKET;
  if (!isArray && json.charCodeAt(at) != OPEN_BRACE) return "";
  const wanted = indexOf(key);
  if (isArray && wanted < 0) return "";
  let index = 0;
  while (true) {
    at = skipSpace(json, at + 1);
    if (at >= json.length) return "";
    const first = json.charCodeAt(at);
    if (first == CLOSE_BRACE || first == CLOSE_BRACKET) return "";
    let found = isArray && index == wanted;
    if (!isArray) {
      const behind = skipString(json, at);
      found = behind - at >= 2 && json.substring(at + 1, behind - 1) == key;
      at = skipSpace(json, behind);
      if (at == json.length || json.charCodeAt(at) != COLON) return "";
      at = skipSpace(json, at + 1);
    }
    const behind = skipValue(json, at);
    if (found) return json.substring(at, behind);
    at = skipSpace(json, behind);
    if (at == json.length || json.charCodeAt(at) != COMMA) return "";
    index++;
  }
}

/** The value at a path of keys and numbers, `"trigger_params.items.0.id"`, as JSON. An
 * empty text where there is none. Keys that have a dot or an escape in them can't be
 * named. It finds; it doesn't validate. */
export function at(json: string, path: string): string {
  const keys = path.split(".");
  for (let i = 0; i < keys.length; i++) json = member(json, keys[i]);
  return json;
}

/** What four hexadecimal digits say, or -1. */
function hex(json: string, at: i32): i32 {
  if (at + 4 > json.length) return -1;
  let value = 0;
  for (let i = at; i < at + 4; i++) {
    const c = json.charCodeAt(i), lower = c | 0x20;
    if (c >= 0x30 && c <= 0x39) value = value * 16 + c - 0x30;
    else if (lower >= 0x61 && lower <= 0x66) value = value * 16 + lower - 0x61 + 10;
    else return -1;
  }
  return value;
}

/** What the JSON string means; null where it is no string. */
export function asString(json: string): string | null {
  const end = json.length - 1;
  if (end < 1 || json.charCodeAt(0) != QUOTE || json.charCodeAt(end) != QUOTE) return null;
  let text = "", from = 1;
  for (let at = 1; at < end; at++) {
    if (json.charCodeAt(at) != BACKSLASH || at + 1 == end) continue;
    text += json.substring(from, at);
    const escape = json.charCodeAt(++at);
    if (escape == 0x75) {
      const unit = hex(json, at + 1);
      text += String.fromCharCode(unit < 0 ? 0xfffd : unit);
      if (unit >= 0) at += 4;
    } else if (escape == 0x6e) text += "\n";
    else if (escape == 0x74) text += "\t";
    else if (escape == 0x72) text += "\r";
    else if (escape == 0x62) text += "\b";
    else if (escape == 0x66) text += "\f";
    else text += String.fromCharCode(escape);
    from = at + 1;
  }
  return text + json.substring(from, end);
}

/** The whole number that `json` is, or `otherwise` where it is none. */
export function asInteger(json: string, otherwise: i64 = 0): i64 {
  const first = json.startsWith("-") ? 1 : 0;
  if (json.length == first || json.length > 20) return otherwise;
  for (let i = first; i < json.length; i++) {
    const c = json.charCodeAt(i);
    if (c < 0x30 || c > 0x39) return otherwise;
  }
  return I64.parseInt(json);
}

/** Whether `json` is `true`. */
export function isTrue(json: string): bool {
  return json == "true";
}

// ---- JSON that goes out

/** A JSON string that means `text`; null becomes `null`. */
export function quoted(text: string | null): string {
  if (text === null) return "null";
  let json = '"', from = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c != QUOTE && c != BACKSLASH && c >= 0x20) continue;
    json += text.substring(from, i);
    if (c == QUOTE) json += '\\"';
    else if (c == BACKSLASH) json += "\\\\";
    else json += "\\u00" + (c < 0x10 ? "0" : "1") + (c & 15).toString(16);
    from = i + 1;
  }
  return json + text.substring(from) + '"';
}

/** An object that is being written. */
export class JsonObject {
  private members: string = "";

  /** Puts a JSON value under a key: `null` where it is an empty text. */
  json(key: string, json: string): JsonObject {
    if (this.members.length) this.members += ",";
    this.members += quoted(key) + ":" + (json.length ? json : "null");
    return this;
  }

  /** Puts a text under a key. */
  string(key: string, text: string | null): JsonObject {
    return this.json(key, quoted(text));
  }

  /** Puts a whole number under a key. */
  integer(key: string, value: i64): JsonObject {
    return this.json(key, value.toString());
  }

  /** Puts a truth value under a key. */
  bool(key: string, value: bool): JsonObject {
    return this.json(key, value ? "true" : "false");
  }

  /** The object as JSON. */
  toString(): string {
    return "{" + this.members + "}";
  }
}

// ---- What a handler answers

/** The work is done. The entity takes `action`, or, without one, what its spec declares
 * as `on_success`. */
export function completed(params: JsonObject | null = null, action: string | null = null): string {
  const result = new JsonObject().bool("success", true);
  if (action !== null) result.string("action", action);
  if (params !== null) result.json("params", params.toString());
  return result.toString();
}

/** The work could not be done, for a reason that people read. */
export function failed(reason: string): string {
  return new JsonObject().bool("success", false).string("error", reason).toString();
}

/** The work could not be done, for a reason that tools read: `category` and `code` must
 * not be empty; `retryability` is `retryable` by custom where trying again can help. */
export function failedTyped(
  category: string, code: string, retryability: string | null = null, details: JsonObject | null = null,
): string {
  const failure = new JsonObject().integer("version", 1).string("category", category).string("code", code);
  if (retryability !== null) failure.string("retryability", retryability);
  if (details !== null) failure.json("details", details.toString());
  return new JsonObject().bool("success", false).json("typed_failure", failure.toString()).toString();
}

/** Runs `handler` on the context (an object with `trigger_params`, `entity_state`,
 * `integration_config` and more), and gives its answer to the host: what the module's
 * `run` returns. */
export function answer(handler: (context: string) => string): i32 {
  const needed = host_get_context(0, 0);
  const room = new ArrayBuffer(max(needed, 0));
  const length = host_get_context(pointer(room), room.byteLength);
  const result = length > 0 && length <= room.byteLength
    ? handler(decoded(room, length))
    : failed("the context can't be read");
  const bytes = utf8(result);
  host_set_result(pointer(bytes), bytes.byteLength);
  return 0;
}

// ---- What a handler asks of its host

/** Why the last function that failed did so, in a sentence of the host's. */
export function lastError(): string {
  const room = new ArrayBuffer(1024);
  const length = host_last_error(pointer(room), room.byteLength);
  return length > 0 ? decoded(room, length) : "the host gives no reason";
}

/** Writes a line to the log: `trace`, `debug`, `info`, `warn` or `error`. */
export function log(level: string, line: string): void {
  const levelBytes = utf8(level), lineBytes = utf8(line);
  host_log(pointer(levelBytes), levelBytes.byteLength, pointer(lineBytes), lineBytes.byteLength);
}

/** Tells people in a line what the handler is doing; cut after 256 bytes. */
export function status(line: string): void {
  const bytes = utf8(line);
  host_set_status(pointer(bytes), bytes.byteLength);
}

/** Tells how far the handler has come. A text `kind` is the kind of the signal, which is
 * `progress` without one. False where the host refuses it. */
export function progress(progress: JsonObject): bool {
  const bytes = utf8(progress.toString());
  return host_emit_progress(pointer(bytes), bytes.byteLength) == 0;
}

/** Milliseconds since 1970 (UTC). */
export function nowMs(): i64 {
  return host_get_time_millis();
}

/** What is left of the budget, in milliseconds, rounded down. */
export function deadlineRemainingMs(): i64 {
  return host_deadline_remaining_ms();
}

/** Whether the soft deadline has passed: time to save the work and answer. Never true
 * where the manifest has no `soft_deadline`. */
export function shouldStop(): bool {
  return host_should_stop() == 1;
}

/** A secret that the manifest grants; null where there is none, and `lastError` says why. */
export function secret(name: string): string | null {
  const bytes = utf8(name);
  const needed = host_get_secret(pointer(bytes), bytes.byteLength, 0, 0);
  if (needed < 0) return null;
  const room = new ArrayBuffer(needed);
  const length = host_get_secret(pointer(bytes), bytes.byteLength, pointer(room), needed);
  return length < 0 || length > needed ? null : decoded(room, length);
}

/** The answer to a request. Any status is one. */
export class Response {
  constructor(
    /** 0 where the request failed: `lastError` says why. */
    public status: i32,
    /** What is no UTF-8 in it, is not as it was. */
    public body: string,
  ) {}
}

let responseRoom: ArrayBuffer | null = null;

function roomForResponse(): ArrayBuffer {
  let room = responseRoom;
  if (room === null) {
    room = new ArrayBuffer(RESPONSE_BYTES);
    responseRoom = room;
  }
  return room;
}

/** Makes a request to a host that the manifest grants, and waits for the whole response.
 * `headers` are a JSON array of pairs, `[["accept","text/plain"]]`, or empty. Past the
 * soft deadline a wait that began before it ends as failed, so that the work can be
 * saved. */
export function http(method: string, url: string, headers: string = "", body: string = ""): Response {
  const methodBytes = utf8(method), urlBytes = utf8(url), headerBytes = utf8(headers), bodyBytes = utf8(body);
  const room = roomForResponse();
  const length = host_http_call(
    pointer(methodBytes), methodBytes.byteLength, pointer(urlBytes), urlBytes.byteLength,
    pointer(headerBytes), headerBytes.byteLength, pointer(bodyBytes), bodyBytes.byteLength,
    pointer(room), room.byteLength,
  );
  if (length <= 0) return new Response(0, "");
  const text = decoded(room, length), line = text.indexOf("\n");
  return new Response(I32.parseInt(text.substring(0, line)), text.substring(line + 1));
}

/** GETs a URL. */
export function get(url: string): Response {
  return http("GET", url);
}

/** Asks another entity to take an action, `{"entity", "action", "params", "until"}`, and
 * waits for `{"sequence", "state", "fields"}`. Null where that failed: `lastError` says
 * why. */
export function ask(ask: JsonObject): string | null {
  const bytes = utf8(ask.toString()), room = roomForResponse();
  const length = host_ask(pointer(bytes), bytes.byteLength, pointer(room), room.byteLength);
  return length < 0 ? null : decoded(room, length);
}

/** Sends a signal to another entity, `{"entity", "name", "payload"}`, and waits until the
 * entity has recorded it. A signal changes no state. False if that failed: `lastError`
 * returns why, beginning with a code such as `signal_not_allowed`. */
export function signal(notice: JsonObject): bool {
  const bytes = utf8(notice.toString());
  return host_signal(pointer(bytes), bytes.byteLength) == 0;
}

/** What asc calls where a module aborts (a failed assertion, an index out of bounds,
 * `throw`): the reason goes to the log, and the run ends as a trap. */
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  const reason = message === null ? "aborted" : message;
  const place = file === null ? "" : file + ":" + line.toString() + ":" + column.toString();
  log("error", reason + " at " + place);
  unreachable();
}
