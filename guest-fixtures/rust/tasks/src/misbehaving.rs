//! What no handler should do.

use futures_util::future::{join_all, pending};

use serde_json::json;

use crate::bindings::sandglass::integration0_2_0::timer;
use crate::bindings::{wit_future, wit_stream};
use crate::{Answer, Config};

/// A day, in milliseconds.
const LONG_MS: u64 = 24 * 3600 * 1000;

pub(crate) async fn call(does: &str, config: &Config) -> Option<Answer> {
    let count = config.number("count", 1);
    Some(match does {
        "wait_forever" => {
            join_all((0..count).map(|_| timer::sleep(LONG_MS))).await;
            Ok(json!({}))
        }
        "wait_for_nothing" => pending().await,
        "spin_beside_a_wait" => {
            let wait = timer::sleep(LONG_MS);
            let spin = async {
                loop {
                    std::hint::spin_loop();
                }
            };
            futures_util::future::join::<_, futures_util::future::BoxFuture<'static, ()>>(
                wait,
                Box::pin(spin),
            )
            .await;
            Ok(json!({}))
        }
        "yield_forever" => loop {
            wit_bindgen::yield_async().await;
        },
        "yield_beside_a_wait" => {
            let yields = async {
                loop {
                    wit_bindgen::yield_async().await;
                }
            };
            let ((), ()) = futures_util::future::join(timer::sleep(LONG_MS), yields).await;
            Ok(json!({}))
        }
        "unread_streams" => {
            let mut readers = Vec::new();
            let writes = (0..count).map(|_| {
                let (mut writer, reader) = wit_stream::new();
                readers.push(reader);
                async move { writer.write_all(vec![0_u8; 1000]).await }
            });
            join_all(writes.collect::<Vec<_>>()).await;
            Ok(json!({ "kept": readers.len() }))
        }
        "unwritten_futures" => {
            let mut writers = Vec::new();
            let reads = (0..count).map(|_| {
                let (writer, reader) = wit_future::new(|| Ok(()));
                writers.push(writer);
                reader.into_future()
            });
            let reads: Vec<_> = reads.collect();
            join_all(reads).await;
            Ok(json!({ "kept": writers.len() }))
        }
        "dropped_futures" => {
            for _ in 0..count {
                let (writer, reader) = wit_future::new(|| Ok(()));
                drop(reader);
                drop(writer);
            }
            Ok(json!({ "made": count }))
        }
        "streams_without_end" => {
            let mut kept = Vec::new();
            loop {
                kept.push(wit_stream::new::<u8>());
            }
        }
        _ => return None,
    })
}
