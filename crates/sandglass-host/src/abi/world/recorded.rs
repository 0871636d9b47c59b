//! How recordings store the arguments and results of `sandglass:integration`.

use super::TypedFailure;
use super::interface::{ask, http, log, metrics, scratch, signal};
use crate::abi::passed::{records, variants};

records! {
    TypedFailure { category, code, retryability, outcome, details, diagnostic } of 6;
    ask::Request { entity_type, entity_id, action, params, until } of 5;
    ask::Answer { sequence, state, fields } of 3;
    ask::Error { kind, message, retry_after_ms } of 3;
    http::Request { head, body } of 2;
    http::RequestHead { method, url, headers } of 3;
    http::Response { status, headers, body } of 3;
    signal::Notice { entity_type, entity_id, name, payload } of 4;
    signal::Error { kind, message } of 2;
}

variants! {
    ask::ErrorKind {
        0: NotAllowed; 1: UnknownTarget; 2: Cycle; 3: TooDeep; 4: Refused; 5: Busy; 6: TimedOut;
        7: CutShort; 8: Unavailable; 9: InvalidRequest;
    }
    ask::Until {
        0: Transition; 1: Settled;
    }
    http::Error {
        0: InvalidRequest(why); 1: NotAllowed(host); 2: TimedOut(after_ms); 3: CutShort(why);
        4: TooLarge(bytes); 5: TooManyRedirects; 6: Transport(why);
    }
    log::Level {
        0: Trace; 1: Debug; 2: Info; 3: Warn; 4: Error;
    }
    metrics::Kind {
        0: Counter; 1: Gauge; 2: Histogram;
    }
    signal::ErrorKind {
        0: NotAllowed; 1: UnknownTarget; 2: Refused; 3: TimedOut; 4: CutShort; 5: Unavailable;
        6: InvalidRequest;
    }
    scratch::Error {
        0: Denied; 1: Full(bytes); 2: InvalidKey(why);
    }
}
