//! The longest time that a call of each host function takes, and the most memory of the host: the table "Host functions at their bounds" of `docs/performance.md`. It asserts nothing about
//! time.
//!
//! ```sh
//! cargo bench -p sandglass-host --bench functions                # all functions
//! cargo bench -p sandglass-host --bench functions -- fd_write    # those with this in their name
//! ```
//!
//! Each function is called with texts as long as it reads at most (docs/host-functions.md), of
//! several contents: letters, values of JSON of several shapes, lists of buffers. The time of one
//! input is the shortest of three runs, in which another process counts least.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the figures are for people")]
#![allow(missing_docs, reason = "it is no library")]

mod component;
mod content;
mod core_module;

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use sandglass_host::{
    Context, Destination, Dispatch, DispatchDeadline, FixedSecrets, Host, Integration, Manifest,
    Secret, Settings,
};
use sandglass_model::{GuestLimits, RunReport};

/// How often each input is measured.
const REPEATED: u32 = 3;

/// A guest that calls one function once.
struct Input {
    guest: Vec<u8>,
    /// Its name in reports.
    function: String,
    /// A description of what the guest passes.
    about: String,
}

#[derive(Default)]
struct Worst {
    micros: u64,
    slowest: String,
    host_bytes: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let part = std::env::args().skip(1).find(|argument| argument != "--bench");
    let settings = Settings { max_runs: 1, max_asking: 0, ..Settings::default() };
    let host = Host::builder().settings(settings).build()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut worst = BTreeMap::<String, Worst>::new();
    let inputs = core_module::inputs(&host)?.chain(component::inputs());
    for input in inputs {
        if part.as_ref().is_some_and(|part| !input.function.contains(part)) {
            continue;
        }
        if !worst.contains_key(&input.function) {
            eprintln!("{}", input.function);
        }
        let integration = host
            .load(&input.guest, manifest()?)
            .map_err(|rejection| format!("{}, {}: {rejection}", input.function, input.about))?;
        let (micros, host_bytes) = runtime.block_on(measured(&host, &integration))?;
        let worst = worst.entry(input.function).or_default();
        worst.host_bytes = worst.host_bytes.max(host_bytes);
        if micros >= worst.micros {
            (worst.micros, worst.slowest) = (micros, input.about);
        }
    }
    print(worst);
    Ok(())
}

/// Grants everything that any function needs.
fn manifest() -> Result<Manifest, Box<dyn Error>> {
    let secrets: FixedSecrets = [("key".to_owned(), Secret::new("value"))].into_iter().collect();
    // The modules contain the texts.
    let limits = GuestLimits { module_bytes: 32 << 20, ..GuestLimits::default() };
    Ok(Manifest::named("guest")
        .limits(limits)
        .allow_hosts(["127.0.0.1:9".parse::<Destination>()?])
        .secrets(std::sync::Arc::new(secrets))
        .scratch_bytes(1 << 20))
}

/// The shortest time of the call, in microseconds, and the least memory of the host, in bytes.
async fn measured(host: &Host, integration: &Integration) -> Result<(u64, u64), Box<dyn Error>> {
    let (mut micros, mut host_bytes) = (u64::MAX, u64::MAX);
    for _ in 0..REPEATED {
        let dispatch = Dispatch::new("Session/1".parse()?, "Begin", Context::default())
            .deadline(DispatchDeadline::after(Duration::from_secs(20)));
        let report: RunReport = host.run_in_place(integration, dispatch).await?;
        let split = &report.time_split_us;
        // The guest does nothing but the call. A component's arguments are copied before the function
        // begins.
        micros = micros.min(split.guest.saturating_add(split.host));
        host_bytes = host_bytes.min(report.peak_host_memory_bytes);
    }
    Ok((micros, host_bytes))
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn print(worst: BTreeMap<String, Worst>) {
    let mut rows: Vec<_> = worst.into_iter().collect();
    rows.sort_by_key(|(_, worst)| std::cmp::Reverse(worst.micros));
    println!("| function | slowest call | most held by the host | slowest with |");
    println!("|---|---|---|---|");
    for (name, Worst { micros, slowest, host_bytes }) in rows {
        let (millis, kibibytes) = (micros as f64 / 1000.0, host_bytes.div_ceil(1024));
        println!("| `{name}` | {millis:.2} ms | {kibibytes} KiB | {slowest} |");
    }
}
