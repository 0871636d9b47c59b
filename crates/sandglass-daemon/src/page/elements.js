// Makes what the page shows. Text of others is only ever set as text.

const byId = (id) => document.getElementById(id);

/** A new element with this text or these children. */
function made(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content.filter((one) => one !== null && one !== undefined));
  return element;
}

/** Sets a text only where it is another, so that nothing is read out or laid out twice. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A duration as people say it. */
function told(ms) {
  const whole = Math.max(0, Math.floor(ms));
  if (whole < 1000) return `${whole} ms`;
  if (whole < 60_000) return `${(Math.floor(whole / 100) / 10).toFixed(1)} s`;
  const s = Math.floor(whole / 1000);
  const two = (large, small) => (small.startsWith("0") ? large : `${large} ${small}`);
  if (s < 3600) return two(`${Math.floor(s / 60)} m`, `${s % 60} s`);
  return two(`${Math.floor(s / 3600)} h`, `${Math.floor((s % 3600) / 60)} m`);
}

const toldMicros = (us) => (us < 1000 ? `${us} µs` : told(us / 1000));

const toldTime = (at) => new Date(at).toLocaleTimeString();

/** A bar of which this share is filled; what it says stands beside it as text. */
function bar(share, from = 0) {
  const filled = made("span");
  const element = made("span", "bar", filled);
  element.setAttribute("aria-hidden", "true");
  fill(element, share, from);
  return element;
}

function fill(element, share, from = 0) {
  const within = (value) => Math.min(1, Math.max(0, Number(value) || 0));
  element.firstChild.style.setProperty("--share", within(share).toFixed(4));
  element.firstChild.style.setProperty("--from", within(from).toFixed(4));
}

/** A name that opens the story of a dispatch. */
function opener(dispatch, name) {
  const button = made("button", "open", name);
  button.type = "button";
  button.dataset.dispatch = dispatch;
  return button;
}

/** A row of a handler in flight, with what of it changes. */
function handlerRow(handler) {
  const doing = made("span", "name");
  const stuck = made("strong", "stuck", "STUCK");
  const since = made("span", "under");
  const left = made("span");
  const leftBar = bar(1);
  const name = opener(handler.dispatch, handler.entity);
  const what = `${handler.action} by ${handler.integration}`;
  const again = handler.attempt > 1 ? `, attempt ${handler.attempt}` : "";
  const session = made("span", "under");
  const silent = made("strong", "stuck");
  const about = made("span", "under");
  const row = made("tr", "",
    made("td", "", name, silent, made("span", "under", what + again), session, about),
    made("td", "", doing, stuck, since),
    made("td", "", left, leftBar));
  return { row, session, silent, about, doing, stuck, since, left, leftBar, handler };
}

/** How a session stands, in a line. */
function toldSession(session, passed) {
  if (!session) return "";
  const left = session.budget_left_ms === undefined
    ? "" : `${told(session.budget_left_ms - passed)} left of it`;
  const parts = [`run ${session.run_seq}`, session.status, session.stop_reason_code, left];
  return parts.filter(Boolean).join(", ");
}

const isStuck = (handler) => handler.stuck || Boolean(handler.session?.stuck);

/** Shows a handler as it is `passed` milliseconds after it was looked at. */
function showHandler(shown, passed) {
  const { handler } = shown;
  const counts = !["queued", "pending"].includes(handler.doing);
  const leftMs = counts ? handler.left_ms - passed : handler.left_ms;
  const share = handler.has_ms > 0 ? leftMs / handler.has_ms : 0;
  setText(shown.doing, handler.doing);
  shown.stuck.hidden = !handler.stuck;
  setText(shown.session, toldSession(handler.session, passed));
  // The status may be another one, that says more.
  shown.silent.hidden = !handler.session?.stuck;
  setText(shown.silent, handler.session?.stuck ? "STUCK" : "");
  setText(shown.about, handler.session?.status_text ?? "");
  const since = handler.for_ms === null ? "" : `for ${told(handler.for_ms + passed)}`;
  setText(shown.since, since);
  setText(shown.left, leftMs < 0
    ? `${told(-leftMs)} over ${told(handler.has_ms)}`
    : `${told(leftMs)} of ${told(handler.has_ms)}`);
  shown.leftBar.classList.toggle("low", share < 0.2);
  fill(shown.leftBar, share);
}

/** What a handler is in, and what it has left, in a line. */
function present(shown) {
  const stuck = isStuck(shown.handler) ? ", STUCK" : "";
  const since = shown.since.textContent && ` ${shown.since.textContent}`;
  const session = shown.session.textContent && `; ${shown.session.textContent}`;
  return `In ${shown.handler.doing}${since}${stuck}; ${shown.left.textContent} left${session}`;
}

/** What kills died in, by how many. */
function spansOf(kills) {
  const counts = new Map();
  for (const kill of kills) counts.set(kill.dying_span, (counts.get(kill.dying_span) ?? 0) + 1);
  const sorted = [...counts].sort((one, other) => other[1] - one[1]);
  return sorted.map(([span, count]) => made("li", "",
    made("span", "name", span), bar(count / kills.length), made("span", "", String(count))));
}

const KILLED_BY = {
  deadline: "at its deadline", operator: "cancelled", caller: "nobody waited",
  state_left: "its state was left", shutdown: "shut down", run_stopped: "its run was stopped",
};

function killRow(kill) {
  const by = KILLED_BY[kill.by] ?? kill.by;
  const late = kill.by === "deadline" ? `, ${toldMicros(kill.overrun_us)} late` : "";
  return made("tr", "",
    made("td", "", opener(kill.dispatch, kill.entity),
      made("span", "under", [kill.action, by].filter(Boolean).join(", "))),
    made("td", "", made("span", "name", kill.dying_span)),
    made("td", "", told(kill.elapsed_ms), made("span", "under", `of ${told(kill.budget_ms)}${late}`)),
    made("td", "", toldTime(kill.at)));
}

/** A row of a session that waits to be resumed. */
function blockedRow(blocked) {
  return made("tr", "",
    made("td", "", made("span", "name", blocked.session), made("span", "under", `run ${blocked.run_seq}`)),
    made("td", "", made("span", "name", blocked.stop_reason_code),
      blocked.directive === "unstuck" ? made("span", "under", "somebody has to look after it") : null),
    made("td", "", toldTime(blocked.at)));
}

/** Terms and what holds of them, without those of which nothing is known. */
function facts(pairs) {
  const list = made("dl", "facts");
  for (const [term, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(made("dt", "", term), made("dd", "", value));
  }
  return list;
}
