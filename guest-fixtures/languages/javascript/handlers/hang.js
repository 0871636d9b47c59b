// Sleeps forever, and catches what it can.
const HOUR_MS = 3_600_000;

export async function handle() {
  for (;;) {
    try {
      await new Promise((wake) => setTimeout(wake, HOUR_MS));
    } catch {
      // It goes on.
    }
  }
}
