// The explanation of one dispatch: sections, each of which is shown if the daemon has its data.

function section(title, ...content) {
  return content.length === 0 ? [] : [create("h3", "", title), ...content];
}

const words = (name) => String(name ?? "").replaceAll("_", " ");

const outcomeOf = (run) => run.outcome?.outcome ?? run.outcome;

const formatDate = (at) => new Date(at).toLocaleString();

/** The decision after its end. */
function formatDecision(run) {
  const { decision, transition } = run;
  if (!decision) return "";
  if (decision.decision === "rerun") return "the handler is executed again";
  const way = transition ? `, from ${transition.from} to ${transition.to}` : "";
  return decision.decision === "superseded"
    ? `nothing: the state of its entity does not take ${decision.action}`
    : `${decision.action}${way}`;
}

function summary(run) {
  const deadline = run.deadline ?? {};
  const ended = run.status === "ended";
  const late = deadline.overrun_us > 0 ? `, ${formatUs(deadline.overrun_us)} late` : "";
  const isKnown = typeof deadline.elapsed_ms === "number";
  const took = ended && isKnown ? formatMs(deadline.elapsed_ms) + late : "";
  const why = run.error?.message ?? run.outcome?.message ?? run.outcome?.reason;
  const budget = run.budget_ms && formatMs(run.budget_ms);
  const name = (text) => (text ? create("span", "name", text) : "");
  return facts([
    ["Handler", `${run.integration} for ${run.action}, entering ${run.state}`],
    ["Dispatched at", run.dispatched_at && formatDate(run.dispatched_at)],
    ["Attempt", run.attempt > 1 ? String(run.attempt) : ""],
    ["Budget", budget],
    ["Ended", ended ? words(outcomeOf(run)) : run.end_unread ? "cannot be read" : "not yet"],
    ["Because", ended ? why : ""],
    ["Died in", name(run.dying_span)],
    ["After", took],
    ["Then", formatDecision(run)],
    ["Dispatch", name(run.dispatch)],
    ["Trace", name(run.trace_id ?? run.trace?.split("-")[1])],
  ]);
}

/** Lines with a name, a bar and its meaning. */
function lines(entries) {
  const line = ({ name, share, from, says, cut }) => create("li", "",
    create("span", "name", name), bar(share, from), create("span", cut ? "cut" : "", says));
  return create("ul", "calls", ...entries.map(line));
}

function timeSplit(split) {
  const parts = Object.entries(split ?? {}).filter(([, us]) => us > 0);
  const total = parts.reduce((sum, [, us]) => sum + us, 0);
  if (parts.length === 0) return [];
  return section("Where the time went", lines(parts.map(([name, us]) => (
    { name, share: us / total, says: formatUs(us) }))));
}

/** Calls as bars on a common time scale. */
function timeline(list, nameOf) {
  const end = Math.max(1, ...list.map((one) => one.started_us + one.duration_us));
  return lines(list.map((one) => {
    const quiet = ["ok", "answered"].includes(one.outcome);
    const how = quiet ? "" : words(one.outcome);
    const result = one.status && how ? `status ${one.status}, body ${how}` : one.status ?? how;
    return {
      name: nameOf(one),
      share: one.duration_us / end,
      from: one.started_us / end,
      says: [formatUs(one.duration_us), result, one.error].filter(Boolean).join(", "),
      cut: one.outcome === "unfinished",
    };
  }));
}

const omitted = (count) => (count ? [create("p", "quiet", `${count} more are not shown.`)] : []);

function hostCalls(run) {
  if (run.calls?.length) {
    return section("Host calls", timeline(run.calls, (call) => call.name),
      ...omitted(run.calls_omitted));
  }
  const functions = run.host_calls?.by_function ?? [];
  if (functions.length === 0) return [];
  const total = Math.max(1, functions.reduce((sum, one) => sum + one.total_us, 0));
  return section("Host calls", lines(functions.map((one) => ({
    name: one.name,
    share: one.total_us / total,
    says: `${one.count} in ${formatUs(one.total_us)}${one.in_flight ? ", unfinished" : ""}`,
    cut: one.in_flight,
  }))));
}

function requests(run) {
  if (!run.requests?.length) return [];
  const name = ({ method, host, path }) => `${method} ${host}${path}`;
  return section("Requests", timeline(run.requests, name), ...omitted(run.requests_omitted));
}

function backtrace(frames) {
  if (!frames?.length) return [];
  const line = (frame) => {
    const place = [frame.file, frame.line].filter(Boolean).join(":");
    return create("li", "wraps", create("span", "name", frame.function ?? `at ${frame.offset}`),
      place ? create("span", "under", place) : null);
  };
  return section("Backtrace of the guest", create("ol", "frames", ...frames.map(line)));
}

function seenBefore(before) {
  if (!before?.count) return [];
  const times = before.count === 1 ? "Once" : `${before.count} times`;
  return section("Seen before", create("p", "", `${times}, the last on ${formatDate(before.last_at)}.`));
}

function advice(next) {
  if (!next?.length) return [];
  return section("What to do", create("ul", "advice", ...next.map((one) => create("li", "wraps", one))));
}

/** All sections of a dispatch. */
function explanationOf(run) {
  return [
    summary(run),
    ...(run.status === "ended" ? advice(run.next) : []),
    ...seenBefore(run.seen_before),
    ...timeSplit(run.time_split_us),
    ...hostCalls(run),
    ...requests(run),
    ...backtrace(run.backtrace ?? run.outcome?.backtrace),
  ];
}
