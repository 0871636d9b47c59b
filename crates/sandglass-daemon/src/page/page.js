// Follows the daemon, and handles input.

/** How long to wait before reconnecting, at first and at most. */
const RECONNECT_FIRST_MS = 500;
const RECONNECT_MAX_MS = 15_000;
/** The least time between two announcements by a screen reader. */
const ANNOUNCE_EVERY_MS = 8_000;
/** How often times are updated without a snapshot. */
const COUNT_EVERY_MS = 250;
/** The daemon is doubted after this multiple of its longest silence. */
const DOUBTED_AFTER = 1.5;

const shownRows = new Map();
let snapshot = null;
let snapshotAt = 0;
let aliveAt = 0;
let doubtedAfter = Infinity;
let announcedAt = 0;
let opened = null;
let openedEntity = null;

const keyOf = (handler) => `${handler.dispatch} ${handler.attempt}`;

function notice(text) {
  byId("notice").hidden = !text;
  setText(byId("notice"), text ?? "");
}

function showHealth(text, kind) {
  setText(byId("health"), text);
  byId("health").className = `health ${kind}`;
}

/** Puts rows into the order of the snapshot, and moves only those that are elsewhere. */
function showRows(handlers, hosts) {
  const body = byId("rows");
  const present = new Set(handlers.map(keyOf));
  for (const [key, shown] of shownRows) {
    if (present.has(key)) continue;
    shown.row.remove();
    shownRows.delete(key);
  }
  let next = body.firstElementChild;
  for (const handler of handlers) {
    const key = keyOf(handler);
    const shown = shownRows.get(key) ?? handlerRow(handler);
    shown.handler = handler;
    setText(shown.host, hostOf(handler, hosts));
    shownRows.set(key, shown);
    if (shown.row === next) {
      next = next.nextElementSibling;
      continue;
    }
    const focused = shown.row.contains(document.activeElement) && document.activeElement;
    body.insertBefore(shown.row, next);
    if (focused) focused.focus({ preventScroll: true });
  }
}

/** Shows how long the daemon has been silent, if that is too long. */
function showSilence() {
  const silence = performance.now() - aliveAt;
  if (silence < doubtedAfter) return;
  showHealth(`no news for ${Math.floor(silence / 1000)} s`, "bad");
  notice("These data are old: the daemon does not respond.");
}

function count() {
  if (snapshot === null) return;
  showSilence();
  const passed = performance.now() - snapshotAt;
  for (const shown of shownRows.values()) showHandler(shown, passed);
  setText(byId("clock"), formatTime(snapshot.at + passed));
  const openedRow = [...shownRows.values()].find((shown) => shown.handler.dispatch === opened);
  byId("explanation-now").hidden = !openedRow;
  if (openedRow) setText(byId("explanation-now"), formatActivity(openedRow));
}

/** Removes the doubt at a sign of life. */
function alive(keepAlive) {
  const doubted = performance.now() - aliveAt >= doubtedAfter;
  aliveAt = performance.now();
  doubtedAfter = keepAlive * DOUBTED_AFTER;
  if (!doubted || snapshot === null) return;
  notice(null);
  showDaemon(snapshot.health);
}

function showDaemon(health) {
  if (health.healthy) showHealth("ticker and journal work", "good");
  else showHealth(health.reasons.map((reason) => reason.message).join("; "), "bad");
}

function showKills(kills) {
  const newest = (list) => (list.length ? `${list[0].dispatch} ${list[0].attempt}` : "");
  if (snapshot !== null && newest(kills) === newest(snapshot.kills)) return;
  const focused = byId("kills").contains(document.activeElement)
    && document.activeElement.dataset.dispatch;
  byId("kills").replaceChildren(...kills.map(killRow));
  byId("spans").replaceChildren(...spansOf(kills));
  byId("kills-table").hidden = kills.length === 0;
  byId("no-kills").hidden = kills.length > 0;
  setText(byId("kill-count"), kills.length ? String(kills.length) : "");
  if (focused) byId("kills").querySelector(`[data-dispatch="${CSS.escape(focused)}"]`)?.focus();
}

/** The blocked sessions. */
function showBlocked(sessions, count) {
  byId("blocked").hidden = count === 0;
  setText(byId("blocked-count"), count ? String(count) : "");
  byId("blocked-more").hidden = sessions.length >= count;
  setText(byId("blocked-more"), `and ${count - sessions.length} more`);
  const isSame = snapshot !== null && JSON.stringify(snapshot.blocked_sessions) === JSON.stringify(sessions);
  if (!isSame) byId("blocked-rows").replaceChildren(...sessions.map(blockedRow));
}

/** The hosts of the cluster, if there is one. */
function showHosts(now) {
  const [hosts, missing] = [now.hosts ?? [], now.missing ?? []];
  byId("hosts").hidden = hosts.length === 0;
  const textOf = (one) => JSON.stringify([one?.hosts ?? [], one?.missing ?? []]);
  if (textOf(snapshot) === textOf(now)) return;
  byId("host-rows").replaceChildren(...hosts.map((host) => hostRow(host, missing)));
}

