// Works in small steps until it is told to stop, and says how far it came.
import { deadlineRemainingMs, shouldStop } from 'sandglass:integration/clock@0.1.1';

const STEP_MS = 50;

export async function handle() {
  let steps = 0;
  while (!shouldStop()) {
    await new Promise((wake) => setTimeout(wake, STEP_MS));
    steps += 1;
  }
  const params = { stopped: 'in time', steps, had_time_left: deadlineRemainingMs() > 0n };
  return { params: JSON.stringify(params) };
}
