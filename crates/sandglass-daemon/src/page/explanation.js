// The story of one dispatch: sections of which each is there where the daemon tells it.

function section(title, ...content) {
  return content.length === 0 ? [] : [made("h3", "", title), ...content];
}

const words = (name) => String(name ?? "").replaceAll("_", " ");

const outcomeOf = (run) => run.outcome?.outcome ?? run.outcome;

const toldDate = (at) => new Date(at).toLocaleString();

/** What followed from its end. */
function decided(run) {
  const { decision, transition } = run;
  if (!decision) return "";
  if (decision.decision === "rerun") return "it is run again";
  const way = transition ? `, from ${transition.from} to ${transition.to}` : "";
  return decision.decision === "superseded"
    ? `nothing: its entity has moved on and takes no ${decision.action}`
    : `${decision.action}${way}`;
}

function storyFacts(run) {
  const deadline = run.deadline ?? {};
  const ended = run.status === "ended";
  const late = deadline.overrun_us > 0 ? `, ${toldMicros(deadline.overrun_us)} late` : "";
  const isKnown = typeof deadline.elapsed_ms === "number";
  const took = ended && isKnown ? told(deadline.elapsed_ms) + late : "";
  const why = run.error?.message ?? run.outcome?.message ?? run.outcome?.reason;
  const budget = run.budget_ms && told(run.budget_ms);
  const name = (text) => (text ? made("span", "name", text) : "");
  return facts([
    ["Handler", `${run.integration} for ${run.action}, entering ${run.state}`],
    ["Asked at", run.dispatched_at && toldDate(run.dispatched_at)],
    ["Attempt", run.attempt > 1 ? String(run.attempt) : ""],
    ["Budget", budget],
    ["Ended", ended ? words(outcomeOf(run)) : run.end_unread ? "can't be read" : "not yet"],
    ["Because", ended ? why : ""],
    ["Died in", name(run.dying_span)],
    ["After", took],
    ["Then", decided(run)],
    ["Dispatch", name(run.dispatch)],
    ["Trace", name(run.trace_id ?? run.trace?.split("-")[1])],
  ]);
}

/** Lines of a name, a bar and what it says. */
function lines(entries) {
  const line = ({ name, share, from, says, cut }) => made("li", "",
    made("span", "name", name), bar(share, from), made("span", cut ? "cut" : "", says));
  return made("ul", "calls", ...entries.map(line));
}

function timeSplit(split) {
  const parts = Object.entries(split ?? {}).filter(([, us]) => us > 0);
  const total = parts.reduce((sum, [, us]) => sum + us, 0);
  if (parts.length === 0) return [];
  return section("Where the time went", lines(parts.map(([name, us]) => (
    { name, share: us / total, says: toldMicros(us) }))));
}

/** What is told one by one, each at its place in time. */
function inTime(list, nameOf) {
  const end = Math.max(1, ...list.map((one) => one.started_us + one.duration_us));
  return lines(list.map((one) => {
    const quiet = ["ok", "answered"].includes(one.outcome);
    const how = quiet ? "" : words(one.outcome);
    const came = one.status && how ? `answered ${one.status}, body ${how}` : one.status ?? how;
    return {
      name: nameOf(one),
      share: one.duration_us / end,
      from: one.started_us / end,
      says: [toldMicros(one.duration_us), came].filter(Boolean).join(", "),
      cut: one.outcome === "unfinished",
    };
  }));
}

const omitted = (count) => (count ? [made("p", "quiet", `${count} more are left out.`)] : []);

function hostCalls(run) {
  if (run.calls?.length) {
    return section("Host calls", inTime(run.calls, (call) => call.name),
      ...omitted(run.calls_omitted));
  }
  const functions = run.host_calls?.by_function ?? [];
  if (functions.length === 0) return [];
  const total = Math.max(1, functions.reduce((sum, one) => sum + one.total_us, 0));
  return section("Host calls", lines(functions.map((one) => ({
    name: one.name,
    share: one.total_us / total,
    says: `${one.count} in ${toldMicros(one.total_us)}${one.in_flight ? ", unfinished" : ""}`,
    cut: one.in_flight,
  }))));
}

function requests(run) {
  if (!run.requests?.length) return [];
  const name = ({ method, host, path }) => `${method} ${host}${path}`;
  return section("Requests", inTime(run.requests, name), ...omitted(run.requests_omitted));
}

function backtrace(frames) {
  if (!frames?.length) return [];
  const line = (frame) => {
    const place = [frame.file, frame.line].filter(Boolean).join(":");
    return made("li", "wraps", made("span", "name", frame.function ?? `at ${frame.offset}`),
      place ? made("span", "under", place) : null);
  };
  return section("Where the guest was", made("ol", "frames", ...frames.map(line)));
}

function seenBefore(before) {
  if (!before?.count) return [];
  const times = before.count === 1 ? "Once" : `${before.count} times`;
  return section("Seen before", made("p", "", `${times}, the last on ${toldDate(before.last_at)}.`));
}

function advice(next) {
  if (!next?.length) return [];
  return section("What to do", made("ul", "said", ...next.map((one) => made("li", "wraps", one))));
}

/** All that is known of a dispatch. */
function storyOf(run) {
  return [
    storyFacts(run),
    ...(run.status === "ended" ? advice(run.next) : []),
    ...seenBefore(run.seen_before),
    ...timeSplit(run.time_split_us),
    ...hostCalls(run),
    ...requests(run),
    ...backtrace(run.backtrace ?? run.outcome?.backtrace),
  ];
}
