//! The server that handlers call: it records each request, and responds after a while.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_model::{Clock as _, SystemClock};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::history::{Effect, Life};
use crate::proxy::wait;
use crate::random::Random;
use crate::server::block;

#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Effect>>>,
}

impl Effects {
    /// One whose delays `random` decides.
    pub(crate) fn start(mut random: Random) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = seen.clone();
        let port = block(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let port = listener.local_addr().expect("it is bound").port();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, random.fork(), shared.clone()));
                }
            });
            port
        });
        Self { port, seen }
    }

    pub(crate) fn seen(&self) -> Vec<Effect> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves a connection, which hosts use for several requests.
async fn serve(stream: TcpStream, mut random: Random, seen: Arc<Mutex<Vec<Effect>>>) {
    let clock = SystemClock::new();
    let mut stream = BufReader::new(stream);
    while let Some((effect, nth)) = receive(&mut stream, &clock, &seen).await {
        // Most are quick, and some last longer than a lease would after a stop.
        let most = if random.below(20) == 0 { 4_000 } else { 400 };
        let millis = u64::try_from(random.below(most)).expect("it is short");
        wait(Duration::from_millis(millis)).await;
        let answered = clock.wall();
        if let Some(one) = seen.lock().unwrap_or_else(PoisonError::into_inner).get_mut(nth) {
            one.answered = Some(answered);
        }
        let body = effect.call.to_string();
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads a request and records it; `None` at the end of the connection.
async fn receive(
    stream: &mut BufReader<TcpStream>,
    clock: &SystemClock,
    seen: &Mutex<Vec<Effect>>,
) -> Option<(Effect, usize)> {
    let mut first = String::new();
    if stream.read_line(&mut first).await.ok()? == 0 {
        return None;
    }
    let at = clock.wall();
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let context: Value = serde_json::from_slice(&body).expect("a handler's context");
    let call = first.split(' ').nth(1).and_then(|path| path.strip_prefix('/')?.parse().ok());
    let effect = Effect {
        dispatch: context["dispatch_id"].as_str()?.parse().expect("an id"),
        attempt: u32::try_from(context["attempt"].as_u64()?).expect("it is small"),
        call: call.expect("a number"),
        life: parse(context["integration_config"]["host"].as_str()?).expect("a host"),
        at,
        answered: None,
    };
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.push(effect.clone());
    Some((effect, seen.len() - 1))
}

/// The name of a process that its guests send.
pub(crate) fn name(life: Life) -> String {
    format!("host-{}-{}", life.host, life.start)
}

fn parse(name: &str) -> Option<Life> {
    let (host, start) = name.strip_prefix("host-")?.split_once('-')?;
    Some(Life { host: host.parse().ok()?, start: start.parse().ok()? })
}

#[test]
fn the_name_of_a_process_is_read_again() {
    let life = Life { host: 2, start: 14 };
    assert_eq!(parse(&name(life)), Some(life));
}
