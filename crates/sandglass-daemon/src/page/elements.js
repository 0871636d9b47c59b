// The elements of the page. Foreign text is only ever set as text, never as markup.

const byId = (id) => document.getElementById(id);

/** A new element with this text or these children. */
function create(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content.filter((one) => one !== null && one !== undefined));
  return element;
}

/** Sets a text only if it changes, so that nothing is announced or laid out twice. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A duration for people. */
function formatMs(ms) {
  const whole = Math.max(0, Math.floor(ms));
  if (whole < 1000) return `${whole} ms`;
  if (whole < 60_000) return `${(Math.floor(whole / 100) / 10).toFixed(1)} s`;
  const s = Math.floor(whole / 1000);
  const two = (large, small) => (small.startsWith("0") ? large : `${large} ${small}`);
  if (s < 3600) return two(`${Math.floor(s / 60)} m`, `${s % 60} s`);
  return two(`${Math.floor(s / 3600)} h`, `${Math.floor((s % 3600) / 60)} m`);
}

const formatUs = (us) => (us < 1000 ? `${us} µs` : formatMs(us / 1000));

const formatTime = (at) => new Date(at).toLocaleTimeString();

/** A bar of which this share is filled. Its meaning is always beside it as text. */
function bar(share, from = 0) {
  const filled = create("span");
  const element = create("span", "bar", filled);
  element.setAttribute("aria-hidden", "true");
  fill(element, share, from);
  return element;
}

function fill(element, share, from = 0) {
  const within = (value) => Math.min(1, Math.max(0, Number(value) || 0));
  element.firstChild.style.setProperty("--share", within(share).toFixed(4));
  element.firstChild.style.setProperty("--from", within(from).toFixed(4));
}

/** A name that opens the explanation of a dispatch. */
function opener(dispatch, name) {
  const button = create("button", "open", name);
  button.type = "button";
  button.dataset.dispatch = dispatch;
  return button;
}

/** A row of a handler in flight, with those of its elements that change. */
function handlerRow(handler) {
  const doing = create("span", "name");
  const stuck = create("strong", "stuck", "STUCK");
  const since = create("span", "under");
  const left = create("span");
  const leftBar = bar(1);
  const name = opener(handler.dispatch, handler.entity);
  const what = `${handler.action} by ${handler.integration}`;
  const again = handler.attempt > 1 ? `, attempt ${handler.attempt}` : "";
  const session = create("span", "under");
  const silent = create("strong", "stuck");
  const about = create("span", "under");
  const host = create("span", "under");
  const row = create("tr", "",
    create("td", "", name, silent, create("span", "under", what + again), host, session, about),
    create("td", "", doing, stuck, since),
    create("td", "", left, leftBar));
  return { row, host, session, silent, about, doing, stuck, since, left, leftBar, handler };
}

/** The state of a session, as one line. */
function formatSession(session, passed) {
  if (!session) return "";
  const left = session.budget_left_ms === undefined
    ? "" : `${formatMs(session.budget_left_ms - passed)} of the run left`;
  const parts = [`run ${session.run_seq}`, session.status, session.stop_reason_code, left];
  return parts.filter(Boolean).join(", ");
}

const isStuck = (handler) => handler.stuck || Boolean(handler.session?.stuck);

/** The name of the host of a handler, or the begin of its id; empty without a cluster. */
function hostOf(handler, hosts) {
  if (!handler.host) return "";
  const name = hosts?.find((one) => one.host === handler.host)?.name ?? handler.host.slice(0, 8);
  return `on ${name}`;
}

/** A row of a host of the cluster. */
function hostRow(host, missing) {
  const isMissing = missing.some((one) => one.host === host.host);
  const state = isMissing ? create("strong", "stuck", "does not respond") : null;
  return create("tr", "",
    create("td", "", create("span", "name", host.name)),
    create("td", "", host.state, state ? " " : null, state),
    create("td", "", String(host.partitions)));
}

