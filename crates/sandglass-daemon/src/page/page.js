// Follows the daemon, and does what people ask for.

/** How long to wait before coming again, at first and at most. */
const AGAIN_FIRST_MS = 500;
const AGAIN_MAX_MS = 15_000;
/** How far apart two announcements are: a screen reader is no ticker. */
const SAY_EVERY_MS = 8_000;
/** How often figures go on by themselves. */
const COUNT_EVERY_MS = 250;
/** After how many times the longest silence of a daemon that lives it is doubted. */
const DOUBTED_AFTER = 1.5;

const shownRows = new Map();
let scene = null;
let seenAt = 0;
let aliveAt = 0;
let doubtedAfter = Infinity;
let saidAt = 0;
let opened = null;

const keyOf = (handler) => `${handler.dispatch} ${handler.attempt}`;

function notice(text) {
  byId("notice").hidden = !text;
  setText(byId("notice"), text ?? "");
}

function showHealth(text, kind) {
  setText(byId("health"), text);
  byId("health").className = `health ${kind}`;
}

/** Puts rows into the order of the scene, and moves none that stands right already. */
function showRows(handlers) {
  const body = byId("rows");
  const present = new Set(handlers.map(keyOf));
  for (const [key, shown] of shownRows) {
    if (present.has(key)) continue;
    shown.row.remove();
    shownRows.delete(key);
  }
  let place = body.firstElementChild;
  for (const handler of handlers) {
    const key = keyOf(handler);
    const shown = shownRows.get(key) ?? handlerRow(handler);
    shown.handler = handler;
    shownRows.set(key, shown);
    if (shown.row === place) {
      place = place.nextElementSibling;
      continue;
    }
    const held = shown.row.contains(document.activeElement) && document.activeElement;
    body.insertBefore(shown.row, place);
    if (held) held.focus({ preventScroll: true });
  }
}

/** Says how long nothing was heard, where that is longer than it should be. */
function showSilence() {
  const silence = performance.now() - aliveAt;
  if (silence < doubtedAfter) return;
  showHealth(`no news for ${Math.floor(silence / 1000)} s`, "bad");
  notice("What is shown is old. The daemon is silent.");
}

function count() {
  if (scene === null) return;
  showSilence();
  const passed = performance.now() - seenAt;
  for (const shown of shownRows.values()) showHandler(shown, passed);
  setText(byId("clock"), toldTime(scene.at + passed));
  const looked = [...shownRows.values()].find((shown) => shown.handler.dispatch === opened);
  byId("story-now").hidden = !looked;
  if (looked) setText(byId("story-now"), present(looked));
}

/** Takes back what was doubted, at a sign of life. */
function alive(keepAlive) {
  const doubted = performance.now() - aliveAt >= doubtedAfter;
  aliveAt = performance.now();
  doubtedAfter = keepAlive * DOUBTED_AFTER;
  if (!doubted || scene === null) return;
  notice(null);
  showDaemon(scene.health);
}

function showDaemon(health) {
  if (health.healthy) showHealth("ticker and journal work", "good");
  else showHealth(health.reasons.map((reason) => reason.message).join("; "), "bad");
}

function showKills(kills) {
  const newest = (list) => (list.length ? `${list[0].dispatch} ${list[0].attempt}` : "");
  if (scene !== null && newest(kills) === newest(scene.kills)) return;
  const held = byId("kills").contains(document.activeElement)
    && document.activeElement.dataset.dispatch;
  byId("kills").replaceChildren(...kills.map(killRow));
  byId("spans").replaceChildren(...spansOf(kills));
  byId("kills-table").hidden = kills.length === 0;
  byId("no-kills").hidden = kills.length > 0;
  setText(byId("kill-count"), kills.length ? String(kills.length) : "");
  if (held) byId("kills").querySelector(`[data-dispatch="${CSS.escape(held)}"]`)?.focus();
}

/** The sessions that wait to be resumed. */
function showBlocked(sessions, count) {
  byId("blocked").hidden = count === 0;
  setText(byId("blocked-count"), count ? String(count) : "");
  byId("blocked-more").hidden = sessions.length >= count;
  setText(byId("blocked-more"), `and ${count - sessions.length} more`);
  const isSame = scene !== null && JSON.stringify(scene.blocked_sessions) === JSON.stringify(sessions);
  if (!isSame) byId("blocked-rows").replaceChildren(...sessions.map(blockedRow));
}

