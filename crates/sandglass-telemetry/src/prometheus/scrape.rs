//! Scrapes that share a rendering: it takes milliseconds of a core, and any number of clients may
//! scrape at the same time.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Bytes;
use tokio::sync::Mutex;

/// The last rendering, and who may share it.
#[derive(Debug, Default)]
pub(super) struct Scrapes {
    /// Scrapes that were begun so far.
    begun: AtomicU64,
    last: Mutex<Rendered>,
}

#[derive(Debug, Default)]
struct Rendered {
    /// It was begun after this many scrapes.
    begun: u64,
    text: Bytes,
}

impl Scrapes {
    /// A text that `render` has returned after this call began: it contains everything that was
    /// reported before. One rendering runs at a time, and all scrapes that began before it share
    /// it.
    pub(super) async fn scrape(&self, render: impl FnOnce() -> String) -> Bytes {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let mut last = self.last.lock().await;
        if last.begun < number {
            let begun = self.begun.load(Ordering::Acquire);
            *last = Rendered { begun, text: render().into() };
        }
        last.text.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn scrapes_that_wait_share_one_rendering_and_later_ones_have_their_own() {
        let scrapes = Scrapes::default();
        let rendered = AtomicU64::new(0);
        let render = || (rendered.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        let busy = scrapes.last.lock().await;
        let (one, other) = (scrapes.scrape(render), scrapes.scrape(render));
        let (one, other, ()) = tokio::join!(biased; one, other, async { drop(busy) });
        assert_eq!([one, other], ["1", "1"]);
        assert_eq!(scrapes.scrape(render).await, "2");
        assert_eq!(scrapes.scrape(render).await, "3");
    }
}
