//! WASI through the standard library, and what a guest can do to itself.

use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, io, thread};

use serde_json::json;

use crate::Answer;

pub fn call(does: &str) -> Option<Answer> {
    Some(match does {
        "sleep" => sleep(Duration::from_secs(3600)),
        "nap" => sleep(Duration::from_millis(20)),
        "spin" => spin(),
        "panic" => panic!("it had to be"),
        "recurse" => Ok(json!(recurse(1))),
        "exit" => std::process::exit(0),
        "fill_memory" => fill_memory(),
        "open_files" => open_files(),
        "use_sockets" => use_sockets(),
        "read_environment" => read_environment(),
        "read_wasi_clocks" => read_clocks(),
        "draw_random_numbers" => draw_random_numbers(),
        "draw_too_many" => Ok(json!(wasip2::random::random::get_random_bytes(1 << 20).len())),
        "print" => print(),
        "leak_resources" => leak_resources(),
        _ => return None,
    })
}

#[allow(clippy::disallowed_methods, reason = "waiting for nothing is the point")]
fn sleep(time: Duration) -> Answer {
    thread::sleep(time);
    Ok(json!({ "slept": true }))
}

fn spin() -> Answer {
    let mut n = 0_u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

#[allow(unconditional_recursion, reason = "it is what the host must survive")]
fn recurse(n: u64) -> u64 {
    std::hint::black_box(recurse(std::hint::black_box(n + 1)) + 1)
}

fn fill_memory() -> Answer {
    let mut held = Vec::new();
    loop {
        held.push(std::hint::black_box(vec![1_u8; 1 << 20]));
    }
}

fn open_files() -> Answer {
    let refused = |answer: io::Result<()>| answer.is_err();
    Ok(json!({
        "refused": [
            refused(fs::read("/etc/passwd").map(drop)),
            refused(fs::write("x", "y")),
            refused(fs::read_dir(".").map(drop)),
        ],
    }))
}

fn use_sockets() -> Answer {
    Ok(json!({
        "refused": [
            TcpStream::connect("127.0.0.1:80").is_err(),
            UdpSocket::bind("127.0.0.1:0").is_err(),
            "localhost:80".to_socket_addrs().is_err(),
        ],
    }))
}

fn read_environment() -> Answer {
    Ok(json!({ "variables": env::vars().count(), "arguments": env::args().count() }))
}

#[allow(clippy::disallowed_methods, reason = "whether the clocks work is the question")]
fn read_clocks() -> Answer {
    let began = Instant::now();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|e| e.to_string())?;
    Ok(json!({ "after_2020": since.as_secs() > 1_577_836_800, "goes_on": Instant::now() >= began }))
}

fn draw_random_numbers() -> Answer {
    let bytes = wasip2::random::random::get_random_bytes(32);
    let other = wasip2::random::random::get_random_bytes(32);
    let insecure = wasip2::random::insecure::get_insecure_random_u64();
    Ok(json!({ "bytes": bytes.len(), "differ": bytes != other, "insecure": insecure != 0 }))
}

fn print() -> Answer {
    println!("out");
    eprintln!("err");
    let mut line = String::new();
    let read = io::stdin().read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(json!({ "read": read }))
}

fn leak_resources() -> Answer {
    let mut held = Vec::new();
    loop {
        held.push(wasip2::clocks::monotonic_clock::subscribe_duration(1));
    }
}
