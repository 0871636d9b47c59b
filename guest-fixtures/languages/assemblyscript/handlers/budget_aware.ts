// Works in small steps until it is told to stop, and says how far it came.
import { JsonObject, answer, completed, deadlineRemainingMs, shouldStop } from "../template/sandglass";

function budgetAware(_context: string): string {
  let steps = 0, longest = 0;
  while (!shouldStop()) {
    steps += 1;
    longest = max(longest, stepsOfCollatz(steps));
  }
  return completed(
    new JsonObject()
      .string("stopped", "in time")
      .integer("steps", steps)
      .integer("longest", longest)
      .bool("had_time_left", deadlineRemainingMs() > 0),
  );
}

// One step of its work: how far a number is from 1 by Collatz' rule.
function stepsOfCollatz(from: u64): i32 {
  let count = 0;
  for (let n = from; n > 1; count++) n = n & 1 ? 3 * n + 1 : n >> 1;
  return count;
}

export function run(_context: i32, _length: i32): i32 {
  return answer(budgetAware);
}
