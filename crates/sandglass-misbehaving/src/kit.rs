//! The members of the kit, and what a host must do to each.

use std::borrow::Cow;
use std::time::Duration;

use sandglass_host::AskTarget;
use sandglass_model::OutcomeKind;

use crate::member::{Ending, Handler, Member, Must, PEER_URL, Peer};
use crate::symbols;

/// Includes a sample guest in text.
macro_rules! wat {
    ($name:literal) => {
        &include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../guest-fixtures/wat/",
            $name,
            ".wat"
        ))[..]
    };
}

/// Includes a sample guest that was compiled from Rust.
macro_rules! built {
    ($name:literal) => {
        &include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../guest-fixtures/built/",
            $name,
            ".wasm"
        ))[..]
    };
}

mod tasks;

/// Dying spans, as reports name them.
const GUEST: &str = "guest";
const INSTANTIATE: &str = "instantiate";
const HTTP: &str = "host_http_call";
const MILLIS: &str = "host_get_time_millis";
const REMAINING: &str = "host_deadline_remaining_ms";
const POLL: &str = "wasi_snapshot_preview1.poll_oneoff";
const TIME: &str = "wasi_snapshot_preview1.clock_time_get";
const EXIT: &str = "wasi_snapshot_preview1.proc_exit";
const SUBSCRIBE: &str = "wasi:clocks/monotonic-clock.subscribe-duration";
const BLOCK: &str = "wasi:io/poll.[method]pollable.block";

/// The dying span of a component that sets the method of a request.
const SET_METHOD: &str = "wasi:http/types.[method]outgoing-request.set-method";

/// The deepest nesting of asks: a handler at this depth is refused another ask.
const ASK_DEPTH_MAX: usize = 8;

/// Budget of the first asking handler: nine handlers begin within it, one after the other.
const NESTED: Duration = Duration::from_secs(2);

/// Handlers of each of the crowd's four kinds. Together they are more than a machine has cores, and
/// fewer than any host has slots.
const CROWD_OF_EACH: usize = 6;

/// Every member that needs no host functions of the embedder. Each uses a technique that has
/// stopped some runtime, or could stop one.
#[must_use]
pub fn kit() -> Vec<Member> {
    [
        spins(),
        symbols(),
        sleeps(),
        polls(),
        outside(),
        floods(),
        memory(),
        results(),
        late_results(),
        stubborn(),
        asks(),
        crowds(),
        tasks::members(),
    ]
    .concat()
}

