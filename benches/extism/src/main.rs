//! Measures a dispatch on a fresh plugin in Extism, and the same work in the Wasmtime that
//! Extism uses. `sandglass bench --only dispatch_inline` measures the same for Sandglass and
//! its Wasmtime. The versions of Wasmtime differ, so compare the ratios, not the times.

#![expect(clippy::disallowed_methods, reason = "time is what is measured")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use extism::{CompiledPlugin, Manifest, Plugin, PluginBuilder, Wasm};
use serde_json::json;
use wasmtime::{
    Caller, Config, Enabled, Engine, Extern, InstanceAllocationStrategy, InstancePre, Linker,
    Module, PoolingAllocationConfig, Store,
};

/// The result of both guests.
const ANSWER: &str = r#"{"success":true,"params":{}}"#;

/// A handler as a plugin: it copies its result into Extism's memory, word by word, and declares
/// it as the output. Extism's plugin kits do the same.
const PLUGIN: &str = r#"(module
  (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
  (import "extism:host/env" "store_u64" (func $store (param i64 i64)))
  (import "extism:host/env" "output_set" (func $output (param i64 i64)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "{\"success\":true,\"params\":{}}")
  (func (export "run") (result i32)
    (local $at i64) (local $done i32)
    (local.set $at (call $alloc (i64.const 32)))
    (loop $again
      (call $store
        (i64.add (local.get $at) (i64.extend_i32_u (local.get $done)))
        (i64.load offset=1024 (local.get $done)))
      (local.set $done (i32.add (local.get $done) (i32.const 8)))
      (br_if $again (i32.lt_u (local.get $done) (i32.const 32))))
    (call $output (local.get $at) (i64.const 28))
    (i32.const 0)))"#;

/// The handler for the baseline: one host call copies the result from its memory.
const PLAIN: &str = r#"(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "{\"success\":true,\"params\":{}}")
  (func (export "run") (result i32)
    (call $set_result (i32.const 1024) (i32.const 28))
    (i32.const 0)))"#;

/// How long one candidate is measured before the next: the speed of a machine varies.
const TURN: Duration = Duration::from_millis(50);
/// Turns of each candidate: some seconds.
const TURNS: usize = 40;
/// Memory that stays resident in a slot, in bytes: more than these guests touch.
const KEEP_RESIDENT_BYTES: usize = 4 << 20;
/// A timeout, because handlers have a deadline.
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<()> {
    let plain = plain(&pooled()?)?;
    let default = compiled(PluginBuilder::new(manifest()).with_cache_disabled())?;
    let with_pool = PluginBuilder::new(manifest()).with_cache_disabled();
    let with_pool = compiled(with_pool.with_wasmtime_config(pool()))?;
    let mut plain_ns = Vec::new();
    let (mut default_ns, mut pool_ns) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        turn(&mut plain_ns, || dispatch_plain(&plain))?;
        turn(&mut default_ns, || dispatch(&default))?;
        turn(&mut pool_ns, || dispatch(&with_pool))?;
    }
    let baseline = quantile(&mut plain_ns, 50);
    let figure = |samples: &mut Vec<u64>| {
        let (p50, p99) = (quantile(samples, 50), quantile(samples, 99));
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a dispatch")]
        let ratio = p50 as f64 / baseline as f64;
        json!({
            "p50": p50, "p99": p99, "unit": "ns", "samples": samples.len(),
            "baseline": baseline, "ratio": ratio,
        })
    };
    let figures = json!({
        "extism_default": figure(&mut default_ns),
        "extism_pooled": figure(&mut pool_ns),
    });
    println!("{figures:#}");
    Ok(())
}

/// Calls `dispatch` for the time of a turn, and records the time of each call.
fn turn(samples: &mut Vec<u64>, mut dispatch: impl FnMut() -> Result<String>) -> Result<()> {
    let until = Instant::now() + TURN;
    loop {
        let began = Instant::now();
        let answer = dispatch()?;
        let now = Instant::now();
        ensure!(answer == ANSWER, "the guest returned {answer:?}");
        samples.push(u64::try_from((now - began).as_nanos())?);
        if now >= until {
            return Ok(());
        }
    }
}

fn quantile(samples: &mut [u64], percent: usize) -> u64 {
    samples.sort_unstable();
    samples[(samples.len() - 1) * percent / 100]
}

fn manifest() -> Manifest {
    Manifest::new([Wasm::data(PLUGIN.as_bytes())]).with_timeout(TIMEOUT)
}

fn compiled(builder: PluginBuilder<'_>) -> Result<CompiledPlugin> {
    builder.compile().context("the plugin cannot be compiled")
}

/// A fresh plugin for each dispatch, without any state of the one before.
fn dispatch(compiled: &CompiledPlugin) -> Result<String> {
    let mut plugin = Plugin::new_from_compiled(compiled)?;
    Ok(plugin.call::<&str, String>("run", "")?)
}

/// The fastest configuration of Wasmtime's pool, as in Sandglass's own baseline.
fn pool() -> Config {
    let mut pooling = PoolingAllocationConfig::new();
    pooling
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES);
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pooling));
    config
}

fn pooled() -> Result<Engine> {
    Ok(Engine::new(&pool())?)
}

/// A compiled and linked module, and its engine.
struct Linked {
    engine: Engine,
    pre: InstancePre<String>,
}

fn plain(engine: &Engine) -> Result<Linked> {
    let module = Module::new(engine, PLAIN)?;
    let mut linker = Linker::new(engine);
    linker.func_wrap(
        "env",
        "host_set_result",
        |mut caller: Caller<'_, String>, at: u32, length: u32| -> wasmtime::Result<()> {
            let memory = caller.get_export("memory").and_then(Extern::into_memory);
            let memory = memory.ok_or_else(|| wasmtime::format_err!("no memory"))?;
            let (bytes, answer) = memory.data_and_store_mut(&mut caller);
            let end = (at as usize).saturating_add(length as usize);
            let bytes = bytes.get(at as usize..end);
            let bytes = bytes.ok_or_else(|| wasmtime::format_err!("outside of the memory"))?;
            str::from_utf8(bytes)?.clone_into(answer);
            Ok(())
        },
    )?;
    Ok(Linked { engine: engine.clone(), pre: linker.instantiate_pre(&module)? })
}

fn dispatch_plain(linked: &Linked) -> Result<String> {
    let mut store = Store::new(&linked.engine, String::new());
    store.set_epoch_deadline(1);
    let instance = linked.pre.instantiate(&mut store)?;
    let run = instance.get_typed_func::<(), i32>(&mut store, "run")?;
    run.call(&mut store, ())?;
    Ok(store.into_data())
}
