//! Requests, several at a time, with bodies that are streams.

use std::pin::pin;

use futures_util::future::{Either, join, join_all, select};
use serde_json::json;
use wit_bindgen::{StreamReader, StreamResult, StreamWriter, yield_async};

use crate::bindings::sandglass::integration0_1_1::http::{Error, RequestHead};
use crate::bindings::sandglass::integration0_2_0::http::{Request, Response, send};
use crate::bindings::sandglass::integration0_2_0::timer;
use crate::bindings::wit_stream;
use crate::{Answer, Config};

fn head(method: &str, url: &str) -> RequestHead {
    RequestHead { method: method.to_owned(), url: url.to_owned(), headers: Vec::new() }
}

/// Reads the whole body of a response.
async fn body_of(response: Response) -> Result<Vec<u8>, String> {
    let body = response.body.collect().await;
    response.ended.await.map_err(describe)?;
    Ok(body)
}

fn describe(error: Error) -> String {
    format!("{error:?}")
}

/// Gets `url`.
pub(crate) async fn get(config: &Config) -> Answer {
    let request = Request { head: head("GET", config.text("url")), body: None };
    let response = send(request).await.map_err(describe)?;
    let status = response.status;
    let body = body_of(response).await?;
    let text = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
    Ok(json!({ "status": status, "bytes": body.len(), "text": text }))
}

/// Gets `url` `count` times at once.
pub(crate) async fn get_many(config: &Config) -> Answer {
    let gets = (0..config.number("count", 4)).map(|number| async move {
        let url = format!("{}?{number}", config.text("url"));
        let response = send(Request { head: head("GET", &url), body: None }).await;
        body_of(response.map_err(describe)?).await.map(|body| body.len())
    });
    let lengths: Result<Vec<_>, String> = join_all(gets).await.into_iter().collect();
    Ok(json!({ "lengths": lengths? }))
}

/// Sends `count` pieces of `piece` bytes to `url`, while it waits for the response.
pub(crate) async fn upload(config: &Config) -> Answer {
    let (mut writer, reader) = wit_stream::new();
    let request = Request { head: head("POST", config.text("url")), body: Some(reader) };
    let (count, piece) = (config.number("count", 3), config.number("piece", 1000));
    let write = async move {
        let mut unsent = 0;
        for _ in 0..count {
            unsent += writer.write_all(vec![b'x'; piece as usize]).await.len();
        }
        unsent
    };
    let (response, unsent) = join(send(request), write).await;
    let response = response.map_err(describe)?;
    let status = response.status;
    let body = body_of(response).await?;
    Ok(json!({ "status": status, "unsent": unsent, "text": String::from_utf8_lossy(&body) }))
}

/// Sends `count` pieces of 1,000 bytes to `url`, which returns them. Cancels each step of both streams
/// that is not over after a yield, and begins it anew.
pub(crate) async fn hesitate(config: &Config) -> Answer {
    let sent: Vec<u8> =
        (0..config.number("count", 3) * 1000).map(|at| (at * 7 % 251) as u8).collect();
    let (writer, reader) = wit_stream::new();
    let request = Request { head: head("POST", config.text("url")), body: Some(reader) };
    let (response, writes) = join(send(request), write_hesitating(writer, &sent)).await;
    let (received, reads) = read_hesitating(response.map_err(describe)?.body).await;
    Ok(json!({ "same": received == sent, "cancelled": writes.min(reads) > 0 }))
}

/// Returns how many writes were cancelled.
async fn write_hesitating(mut writer: StreamWriter<u8>, bytes: &[u8]) -> u64 {
    let (mut written, mut cancelled) = (0, 0);
    while written < bytes.len() {
        let piece = &bytes[written..bytes.len().min(written + 1000)];
        let mut write = pin!(writer.write(piece.to_vec()));
        let (result, rest) = match select(write.as_mut(), pin!(yield_async())).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => {
                cancelled += 1;
                write.cancel()
            }
        };
        if cancelled > 0 {
            timer::sleep(1).await;
        }
        written += piece.len() - rest.remaining();
        if result == StreamResult::Dropped {
            break;
        }
    }
    cancelled
}

/// Returns what was read, and how many reads were cancelled.
async fn read_hesitating(mut reader: StreamReader<u8>) -> (Vec<u8>, u64) {
    let (mut received, mut cancelled) = (Vec::new(), 0);
    loop {
        let mut read = pin!(reader.read(Vec::with_capacity(700)));
        let (result, piece) = match select(read.as_mut(), pin!(yield_async())).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => {
                cancelled += 1;
                read.cancel()
            }
        };
        if cancelled > 0 {
            timer::sleep(1).await;
        }
        received.extend(piece);
        if result == StreamResult::Dropped {
            return (received, cancelled);
        }
    }
}

/// Tries files and sockets, which there are not.
pub(crate) async fn denied() -> Answer {
    use wasip3::sockets::ip_name_lookup::resolve_addresses;
    use wasip3::sockets::types::{IpAddressFamily, TcpSocket, UdpSocket};
    let tcp = TcpSocket::create(IpAddressFamily::Ipv4).err();
    let udp = UdpSocket::create(IpAddressFamily::Ipv6).err();
    let name = resolve_addresses("localhost".to_owned()).await.err();
    Ok(json!({
        "tcp": format!("{tcp:?}"), "udp": format!("{udp:?}"), "name": format!("{name:?}"),
    }))
}
