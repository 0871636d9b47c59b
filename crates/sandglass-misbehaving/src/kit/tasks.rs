//! Asynchronous components, with many tasks, calls in flight, streams and futures.

use super::{GUEST, LONG, ends, member};
use crate::member::{Ending, Handler, Member, PEER_URL, Peer};

/// Dying spans.
const SLEEP: &str = "sandglass:integration/timer.sleep";
const SEND: &str = "sandglass:integration/http.send";

/// The sample guest with tasks, which does what its configuration selects.
fn tasks(does: &str, ending: Ending) -> Handler {
    ends(built!("tasks"), ending).config("does", does)
}

fn in_guest() -> Ending {
    Ending::timed_out_in([GUEST])
}

/// All of them wait for each other, which the host notices.
fn deadlock() -> Ending {
    Ending::trapped("other").in_one_of([GUEST]).saying("deadlock")
}

pub(super) fn members() -> Vec<Member> {
    vec![
        member(
            "subtask without end",
            "is an asynchronous component whose call never completes",
            tasks("wait_forever", Ending::timed_out_in([SLEEP])),
        ),
        member(
            "a thousand subtasks without end",
            "waits in a thousand tasks",
            tasks("wait_forever", Ending::timed_out_in([SLEEP])).config("count", "1000"),
        ),
        member(
            "ten thousand subtasks",
            "waits in ten thousand tasks, for which the host may not hold so much",
            tasks("wait_forever", Ending::limit("host-memory").in_one_of([SLEEP, GUEST]))
                .config("count", "10000")
                .budget_of(LONG),
        ),
        member("yields without end", "yields in a loop", tasks("yield_forever", in_guest())),
        member(
            "yields beside a subtask",
            "yields in a loop while another task waits",
            tasks("yield_beside_a_wait", in_guest()),
        ),
        member(
            "spin beside a subtask",
            "loops forever while another task waits",
            tasks("spin_beside_a_wait", in_guest()),
        ),
        member(
            "unread stream",
            "writes to a stream that nothing reads",
            tasks("unread_streams", deadlock()),
        ),
        member(
            "ten thousand unread streams",
            "writes to ten thousand streams that nothing reads",
            tasks("unread_streams", deadlock()).config("count", "10000").budget_of(LONG),
        ),
        member(
            "unwritten future",
            "waits for a future that nothing writes",
            tasks("unwritten_futures", deadlock()),
        ),
        member(
            "ten thousand unwritten futures",
            "waits for ten thousand futures that nothing writes",
            tasks("unwritten_futures", deadlock()).config("count", "10000").budget_of(LONG),
        ),
        member(
            "dropped futures",
            "makes ten thousand futures, and drops both ends of each",
            tasks("dropped_futures", Ending::completed()).config("count", "10000").budget_of(LONG),
        ),
        member(
            "streams without end",
            "makes streams until the host may hold no more",
            tasks("streams_without_end", Ending::limit("host-memory").in_one_of([GUEST]))
                .budget_of(LONG),
        ),
        member(
            "requests of WASI 0.3",
            "sends sixteen requests by WASI 0.3, the most that it may, to a server that never responds",
            tasks("wasi_get", Ending::timed_out_in(["wasi:http/client.send"]))
                .config("count", "16")
                .config("url", PEER_URL),
        )
        .with(Peer::Silent),
        member(
            "upload against backpressure",
            "writes a body without end to a server that never responds",
            tasks("upload", Ending::timed_out_in([SEND]))
                .config("count", "1000000000")
                .config("piece", "65536")
                .config("url", PEER_URL),
        )
        .with(Peer::Unread),
    ]
}
