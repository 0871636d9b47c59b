//! Compiling in a process of its own, as those who run the binary see it: its limits, what is
//! said of a module that exceeds them, and that a daemon goes on meanwhile.

mod binary;

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;

use binary::{Folder, Running, WAITER, answer_of, fixture, sandglass, with_variable};
use serde_json::Value;

/// A module with `functions` functions of about 1 kB, each of steps that depend on one another:
/// nothing but its size is unusual.
fn large(functions: usize) -> Vec<u8> {
    // local.get 0, i32.const 3, i32.mul, i32.const 7, i32.add, local.set 0
    let step = [0x20, 0, 0x41, 3, 0x6c, 0x41, 7, 0x6a, 0x21, 0];
    let body = [&[0][..], &step.repeat(100), &[0x20, 0, 0x0b]].concat();
    let function = [number(body.len()), body].concat();
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    let mut section = |id, content| module.extend(section(id, content));
    section(1, vec![1, 0x60, 2, 0x7f, 0x7f, 1, 0x7f]);
    section(3, [number(functions), vec![0; functions]].concat());
    section(5, vec![1, 0, 1]);
    section(7, b"\x02\x03run\0\0\x06memory\x02\0".to_vec());
    section(10, [number(functions), function.repeat(functions)].concat());
    module
}

fn section(id: u8, content: Vec<u8>) -> Vec<u8> {
    [vec![id], number(content.len()), content].concat()
}

/// An unsigned number in LEB128.
fn number(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).expect("seven bits");
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[test]
fn a_module_that_compiles_too_long_ends_with_125_and_advice() {
    let folder = Folder::new();
    let slow = folder.write("slow.wasm", large(5000));
    let run = sandglass(&[&"run", &slow, &"--compile-timeout", &"200ms"]);
    run.exits(125).says("compile_limit").says("200ms").says("--compile-timeout");
    let check = sandglass(&[&"check", &slow, &"--compile-timeout", &"200ms", &"--json"]);
    check.exits(1).says("\"compile_limit\"");
    let inspect = sandglass(&[&"inspect", &slow, &"--compile-timeout", &"200ms"]);
    inspect.exits(1).says("compile_limit");
}

#[test]
fn a_module_that_compiles_with_too_much_memory_ends_with_125() {
    let folder = Folder::new();
    let large = folder.write("large.wasm", large(9000));
    let run = sandglass(&[&"run", &large, &"--compile-memory", &"64MiB"]);
    run.exits(125).says("compile_limit").says("64 MiB of memory").says("--compile-memory");
    // An ordinary guest needs no more.
    let echo = fixture("wat/empty_result.wat");
    let run = sandglass(&[&"run", &echo, &"--compile-memory", &"64MiB", &"--report", &"json"]);
    let report: Value = serde_json::from_str(&run.out).expect("a report");
    assert_ne!(report["outcome"], "rejected", "{report}");
}

#[test]
fn a_guest_is_compiled_once_for_all_commands_that_keep_compiled_code() {
    let folder = Folder::new();
    let guest = folder.write(
        "guest.wat",
        std::fs::read(fixture("wat/finds_its_data_untouched.wat")).expect("there"),
    );
    let (kept, empty) = (folder.path("kept"), folder.path("empty"));
    sandglass(&[&"run", &guest, &"--compiled-cache", &kept]).exits(0);
    // Not even the process that would compile it starts within this time.
    let hurried: [&dyn AsRef<OsStr>; 2] = [&"--compile-timeout", &"1ms"];
    let with = |command: &str, cache| {
        let [flag, time] = hurried;
        sandglass(&[&command, &guest, &"--compiled-cache", cache, flag, time])
    };
    with("run", &kept).exits(0);
    with("inspect", &kept).exits(0);
    with("check", &kept).exits(0);
    with("run", &empty).exits(125).says("compile_limit");
}

