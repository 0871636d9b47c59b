
"use strict";
// Reads the daemon: answers as JSON, and the live view as it is streamed.

/** Where the key is kept: gone with the tab. */
const KEY_AT = "sandglass-key";
/** Most text of one event that is kept, in characters: some times the largest scene. */
const EVENT_MAX = 4 << 20;
/** How long a stream is silent at most where the daemon doesn't say it, and what is believed. */
const KEEP_ALIVE_MS = 15_000;
const KEEP_ALIVE_MIN_MS = 1_000;
const KEEP_ALIVE_MAX_MS = 600_000;
/** After how many times as long without a sign of life a stream is lost. */
const LOST_AFTER = 3;
/** How long the head of an answer may take: of one that hangs there is none. */
const HEAD_WITHIN_MS = 30_000;

/** An answer that is an error, with the daemon's own words. */
class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const heldKey = () => sessionStorage.getItem(KEY_AT);

/** Asks the daemon, and answers what it does where that is no error. */
async function ask(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = heldKey();
  if (key) headers.set("authorization", `Bearer ${key}`);
  const answer = await fetch(path, {
    ...options, headers, cache: "no-store", credentials: "omit", redirect: "error",
  });
  if (answer.ok) return answer;
  const error = (await answer.json().catch(() => ({}))).error ?? {};
  throw new Refused(answer.status, error.code, error.message ?? `It answers ${answer.status}.`);
}

const askJson = async (path) => (await ask(path)).json();

/** Asks for the handler of a dispatch to end. */
const cancelDispatch = (id, reason) => ask(`/v1/dispatches/${encodeURIComponent(id)}/cancel`, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ reason }),
});

/** What is known of a dispatch; with its story, where the daemon tells it. */
async function readDispatch(id) {
  const at = `/v1/dispatches/${encodeURIComponent(id)}`;
  const dispatch = await askJson(at);
  const story = await askJson(`${at}/story`).catch(() => ({}));
  // Of one that goes on most of it is null.
  const known = Object.entries(story).filter(([, value]) => value !== null);
  return { ...dispatch, ...dispatch.ended, ...Object.fromEntries(known), status: dispatch.status };
}

/** The data of one server-sent event, or nothing where it has none. */
function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}

/** How long the stream of this answer is silent at most while its daemon lives. */
function keepAliveOf(answer) {
  const toldMs = Number(answer.headers.get("sandglass-keep-alive-ms")) || KEEP_ALIVE_MS;
  return Math.min(Math.max(toldMs, KEEP_ALIVE_MIN_MS), KEEP_ALIVE_MAX_MS);
}

/** Calls `show` with each scene and `alive` at each sign of life, until the stream ends. */
async function followLive(show, alive) {
  const lost = new AbortController();
  const headers = { accept: "text/event-stream" };
  let watchdog = setTimeout(() => lost.abort(), HEAD_WITHIN_MS);
  try {
    const answer = await ask("/v1/live", { headers, signal: lost.signal });
    const keepAlive = keepAliveOf(answer);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
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
      // Where several came at once, the last says all that the others do.
      const data = events.map(dataOf).filter(Boolean).pop();
      if (data) show(JSON.parse(data));
    }
  } finally {
    clearTimeout(watchdog);
    lost.abort();
  }
}
