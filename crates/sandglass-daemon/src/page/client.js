
"use strict";
// The client of the daemon: JSON responses, and the stream of the live view.

/** Where the key is stored: it ends with the tab. */
const KEY_AT = "sandglass-key";
/** Longest text of one event, in characters: several times the largest snapshot. */
const EVENT_MAX = 4 << 20;
/** The longest silence of a stream if the daemon does not state it, and the range of what it may state. */
const KEEP_ALIVE_MS = 15_000;
const KEEP_ALIVE_MIN_MS = 1_000;
const KEEP_ALIVE_MAX_MS = 600_000;
/** A stream is lost after this multiple of its longest silence. */
const LOST_AFTER = 3;
/** How long the head of a response may take; a daemon that hangs sends none. */
const HEAD_WITHIN_MS = 30_000;

/** A response that is an error, with the daemon's message. */
class RequestError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const storedKey = () => sessionStorage.getItem(KEY_AT);

/** Sends a request to the daemon, and returns its response. Throws if it is an error. */
async function send(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = storedKey();
  if (key) headers.set("authorization", `Bearer ${key}`);
  const response = await fetch(path, {
    ...options, headers, cache: "no-store", credentials: "omit", redirect: "error",
  });
  if (response.ok) return response;
  const error = (await response.json().catch(() => ({}))).error ?? {};
  throw new RequestError(response.status, error.code, error.message ?? `The daemon responded with ${response.status}.`);
}

const readJson = async (path) => (await send(path)).json();

const post = (path, body) => send(path, {
  method: "POST", headers: { "content-type": "application/json" }, body,
});

/** Cancels the handler of a dispatch. */
const cancelDispatch = (id, reason) =>
  post(`/v1/dispatches/${encodeURIComponent(id)}/cancel`, JSON.stringify({ reason }));

/** Sends a signal to TYPE/ID; the payload is JSON, or empty. */
function sendSignal(entity, name, payload) {
  const slash = entity.indexOf("/");
  const parts = [entity.slice(0, slash), entity.slice(slash + 1), name].map(encodeURIComponent);
  return post(`/v1/entities/${parts[0]}/${parts[1]}/signals/${parts[2]}`, payload.trim());
}

/** Reads a dispatch, with its explanation if the daemon has one. */
async function readDispatch(id) {
  const at = `/v1/dispatches/${encodeURIComponent(id)}`;
  const dispatch = await readJson(at);
  const explanation = await readJson(`${at}/story`).catch(() => ({}));
  // While the dispatch is in flight, most fields are null.
  const known = Object.entries(explanation).filter(([, value]) => value !== null);
  return { ...dispatch, ...dispatch.ended, ...Object.fromEntries(known), status: dispatch.status };
}

/** The data of one server-sent event; empty if it has none. */
function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}

/** The longest silence of the stream of this response while its daemon is alive. */
function keepAliveOf(response) {
  const statedMs = Number(response.headers.get("sandglass-keep-alive-ms")) || KEEP_ALIVE_MS;
  return Math.min(Math.max(statedMs, KEEP_ALIVE_MIN_MS), KEEP_ALIVE_MAX_MS);
}

/** Calls `show` with each snapshot and `alive` at each sign of life, until the stream ends. */
async function followLive(show, alive) {
  const lost = new AbortController();
  const headers = { accept: "text/event-stream" };
  let watchdog = setTimeout(() => lost.abort(), HEAD_WITHIN_MS);
  try {
    const response = await send("/v1/live", { headers, signal: lost.signal });
    const keepAlive = keepAliveOf(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => lost.abort(), keepAlive * LOST_AFTER);
      const { value, done } = await reader.read();
      if (done) return;
      alive(keepAlive);
      text += value.replaceAll("\r", "");
      if (text.length > EVENT_MAX) throw new Error("an event is too large");
      const events = text.split("\n\n");
      text = events.pop();
      // Each snapshot is complete, so the last one of several is enough.
      const data = events.map(dataOf).filter(Boolean).pop();
      if (data) show(JSON.parse(data));
    }
  } finally {
    clearTimeout(watchdog);
    lost.abort();
  }
}
