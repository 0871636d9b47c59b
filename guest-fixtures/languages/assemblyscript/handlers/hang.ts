// Spins forever.
import { answer } from "../template/sandglass";

function hang(_context: string): string {
  while (true) {}
}

export function run(_context: i32, _length: i32): i32 {
  return answer(hang);
}