/** Says what somebody who doesn't see the page must hear: kills and marks, now and then. */
function announce(before, now) {
  if (before === null || performance.now() - saidAt < SAY_EVERY_MS) return;
  const known = new Set(before.kills.map(keyOf));
  const killed = now.kills.filter((kill) => !known.has(keyOf(kill)));
  const stuckBefore = new Set(before.handlers.filter(isStuck).map(keyOf));
  const stuck = now.handlers.filter((one) => isStuck(one) && !stuckBefore.has(keyOf(one)));
  const parts = [];
  if (killed.length) parts.push(`${killed.length} killed, the last in ${killed[0].dying_span}`);
  if (stuck.length) parts.push(`${stuck.length} stuck, one in ${stuck[0].doing}`);
  if (now.blocked > before.blocked) parts.push(`${now.blocked} sessions are blocked`);
  if (parts.length === 0) return;
  saidAt = performance.now();
  setText(byId("said"), parts.join("; "));
}

function show(now) {
  const { health, handlers, in_flight: inFlight, kills } = now;
  notice(null);
  byId("main").hidden = false;
  byId("key-form").hidden = true;
  showDaemon(health);
  showKills(kills);
  showBlocked(now.blocked_sessions, now.blocked);
  showRows(handlers);
  announce(scene, now);
  if (opened && !handlers.some((one) => one.dispatch === opened)) refreshEnded(opened);
  scene = now;
  seenAt = performance.now();
  byId("handlers-table").hidden = handlers.length === 0;
  byId("no-rows").hidden = inFlight > 0;
  byId("more").hidden = handlers.length >= inFlight;
  setText(byId("more"), `and ${inFlight - handlers.length} more`);
  setText(byId("count"), inFlight ? String(inFlight) : "");
  document.title = inFlight ? `${inFlight} in flight – Sandglass` : "Sandglass";
  count();
}

function askForKey(refused) {
  const sent = heldKey();
  sessionStorage.removeItem(KEY_AT);
  byId("main").hidden = true;
  byId("key-form").hidden = false;
  scene = null;
  showHealth("a key is needed", "");
  const wrong = sent && refused.status === 401 ? "This key opens nothing here." : refused.message;
  notice(sent ? wrong : null);
  byId("key").focus();
}

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Follows the live view, and comes again when it ends, until a key is needed. */
async function follow() {
  let again = AGAIN_FIRST_MS;
  for (;;) {
    try {
      await followLive((now) => { again = AGAIN_FIRST_MS; show(now); }, alive);
      showHealth("the daemon went away", "bad");
    } catch (error) {
      if (error instanceof Refused && [401, 403].includes(error.status)) return askForKey(error);
      const isSilent = error.name === "AbortError";
      const lost = isSilent ? "the daemon is silent" : "the daemon can't be reached";
      showHealth(error instanceof Refused ? error.message : lost, "bad");
    }
    doubtedAfter = Infinity;
    notice(`What is shown is old. Coming again in ${told(again)}.`);
    await pause(again);
    again = Math.min(again * 2, AGAIN_MAX_MS);
  }
}

function storyNotice(text, good) {
  const element = byId("story-notice");
  element.hidden = !text;
  element.classList.toggle("good", Boolean(good));
  setText(element, text ?? "");
}

/** Reads the story anew, where that dispatch is still the one that is looked at. */
async function readStory(id) {
  try {
    const run = await readDispatch(id);
    if (opened !== id) return;
    setText(byId("story-title"), `${run.entity ?? id}`);
    byId("story-body").replaceChildren(...storyOf(run));
    byId("cancel-form").hidden = run.status === "ended";
  } catch (error) {
    if (opened === id) storyNotice(error.message);
  }
}

const refreshed = new Set();

/** Once, when a dispatch that is looked at has gone from those in flight. */
function refreshEnded(id) {
  if (refreshed.has(id) || byId("cancel-form").hidden) return;
  refreshed.add(id);
  // Its end is recorded by then: that is what took it away.
  readStory(id).then(() => { if (opened === id) storyNotice("It has ended.", true); });
}

async function openStory(id) {
  opened = id;
  refreshed.delete(id);
  storyNotice(null);
  byId("cancel-form").hidden = true;
  byId("cancel-form").reset();
  setText(byId("story-title"), "…");
  byId("story-body").replaceChildren();
  count();
  byId("story").showModal();
  await readStory(id);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-dispatch]");
  if (button) openStory(button.dataset.dispatch);
});
byId("story-close").addEventListener("click", () => byId("story").close());
byId("story").addEventListener("close", () => {
  // Somebody may have opened another one before this was told.
  if (!byId("story").open) opened = null;
});
byId("cancel-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = opened;
  try {
    await cancelDispatch(id, byId("reason").value);
    if (opened === id) storyNotice("It was asked to end.", true);
  } catch (error) {
    storyNotice(error.message);
  }
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  byId("key").value = "";
  // A header takes nothing else.
  if (!/^[\x21-\x7e]+$/.test(key)) return notice("This can't be a key.");
  sessionStorage.setItem(KEY_AT, key);
  byId("key-form").hidden = true;
  follow();
});
setInterval(() => { if (!document.hidden) count(); }, COUNT_EVERY_MS);
follow();