/** Announces kills and stuck handlers to users of a screen reader, but not too often. */
function announce(before, now) {
  if (before === null || performance.now() - announcedAt < ANNOUNCE_EVERY_MS) return;
  const known = new Set(before.kills.map(keyOf));
  const killed = now.kills.filter((kill) => !known.has(keyOf(kill)));
  const stuckBefore = new Set(before.handlers.filter(isStuck).map(keyOf));
  const stuck = now.handlers.filter((one) => isStuck(one) && !stuckBefore.has(keyOf(one)));
  const parts = [];
  if (killed.length) parts.push(`${killed.length} killed, the last in ${killed[0].dying_span}`);
  if (stuck.length) parts.push(`${stuck.length} stuck, one in ${stuck[0].doing}`);
  if (now.blocked > before.blocked) parts.push(`${now.blocked} sessions are blocked`);
  if (parts.length === 0) return;
  announcedAt = performance.now();
  setText(byId("announcement"), parts.join("; "));
}

function show(now) {
  const { health, handlers, in_flight: inFlight, kills } = now;
  notice(null);
  byId("main").hidden = false;
  byId("key-form").hidden = true;
  showDaemon(health);
  showKills(kills);
  showBlocked(now.blocked_sessions, now.blocked);
  showHosts(now);
  showRows(handlers, now.hosts);
  announce(snapshot, now);
  if (opened && !handlers.some((one) => one.dispatch === opened)) refreshEnded(opened);
  snapshot = now;
  snapshotAt = performance.now();
  byId("handlers-table").hidden = handlers.length === 0;
  byId("no-rows").hidden = inFlight > 0;
  byId("more").hidden = handlers.length >= inFlight;
  setText(byId("more"), `and ${inFlight - handlers.length} more`);
  setText(byId("count"), inFlight ? String(inFlight) : "");
  document.title = inFlight ? `${inFlight} in flight – Sandglass` : "Sandglass";
  count();
}

function askForKey(refused) {
  const sent = storedKey();
  sessionStorage.removeItem(KEY_AT);
  byId("main").hidden = true;
  byId("key-form").hidden = false;
  snapshot = null;
  showHealth("a key is needed", "");
  const wrong = sent && refused.status === 401 ? "The daemon does not accept this key." : refused.message;
  notice(sent ? wrong : null);
  byId("key").focus();
}

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Follows the live view, and reconnects when it ends, until a key is needed. */
async function follow() {
  let reconnectIn = RECONNECT_FIRST_MS;
  for (;;) {
    try {
      await followLive((now) => { reconnectIn = RECONNECT_FIRST_MS; show(now); }, alive);
      showHealth("the daemon closed the connection", "bad");
    } catch (error) {
      if (error instanceof RequestError && [401, 403].includes(error.status)) return askForKey(error);
      const isSilent = error.name === "AbortError";
      const lost = isSilent ? "the daemon does not respond" : "the daemon cannot be reached";
      showHealth(error instanceof RequestError ? error.message : lost, "bad");
    }
    doubtedAfter = Infinity;
    notice(`These data are old. Reconnecting in ${formatMs(reconnectIn)}.`);
    await pause(reconnectIn);
    reconnectIn = Math.min(reconnectIn * 2, RECONNECT_MAX_MS);
  }
}

function explanationNotice(text, good) {
  const element = byId("explanation-notice");
  element.hidden = !text;
  element.classList.toggle("good", Boolean(good));
  setText(element, text ?? "");
}

/** Reads the explanation again, and shows it if that dispatch is still open. */
async function readExplanation(id) {
  try {
    const run = await readDispatch(id);
    if (opened !== id) return;
    setText(byId("explanation-title"), `${run.entity ?? id}`);
    byId("explanation-body").replaceChildren(...explanationOf(run));
    byId("cancel-form").hidden = run.status === "ended";
    openedEntity = run.entity ?? null;
    byId("signal-form").hidden = openedEntity === null;
  } catch (error) {
    if (opened === id) explanationNotice(error.message);
  }
}

const refreshed = new Set();

/** Refreshes, once, an open dispatch that is no longer in flight. */
function refreshEnded(id) {
  if (refreshed.has(id) || byId("cancel-form").hidden) return;
  refreshed.add(id);
  // Its end is already recorded, because the record removes it from those in flight.
  readExplanation(id).then(() => { if (opened === id) explanationNotice("It has ended.", true); });
}

async function openExplanation(id) {
  opened = id;
  refreshed.delete(id);
  explanationNotice(null);
  for (const form of [byId("cancel-form"), byId("signal-form")]) {
    form.hidden = true;
    form.reset();
  }
  setText(byId("explanation-title"), "…");
  byId("explanation-body").replaceChildren();
  count();
  byId("explanation").showModal();
  await readExplanation(id);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-dispatch]");
  if (button) openExplanation(button.dataset.dispatch);
});
byId("explanation-close").addEventListener("click", () => byId("explanation").close());
byId("explanation").addEventListener("close", () => {
  // Another one may have been opened before this event.
  if (!byId("explanation").open) opened = null;
});
byId("cancel-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = opened;
  try {
    await cancelDispatch(id, byId("reason").value);
    if (opened === id) explanationNotice("It is being cancelled.", true);
  } catch (error) {
    explanationNotice(error.message);
  }
});
byId("signal-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = opened;
  const [name, payload] = [byId("signal-name").value, byId("signal-payload").value];
  try {
    await sendSignal(openedEntity, name, payload);
    if (opened === id) explanationNotice("The signal is recorded.", true);
  } catch (error) {
    if (opened === id) explanationNotice(error.message);
  }
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  byId("key").value = "";
  // A header cannot contain other characters.
  if (!/^[\x21-\x7e]+$/.test(key)) return notice("This cannot be a key.");
  sessionStorage.setItem(KEY_AT, key);
  byId("key-form").hidden = true;
  follow();
});
setInterval(() => { if (!document.hidden) count(); }, COUNT_EVERY_MS);
follow();
