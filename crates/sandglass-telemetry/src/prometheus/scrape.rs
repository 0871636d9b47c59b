//! Scrapes that share a rendering, because it takes milliseconds of a core, and any number of clients can
//! scrape at the same time.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::body::Bytes;
use tokio::sync::Mutex;

/// The last rendering, and which scrapes may share it.
#[derive(Debug, Default)]
pub(super) struct Scrapes {
    /// Scrapes that have begun so far.
    begun: AtomicU64,
    last: Mutex<Rendered>,
}

#[derive(Debug, Default)]
struct Rendered {
    /// How many scrapes had begun before it.
    begun: u64,
    text: Bytes,
}

impl Scrapes {
    /// Returns a text that was rendered after this call began, and so contains everything that was
    /// reported before. There is one rendering at a time, and all scrapes that began before it share it.
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
    async fn waiting_scrapes_share_one_rendering_and_later_ones_do_not() {
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