#[test]
fn a_large_guest_runs_before_it_is_optimized_unless_it_is_recorded_or_the_user_waits() {
    let folder = Folder::new();
    // A custom section is part of its size, and takes no time to compile.
    let small = fixture("wat/finds_its_data_untouched.wat");
    let mut guest = wat::parse_file(&small).expect("a module");
    guest.extend(section(0, [&b"\x01x"[..], &vec![0; 2 << 20]].concat()));
    let large = folder.write("large.wasm", guest);
    let journal = folder.path("runs.db");
    let baseline = "the module's code is that of the baseline compiler";
    let run = |guest: &Path, cache: &str, more: &[&dyn AsRef<OsStr>]| {
        let cache = folder.path(cache);
        let mut all: Vec<&dyn AsRef<OsStr>> = vec![&"run", &guest, &"--compiled-cache", &cache];
        all.extend(more);
        with_variable("SANDGLASS_LOG", "info", &all).exits(0)
    };
    run(&large, "first", &[]).says(baseline);
    for (guest, cache, more) in [
        (&large, "second", vec![&"--optimize" as &dyn AsRef<OsStr>]),
        (&large, "third", vec![&"--journal", &journal]),
        (&small, "fourth", vec![]),
        // Optimized code is preferred if it is kept.
        (&large, "second", vec![]),
    ] {
        let said = run(guest, cache, &more);
        assert!(!said.err.contains(baseline), "{cache}: {}", said.err);
    }
}

#[test]
fn invalid_compile_limits_are_refused() {
    for (flag, value) in [("--compile-timeout", "0s"), ("--compile-memory", "1MiB")] {
        sandglass(&[&"check", &"x.wasm", &flag, &value]).exits(2).says(flag);
    }
}

#[test]
fn a_daemon_serves_while_a_module_compiles_for_too_long() {
    let folder = Folder::new();
    folder.write("waiter.ioa.toml", WAITER);
    folder.write("waits.wat", std::fs::read(fixture("wat/empty_result.wat")).expect("there"));
    let config = folder.write("sandglass.toml", "[compile]\ntimeout = \"4s\"\n");
    let specs = folder.path(".");
    let mut up = Running::with_stderr(
        Stdio::null(),
        &[&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0", &"--config", &config],
    );
    let address = up.address();
    let ask = |request: &str| answer_of(&address, request, "", b"");
    let slow = large(9000);
    let mut handled = 0;
    let (status, refused) = std::thread::scope(|scope| {
        let wasm = "content-type: application/wasm\r\n";
        let put = scope.spawn(|| answer_of(&address, "PUT /v1/modules/waits", wasm, &slow));
        while !put.is_finished() {
            assert_eq!(ask("GET /healthz").0, 200);
            assert_eq!(ask(&format!("POST /v1/entities/Waiter/{handled}")).0, 201);
            let waits = format!("/v1/entities/Waiter/{handled}/actions/Wait");
            let (status, waited) = ask(&format!("POST {waits}?wait=settled&timeout=60s"));
            assert_eq!(status, 200, "{waited}");
            handled += 1;
        }
        put.join().expect("no panic")
    });
    assert_eq!(status, 422, "{refused}");
    assert!(refused.contains("\"compile_limit\"") && refused.contains("4s"), "{refused}");
    assert!(handled >= 3, "{handled} handlers ended meanwhile");
    up.signal("TERM");
    assert_eq!(up.ended().code(), Some(0));
}

#[test]
fn a_daemon_that_ends_also_ends_its_compiler() {
    let folder = Folder::new();
    folder.write("waiter.ioa.toml", WAITER);
    folder.write("waits.wat", std::fs::read(fixture("wat/empty_result.wat")).expect("there"));
    let specs = folder.path(".");
    let mut up = Running::with_stderr(
        Stdio::null(),
        &[&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0"],
    );
    let address = up.address();
    let slow = large(9000);
    let daemon = up.id().to_string();
    let compilers = || {
        let processes = std::fs::read_dir("/proc").expect("Linux").flatten();
        let stat =
            |process: std::fs::DirEntry| std::fs::read_to_string(process.path().join("stat")).ok();
        // pid (name) state parent
        let children = processes.filter_map(stat).filter_map(|stat| {
            let (pid, rest) = stat.split_once(' ')?;
            let parent = rest.rsplit_once(')')?.1.split_whitespace().nth(1)?.to_owned();
            (parent == daemon).then(|| pid.to_owned())
        });
        children.collect::<Vec<_>>()
    };
    std::thread::scope(|scope| {
        let wasm = "content-type: application/wasm\r\n";
        let put = scope.spawn(|| answer_of(&address, "PUT /v1/modules/waits", wasm, &slow));
        // Each look starts a process, as `until` wants it.
        let look = || sandglass(&[&"--version"]).exits(0);
        binary::until(|| {
            let _ = look();
            !compilers().is_empty()
        });
        let running = compilers();
        // As a crash ends it.
        up.signal("KILL");
        assert_eq!(up.ended().code(), None);
        let is_gone = |pid: &String| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Whoever adopts it may not have reaped it yet.
            stat.is_empty() || stat.contains(") Z")
        };
        binary::until(|| {
            let _ = look();
            running.iter().all(is_gone)
        });
        let _ = put.join();
    });
}
