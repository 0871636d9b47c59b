// A handler in JavaScript. What it does is a parameter of the action.
import { send } from 'sandglass:integration/http@0.1.0';
import { deadlineRemainingMs, shouldStop } from 'sandglass:integration/clock@0.1.0';
import { setStatus } from 'sandglass:integration/progress@0.1.0';

const HOUR_MS = 3_600_000;
const STEP_MS = 50;

const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));
const completed = (params) => ({ action: undefined, params: JSON.stringify(params) });

const work = {
  // Answers what it was given.
  echo: ({ text }, context) => completed({ text, attempt: context.attempt }),

  // Asks a server that takes its time.
  fetch({ url }) {
    const head = { method: 'GET', url, headers: [] };
    const { status, body } = send({ head, body: new Uint8Array() });
    return completed({ status, body: new TextDecoder().decode(body) });
  },

  // Hangs, and tries not to be ended.
  async hang() {
    for (;;) {
      try {
        await sleep(HOUR_MS);
      } catch {
        // It goes on.
      }
    }
  },

  // Works in small steps until it is told to stop, and says how far it came.
  async steps() {
    let steps = 0;
    while (!shouldStop()) {
      await sleep(STEP_MS);
      steps += 1;
    }
    return completed({ stopped: 'in time', steps, had_time_left: deadlineRemainingMs() > 0n });
  },
};

export async function handle(context) {
  const params = JSON.parse(context.triggerParams);
  setStatus(`javascript: ${params.do}`);
  const act = work[params.do];
  if (!act) throw { tag: 'plain', val: `there is nothing called ${params.do}` };
  return await act(params, context);
}