/** Shows a handler as it is `passed` milliseconds after its snapshot. */
function showHandler(shown, passed) {
  const { handler } = shown;
  const counts = !["queued", "pending"].includes(handler.doing);
  const leftMs = counts ? handler.left_ms - passed : handler.left_ms;
  const share = handler.has_ms > 0 ? leftMs / handler.has_ms : 0;
  setText(shown.doing, activity(handler));
  shown.stuck.hidden = !handler.stuck;
  setText(shown.session, formatSession(handler.session, passed));
  // A session can be STUCK while its status is a more specific one.
  shown.silent.hidden = !handler.session?.stuck;
  setText(shown.silent, handler.session?.stuck ? "STUCK" : "");
  setText(shown.about, handler.session?.status_text ?? "");
  const since = handler.for_ms === null ? "" : `for ${formatMs(handler.for_ms + passed)}`;
  setText(shown.since, since);
  setText(shown.left, leftMs < 0
    ? `${formatMs(-leftMs)} over ${formatMs(handler.has_ms)}`
    : `${formatMs(leftMs)} of ${formatMs(handler.has_ms)}`);
  shown.leftBar.classList.toggle("low", share < 0.2);
  fill(shown.leftBar, share);
}

/** What a handler is doing, with the number of further calls in flight. */
function activity({ doing, calls = [] }) {
  const further = calls.length - (calls[0]?.name === doing ? 1 : 0);
  return further > 0 ? `${doing} +${further}` : doing;
}

/** The activity and the remaining budget of a handler, as one line. */
function formatActivity(shown) {
  const stuck = isStuck(shown.handler) ? ", STUCK" : "";
  const since = shown.since.textContent && ` ${shown.since.textContent}`;
  const session = shown.session.textContent && `; ${shown.session.textContent}`;
  return `In ${activity(shown.handler)}${since}${stuck}; ${shown.left.textContent} left${session}`;
}

/** The dying spans of kills, the most frequent first. */
function spansOf(kills) {
  const counts = new Map();
  for (const kill of kills) counts.set(kill.dying_span, (counts.get(kill.dying_span) ?? 0) + 1);
  const sorted = [...counts].sort((one, other) => other[1] - one[1]);
  return sorted.map(([span, count]) => create("li", "",
    create("span", "name", span), bar(count / kills.length), create("span", "", String(count))));
}

const KILLED_BY = {
  deadline: "at its deadline", operator: "cancelled", caller: "its caller disconnected",
  state_left: "its state was left", shutdown: "shut down", run_stopped: "its run was stopped",
  ownership_lost: "taken over by another host",
};

function killRow(kill) {
  const by = KILLED_BY[kill.by] ?? kill.by;
  const late = kill.by === "deadline" ? `, ${formatUs(kill.overrun_us)} late` : "";
  return create("tr", "",
    create("td", "", opener(kill.dispatch, kill.entity),
      create("span", "under", [kill.action, by].filter(Boolean).join(", "))),
    create("td", "", create("span", "name", kill.dying_span)),
    create("td", "", formatMs(kill.elapsed_ms), create("span", "under", `of ${formatMs(kill.budget_ms)}${late}`)),
    create("td", "", formatTime(kill.at)));
}

/** A row of a blocked session. */
function blockedRow(blocked) {
  return create("tr", "",
    create("td", "", create("span", "name", blocked.session), create("span", "under", `run ${blocked.run_seq}`)),
    create("td", "", create("span", "name", blocked.stop_reason_code),
      blocked.directive === "unstuck" ? create("span", "under", "an operator has to look at it") : null),
    create("td", "", formatTime(blocked.at)));
}

/** A list of terms and values, without those that have no value. */
function facts(pairs) {
  const list = create("dl", "facts");
  for (const [term, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(create("dt", "", term), create("dd", "", value));
  }
  return list;
}