fn killed<const N: usize>(
    module: impl Into<Cow<'static, [u8]>>,
    spans: [&'static str; N],
) -> Handler {
    ends(module, Ending::timed_out_in(spans))
}

fn ends(module: impl Into<Cow<'static, [u8]>>, ending: Ending) -> Handler {
    Handler::of(module, ending.into())
}

/// The sample component, which does what its configuration selects.
fn component(does: &str, ending: Ending) -> Handler {
    ends(built!("component"), ending).config("does", does)
}

fn member(name: &'static str, does: &'static str, handler: Handler) -> Member {
    Member::new(name, does, [handler])
}

fn spins() -> Vec<Member> {
    vec![
        member("spin", "loops forever in its own code", killed(wat!("spins"), [GUEST])),
        member(
            "spin in `start`",
            "loops forever in its start function",
            killed(wat!("spins_in_start"), [INSTANTIATE]),
        ),
        member(
            "spin in a component's `start`",
            "is a component that loops forever while it is instantiated",
            killed(wat!("component_spins_in_start"), [INSTANTIATE]),
        ),
        member(
            "tail-call spin",
            "calls itself in tail position forever, without a loop and without a growing stack",
            killed(wat!("spins_by_tail_calls"), [GUEST]),
        ),
        member(
            "recursion",
            "calls itself without end",
            ends(wat!("recurses"), Ending::trapped("stack_overflow").in_one_of([GUEST])),
        ),
        member(
            "recursion through host calls",
            "calls itself without end, with a host call at each depth",
            ends(
                wat!("recurses_through_host_calls"),
                Ending::trapped("stack_overflow").in_one_of([GUEST, MILLIS]),
            ),
        ),
        member(
            "recursion that stays shallow",
            "computes the 90th Fibonacci number by plain recursion: calls and returns, without a loop",
            killed(wat!("spins_by_recursion"), [GUEST]),
        ),
    ]
}

/// The author of a guest chooses the debug information that a host reads to describe its stack.
fn symbols() -> Vec<Member> {
    let spins = |module| killed(module, [GUEST]);
    vec![
        member(
            "debug information, inlined without end",
            "loops forever, with functions that are inlined into one another 9,000 times",
            spins(symbols::nested_inlining()),
        ),
        member(
            "debug information, one line program for all",
            "loops forever, with 4,000 units that share one long line program",
            spins(symbols::shared_line_program()),
        ),
        member(
            "debug information, overlapping abbreviations",
            "loops forever, with 4,000 units whose tables of abbreviations overlap",
            spins(symbols::overlapping_abbreviations()),
        ),
        member(
            "name of megabytes",
            "loops forever, in a function whose name has 9 MiB",
            spins(symbols::long_name()),
        ),
    ]
}

fn sleeps() -> Vec<Member> {
    vec![
        member(
            "sleep by the monotonic clock",
            "sleeps for an hour in a WASI poll, and then again",
            killed(wat!("sleeps_in_wasi_poll"), [POLL]),
        ),
        member(
            "sleep by the real-time clock",
            "sleeps for an hour by WASI's real-time clock, and then again",
            killed(wat!("sleeps_by_the_real_time_clock"), [POLL]),
        ),
        member(
            "sleep until a time of day",
            "sleeps until WASI's real-time clock says that it is the year 2200",
            killed(wat!("sleeps_until_a_real_time"), [POLL]),
        ),
        member(
            "sleep by the CPU's clocks",
            "polls for an hour of CPU time, which no poll waits for, again and again",
            killed(wat!("sleeps_by_the_clocks_of_the_cpu"), [GUEST, POLL]),
        ),
        member(
            "sleep in `start`",
            "sleeps for an hour in its start function",
            killed(wat!("sleeps_in_start"), [POLL]),
        ),
        member(
            "sleep by wasi:clocks, for a time",
            "is a component that sleeps for an hour by its standard library",
            component("sleep", Ending::timed_out_in(["wasi:io/poll.poll", BLOCK])),
        ),
        member(
            "sleep by wasi:clocks, until an instant",
            "is a component that waits for an instant of the monotonic clock that never comes",
            killed(wat!("component_sleeps_until_an_instant"), [BLOCK]),
        ),
    ]
}

fn polls() -> Vec<Member> {
    vec![
        member(
            "poll forever",
            "polls for the longest time that 64 bits of nanoseconds can express",
            killed(wat!("sleeps_until_the_end_of_time"), [POLL]),
        ),
        member(
            "poll for nothing",
            "polls for no event at all, again and again",
            killed(wat!("polls_nothing"), [GUEST, POLL]),
        ),
        member(
            "reading the clock in a loop",
            "reads WASI's clocks and the host's until an hour has passed by them",
            killed(wat!("reads_the_clock_in_a_loop"), [GUEST, MILLIS, TIME]),
        ),
        member(
            "reading wasi:clocks in a loop",
            "is a component that reads both clocks of wasi:clocks, again and again",
            killed(
                wat!("component_reads_the_clocks_in_a_loop"),
                [GUEST, "wasi:clocks/monotonic-clock.now", "wasi:clocks/wall-clock.now"],
            ),
        ),
        member(
            "drip progress",
            "reports progress every 20 ms, forever",
            killed(wat!("drips_progress"), [POLL, "host_emit_progress", GUEST]),
        ),
    ]
}

fn outside() -> Vec<Member> {
    let piece = "sandglass:integration/http.[method]incoming-response.read";
    let read = "wasi:io/streams.[method]input-stream.blocking-read";
    vec![
        member(
            "slow-drip HTTP body",
            "calls a server that sends its body one byte at a time",
            killed(built!("slow_http"), [HTTP]).config("url", PEER_URL),
        )
        .with(Peer::Drips),
        // A component that reads in a loop is in its own code between two reads.
        member(
            "slow-drip HTTP body, in pieces",
            "is a component that reads such a body piece by piece",
            component("download", Ending::timed_out_in([piece, GUEST])).config("url", PEER_URL),
        )
        .with(Peer::Drips),
        member(
            "slow-drip HTTP body, by wasi:http",
            "is a component that reads such a body by wasi:http",
            component("wasi_get", Ending::timed_out_in([read, GUEST])).config("url", PEER_URL),
        )
        .with(Peer::Drips),
        member(
            "server that never answers",
            "calls a server that accepts the request and sends nothing",
            killed(built!("slow_http"), [HTTP]).config("url", PEER_URL),
        )
        .with(Peer::Silent),
        member(
            "connect to nowhere",
            "calls an address that neither accepts nor refuses connections, again and again",
            killed(wat!("calls_again_and_again"), [HTTP]).field("url", PEER_URL),
        )
        .with(Peer::Nowhere),
    ]
}

fn floods() -> Vec<Member> {
    let storm = [
        GUEST,
        MILLIS,
        "host_get_time",
        "host_get_context",
        "host_read_field",
        "host_get_secret",
        "host_last_error",
        "host_set_status",
        "host_emit_progress",
        "host_deadline_remaining_ms",
        "host_should_stop",
        "wasi_snapshot_preview1.random_get",
        "wasi_snapshot_preview1.sched_yield",
    ];
    vec![
        member(
            "storm of host calls",
            "calls a dozen host functions in turn, as fast as it can, forever",
            killed(wat!("storms_the_host"), storm),
        ),
        member(
            "log flood",
            "logs the same line forever",
            killed(wat!("logs_without_end"), [GUEST, "host_log"]),
        ),
        member(
            "span flood",
            "starts spans inside one another, with an event each, and ends none, forever",
            killed(
                wat!("starts_spans_without_end"),
                [GUEST, "host_start_span", "host_add_span_event"],
            ),
        ),
        member(
            "flood of randomness",
            "requests megabytes of randomness at once, again and again",
            killed(wat!("asks_for_much_randomness"), [GUEST, "wasi_snapshot_preview1.random_get"]),
        ),
    ]
}

fn memory() -> Vec<Member> {
    vec![
        member(
            "bulk memory fill",
            "fills 16 MiB with one instruction, again and again",
            killed(wat!("fills_memory"), [GUEST]),
        ),
        member(
            "growth",
            "grows its memory by 1 MiB at a time until that is refused, and gives up",
            ends(wat!("grows_memory"), Ending::limit("wasm-memory").in_one_of([GUEST]))
                .memory_bytes(8 << 20),
        ),
        member(
            "growth at once",
            "asks for 4 GiB in one step, is refused, and gives up",
            ends(wat!("grows_memory_at_once"), Ending::limit("wasm-memory").in_one_of([GUEST])),
        ),
        member(
            "growth by exceptions",
            "throws and catches exceptions forever, with too little memory for their heap",
            ends(wat!("throws_until_refused"), Ending::limit("wasm-memory").in_one_of([GUEST]))
                .memory_bytes(128 << 10)
                .budget_of(LONG),
        ),
        member(
            "table growth",
            "grows a table until that is refused, and gives up",
            ends(wat!("grows_table"), Ending::limit("wasm-table").in_one_of([GUEST])),
        ),
        member(
            "leak of resources",
            "is a component that creates pollables until one is refused",
            component("leak_resources", Ending::trapped("bad_host_call").in_one_of([SUBSCRIBE]))
                .budget_of(LONG),
        ),
        member(
            "hoard of requests",
            "is a component that makes requests with methods of a megabyte, and neither sends nor \
             drops them",
            ends(
                wat!("component_hoards_requests"),
                Ending::limit("host-memory").in_one_of([SET_METHOD]),
            )
            .budget_of(LONG),
        ),
        member(
            "hoard of streamed requests",
            "is a component that starts requests with large headers until one is refused, and \
             neither writes nor drops them",
            ends(
                wat!("component_hoards_streamed_requests"),
                Ending::trapped("unreachable").in_one_of([GUEST]),
            )
            .budget_of(LONG),
        ),
    ]
}

/// Budget of handlers that end by themselves, but only after work that takes a while on a loaded
/// machine.
const LONG: Duration = Duration::from_secs(60);

fn results() -> Vec<Member> {
    vec![
        member(
            "huge result",
            "sets a result of 1 MiB and a byte",
            ends(wat!("result_too_large"), Ending::failed("result_too_large")),
        ),
        member(
            "result of a huge length",
            "sets a result of 2 GiB in a memory of one page",
            ends(wat!("result_of_a_huge_length"), Ending::failed("result_out_of_bounds")),
        ),
        member(
            "bottomless JSON",
            "sets a result of 60,000 opening brackets",
            ends(wat!("bottomless_json"), Ending::failed("invalid_json")),
        ),
        member(
            "bad pointers",
            "calls host functions with a length of 2 GiB, and completes if each refuses",
            ends(wat!("names_huge_lengths"), Ending::completed()),
        ),
        member(
            "bad pointers to WASI",
            "passes WASI a pointer outside its memory",
            ends(
                wat!("gives_wasi_a_wild_pointer"),
                Ending::trapped("bad_host_call").in_one_of([TIME]),
            ),
        ),
        member(
            "bad pointer as a result",
            "sets a result far outside its memory, where pointer and length together pass 32 bits",
            ends(wat!("result_with_a_wild_pointer"), Ending::failed("result_out_of_bounds")),
        ),
        member(
            "bad pointer as a component's result",
            "is a component whose result lies outside its memory",
            ends(
                wat!("component_answers_out_of_bounds"),
                Ending::trapped("bad_host_call").in_one_of([GUEST]),
            ),
        ),
        member(
            "bad UTF-8",
            "sets a result whose string contains the byte ff",
            ends(wat!("invalid_utf8"), Ending::failed("invalid_utf8")),
        ),
        member(
            "bad UTF-8 to host functions",
            "sets a status that is not UTF-8, and completes if that is refused",
            ends(wat!("tells_progress_that_is_no_json"), Ending::completed()),
        ),
    ]
}

fn late_results() -> Vec<Member> {
    vec![
        member(
            "late success",
            "sets its result, fills its memory past its deadline by one instruction, and returns",
            killed(wat!("returns_late_without_a_check"), [GUEST, REMAINING])
                .memory_bytes(128 << 20)
                .budget_of(Duration::from_millis(500)),
        ),
        member(
            "late success, by the clock",
            "reads the clock until long after its deadline, and then returns success",
            killed(wat!("returns_late"), [GUEST, MILLIS]),
        ),
        member(
            "success, and then a spin",
            "sets its result, and then never returns",
            killed(wat!("answers_and_spins"), [GUEST]),
        ),
    ]
}

fn stubborn() -> Vec<Member> {
    vec![
        member(
            "ignoring errors",
            "calls a host that it may not reach, ignores the error, and calls again",
            killed(wat!("ignores_errors_and_calls_on"), [GUEST, HTTP]),
        ),
        member(
            "catching exceptions around host calls",
            "catches every exception around its host calls, and continues to call",
            killed(wat!("catches_everything"), [GUEST, MILLIS]),
        ),
        member(
            "catching exceptions around a poll",
            "sleeps for an hour inside a catch-all, and then again",
            killed(wat!("catches_everything_in_a_poll"), [POLL]),
        ),
        member(
            "exit",
            "ends itself by proc_exit(0)",
            ends(wat!("exits"), Ending::trapped("exit").in_one_of([EXIT])),
        ),
    ]
}

fn asks() -> Vec<Member> {
    let asks = |module, target: &str, must: Must| {
        let ask = format!(r#"{{"entity":"{target}/1","action":"Begin","until":"settled"}}"#);
        let targets: AskTarget = format!("{target}.Begin").parse().expect("a name of our own");
        Handler::of(module, must).field("ask", ask).asks(targets)
    };
    let level = |number: usize| {
        let here = if number == ASK_DEPTH_MAX {
            Ending::timed_out_in([GUEST.to_owned(), "host_ask".to_owned(), ask_of(number + 1)])
        } else {
            Ending::timed_out_in([ask_of(number + 1)])
        };
        let mut endings = vec![here];
        if number > 0 {
            // The asking handler may be gone a moment before this one ends.
            endings.push(Ending::cancelled());
        }
        let next = format!("Nested{}", number + 1);
        asks(wat!("asks_again_and_again"), &next, Must::End(endings))
            .entity(format!("Nested{number}"))
            .budget_of(NESTED)
    };
    let mut nested = vec![level(0)];
    nested.extend((1..=ASK_DEPTH_MAX).map(|number| level(number).when_asked()));
    let beyond = Handler::of(wat!("spins"), Must::NeverBegin)
        .entity(format!("Nested{}", ASK_DEPTH_MAX + 1))
        .when_asked();
    nested.push(beyond);
    vec![
        Member::new(
            "nested asks",
            "asks an entity that asks another, and so on, each until the other has settled; \
             the ninth ask is refused, and is repeated forever",
            nested,
        ),
        member(
            "self-ask",
            "asks its own entity and waits until it has settled, which cannot happen before the \
             answer; it fails with the reason",
            asks(
                wat!("asks_and_fails_with_the_reason"),
                "Misbehaving",
                Ending::failed("guest_failure").saying("ask_cycle").into(),
            ),
        ),
    ]
}

/// The dying span of an ask to the entity at this depth.
fn ask_of(level: usize) -> String {
    format!("ask:Nested{level}.Begin")
}

fn crowds() -> Vec<Member> {
    let kinds: [(&str, &'static [u8], Ending); 4] = [
        ("Spins", wat!("spins"), Ending::timed_out_in([GUEST])),
        ("Sleeps", wat!("sleeps_in_wasi_poll"), Ending::timed_out_in([POLL])),
        ("Grows", wat!("grows_memory"), Ending::limit("wasm-memory").in_one_of([GUEST])),
        ("Works", wat!("pointer_result"), Ending::completed()),
    ];
    let handlers = (1..=CROWD_OF_EACH).flat_map(|number| {
        kinds.clone().map(|(kind, module, ending)| {
            // The comment makes the bytes, and so the module, distinct.
            let module = [module, format!("\n;; {number}").as_bytes()].concat();
            let is_killed = ending.outcome == OutcomeKind::TimedOut;
            let handler = Handler::of(module, ending.into()).entity(format!("{kind}{number}"));
            if is_killed { handler } else { handler.budget_of(LONG) }
        })
    });
    vec![Member::new(
        "many modules at once",
        "is 24 handlers of as many modules, which begin together: of every four, one spins, one \
         sleeps, one grows, and one works",
        handlers.collect::<Vec<_>>(),
    )]
}
