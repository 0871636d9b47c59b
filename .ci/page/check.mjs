// Opens the page of a running daemon in Chromium, as an operator would: watches handlers start and
// end, opens an explanation by keyboard, cancels a handler, sends a signal, enters a key, and sees that a
// daemon froze.
// Takes the addresses of two daemons, one that needs no key and one that needs KEY, and a folder
// for screenshots; FROZEN is the process of the first.
import assert from "node:assert/strict";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [open, keyed, shots] = process.argv.slice(2);
const KEY = process.env.CHECK_KEY;
const FROZEN = Number(process.env.FROZEN);
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
/** Text that a browser would execute if it became markup. */
const ATTACK = `<img src=x onerror="document.title='taken'">`;
const POLL = "wasi_snapshot_preview1.poll_oneoff";
const WIDE = { width: 1100, height: 800 };
const PHONE = { width: 360, height: 740 };

const post = async (path, body) => {
  const response = await fetch(`${open}${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: body && JSON.stringify(body),
  });
  assert.ok(response.ok, `${path}: ${response.status} ${await response.clone().text()}`);
  return response.json();
};

/** Starts a handler of a new entity, and returns its dispatch. */
async function start(id, action, type = "Job") {
  const at = `/v1/entities/${type}/${encodeURIComponent(id)}`;
  await post(at);
  return (await post(`${at}/actions/${action}`)).dispatches[0];
}

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
const faults = [];

/** A new tab. Each error in it and each request to another site fails the check. */
async function tab(at, options = {}) {
  const context = await browser.newContext({ viewport: WIDE, colorScheme: "light", ...options });
  context.setDefaultTimeout(20_000);
  const page = await context.newPage();
  const home = new URL(at).origin;
  page.on("pageerror", (error) => faults.push(`${error}`));
  page.on("console", (message) => {
    // A browser logs each refused response; the check is about what the page shows.
    const refused = /Failed to load resource: the server responded with a status/;
    if (message.type() === "error" && !refused.test(message.text())) faults.push(message.text());
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.origin !== home) faults.push(`requests ${url.origin}`);
  });
  await page.goto(at);
  return page;
}

const shoot = (page, name) => page.screenshot({ path: join(shots, `${name}.png`) });

const row = (page, name) => page.locator("#rows tr", { hasText: name });

const fitsWidth = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth);

/** The least contrast (WCAG) of a visible text with its background. */
const leastContrast = (page) => page.evaluate(() => {
  const parse = (color) => color.match(/[\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = (value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let least = { ratio: 21 };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.data.trim();
    if (!text || !element.checkVisibility() || element.closest("script, style")) continue;
    const [one, other] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < least.ratio) least = { ratio, text };
  }
  return least;
});

async function isReadable(page, name) {
  const { ratio, text } = await leastContrast(page);
  assert.ok(ratio >= 4.5, `${name}: a contrast of ${ratio.toFixed(2)} in "${text}"`);
}

async function showsHandlersAndKills(page) {
  await page.getByText("No handler is in flight.").waitFor();
  await start("order-1041", "Poll");
  await row(page, "Job/order-1041").getByText(POLL).waitFor();
  await start("order-1042", "Spin");
  await start("order-1044", "Stick");
  await row(page, "Job/order-1042").getByText("guest", { exact: true }).waitFor();
  await start(ATTACK, "Poll");
  await row(page, "onerror").waitFor();
  assert.equal(await page.locator("main img, dialog img").count(), 0, "a name became markup");
  await start("order-1043", "Hurry");
  await page.locator("#kills tr", { hasText: "Job/order-1043" }).getByText(POLL).waitFor();
  assert.equal(await row(page, "Job/order-1043").count(), 0, "a killed handler has no row");
  await page.locator("#spans li", { hasText: POLL }).waitFor();
  const left = () => row(page, "Job/order-1042").locator("td").nth(2).innerText();
  const before = await left();
  await page.waitForFunction((was) => {
    const rows = [...document.querySelectorAll("#rows tr")];
    const found = rows.find((one) => one.innerText.includes("order-1042"));
    return found && !found.innerText.includes(was);
  }, before.split("\n")[0]);
}

async function isMarkedStuck(page) {
  await row(page, "Job/order-1044").getByText("STUCK").waitFor();
  await shoot(page, "stuck");
  assert.equal(await row(page, "Job/order-1042").getByText("STUCK").isVisible(), false);
}

async function showsSessions(page) {
  await start("watcher", "Watch", "Agent");
  const watcher = row(page, "Agent/watcher");
  await watcher.getByText(/^run 1, SILENT, 3 h 59 m of the run left$/).waitFor();
  await watcher.locator("td").first().getByText("STUCK").waitFor();
  assert.equal(await row(page, "Job/order-1042").getByText("run 1").count(), 0, "an entity that is not a session shows no run");
  await post(`/v1/entities/Agent/${encodeURIComponent(ATTACK)}`, { limits: { run_timeout: "100ms" } });
  const blocked = page.locator("#blocked-rows tr", { hasText: "onerror" });
  await blocked.getByText("watchdog_wall_clock_exceeded").waitFor();
  assert.equal(await page.locator("main img").count(), 0, "a name became markup");
  await shoot(page, "sessions");
  await isReadable(page, "sessions");
  const resume = { limits: { run_timeout: "1h" } };
  await post(`/v1/sessions/Agent/${encodeURIComponent(ATTACK)}/resume`, resume);
  await page.locator("#blocked").waitFor({ state: "hidden" });
}

async function readsAndCancelsByKeyboard() {
  const page = await tab(open);
  await row(page, "Job/order-1041").waitFor();
  await page.keyboard.press("Tab");
  assert.equal(await page.locator(":focus").innerText(), "Skip to the handlers");
  await page.keyboard.press("Enter");
  const names = await page.locator("#rows button.open").allInnerTexts();
  for (let presses = 0; presses <= names.length; presses += 1) {
    await page.keyboard.press("Tab");
    if ((await page.locator(":focus").innerText()) === "Job/order-1041") break;
  }
  assert.equal(await page.locator(":focus").innerText(), "Job/order-1041");
  await page.keyboard.press("Enter");
  const explanation = page.locator("#explanation");
  await explanation.getByText("Job/order-1041").waitFor();
  await explanation.getByLabel("Reason for cancelling").waitFor();
  await shoot(page, "explanation");
  await isReadable(page, "explanation");
  await page.keyboard.press("Escape");
  assert.equal(await explanation.isVisible(), false);
  assert.equal(await page.locator(":focus").innerText(), "Job/order-1041", "the focus returns");
  await page.keyboard.press("Enter");
  await explanation.getByLabel("Reason for cancelling").fill("the upstream is down");
  await page.keyboard.press("Enter");
  await explanation.getByText("It has ended.").waitFor();
  await explanation.getByText("cancelled", { exact: true }).waitFor();
  await explanation.getByText("What to do").waitFor();
  await shoot(page, "explanation-ended");
  await isReadable(page, "explanation of an ended dispatch");
  await explanation.getByRole("button", { name: "Close" }).click();
  await row(page, "Job/order-1041").waitFor({ state: "detached" });
  const kill = page.locator("#kills tr", { hasText: "Job/order-1041" });
  await kill.getByText("cancelled").waitFor();
  const recorded = await (await fetch(`${open}/v1/entities/Job/order-1041/history`)).text();
  assert.ok(recorded.includes("the upstream is down"), "the reason is in the record");
  await page.context().close();
}

async function sendsASignal() {
  const page = await tab(open);
  await row(page, "Job/order-1042").getByRole("button").click();
  const explanation = page.locator("#explanation");
  const name = explanation.getByLabel("Name of a signal");
  await name.fill("host_call");
  await page.keyboard.press("Enter");
  await explanation.getByText("it is reserved").waitFor();
  await name.fill(ATTACK);
  await explanation.getByLabel("Payload of the signal").fill(`{"paid": true}`);
  await page.keyboard.press("Enter");
  await explanation.getByText("The signal is recorded.").waitFor();
  await shoot(page, "signal");
  await isReadable(page, "signal");
  const history = await (await fetch(`${open}/v1/entities/Job/order-1042/history`)).json();
  const signals = history.entries.map((one) => one.event).filter((one) => one.type === "signal");
  assert.deepEqual(signals.map((one) => [one.name, one.payload]), [[ATTACK, { paid: true }]]);
  await page.context().close();
}

async function looksRight() {
  for (const [name, options] of [
    ["wide-light", {}],
    ["wide-dark", { colorScheme: "dark" }],
    ["phone-light", { viewport: PHONE }],
    ["phone-dark", { viewport: PHONE, colorScheme: "dark", reducedMotion: "reduce" }],
  ]) {
    const page = await tab(open, options);
    await row(page, "Job/order-1042").waitFor();
    assert.ok(await fitsWidth(page), `${name}: the page is wider than the screen`);
    await isReadable(page, name);
    await shoot(page, name);
    await row(page, "Job/order-1042").getByRole("button").click();
    await page.locator("#explanation dd").first().waitFor();
    assert.ok(await fitsWidth(page), `${name}: the explanation is wider than the screen`);
    await shoot(page, `${name}-explanation`);
    await page.context().close();
  }
}

async function takesAKey() {
  const page = await tab(keyed);
  const key = page.getByLabel("The key of this daemon");
  await key.waitFor();
  await shoot(page, "key");
  await isReadable(page, "key");
  await key.fill("a-key-that-is-wrong");
  await page.keyboard.press("Enter");
  await page.getByText("The daemon does not accept this key.").waitFor();
  await key.fill(KEY);
  await page.keyboard.press("Enter");
  await page.getByText("No handler is in flight.").waitFor();
  const kept = await page.evaluate(() => [sessionStorage.length, localStorage.length]);
  assert.deepEqual(kept, [1, 0]);
  await page.reload();
  await page.getByText("No handler is in flight.").waitFor();
  await page.context().close();
}

/** A name is text in the explanation and in the announcement, too. */
async function isInert(page) {
  await row(page, "onerror").getByRole("button").click();
  await page.locator("#explanation dd").first().waitFor();
  assert.equal(await page.locator("img").count(), 0);
  assert.notEqual(await page.title(), "taken");
  await page.keyboard.press("Escape");
}

async function reportsADaemonThatFroze() {
  const page = await tab(open);
  const health = page.locator("#health");
  await health.getByText("ticker and journal work").waitFor();
  process.kill(FROZEN, "SIGSTOP");
  try {
    await health.getByText("no news for").waitFor();
    await health.getByText("the daemon does not respond").waitFor();
    await page.getByText("Reconnecting in").waitFor();
    await shoot(page, "frozen");
  } finally {
    process.kill(FROZEN, "SIGCONT");
  }
  await health.getByText("ticker and journal work").waitFor();
  assert.equal(await page.locator("#notice").isVisible(), false);
  await page.context().close();
}

const page = await tab(open);
await showsHandlersAndKills(page);
await isInert(page);
await isMarkedStuck(page);
await showsSessions(page);
await readsAndCancelsByKeyboard();
await sendsASignal();
await looksRight();
await takesAKey();
await reportsADaemonThatFroze();
await browser.close();
assert.deepEqual(faults, []);
console.log("the page works");
