//! How recordings store the arguments and results of WASI's functions. Types of files and sockets are
//! left out, because there are no files, and sockets are refused.

use wasmtime_wasi::p2::bindings::{clocks, filesystem, io, sockets};
use wasmtime_wasi::p3::bindings as current;
use wasmtime_wasi_http::p2::bindings::http::types as http;
use wasmtime_wasi_http::p3::bindings::http::types as v3;

use crate::abi::passed::{never_returned, records, variants};

records! {
    clocks::wall_clock::Datetime { seconds, nanoseconds } of 2;
    current::clocks::system_clock::Instant { seconds, nanoseconds } of 2;
}

// The order of the numbers is that of the WIT files.
variants! {
    io::streams::StreamError {
        0: LastOperationFailed(error); 1: Closed;
    }
    sockets::network::ErrorCode {
        0: Unknown; 1: AccessDenied; 2: NotSupported; 3: InvalidArgument; 4: OutOfMemory;
        5: Timeout; 6: ConcurrencyConflict; 7: NotInProgress; 8: WouldBlock; 9: InvalidState;
        10: NewSocketLimit; 11: AddressNotBindable; 12: AddressInUse; 13: RemoteUnreachable;
        14: ConnectionRefused; 15: ConnectionReset; 16: ConnectionAborted; 17: DatagramTooLarge;
        18: NameUnresolvable; 19: TemporaryResolverFailure; 20: PermanentResolverFailure;
    }
    sockets::network::IpAddressFamily {
        0: Ipv4; 1: Ipv6;
    }
    http::HeaderError {
        0: InvalidSyntax; 1: Forbidden; 2: Immutable;
    }
    v3::HeaderError {
        0: InvalidSyntax; 1: Forbidden; 2: Immutable; 3: SizeExceeded; 4: Other(why);
    }
    v3::RequestOptionsError {
        0: NotSupported; 1: Immutable; 2: Other(why);
    }
}

/// What `wasi:http` has in both versions.
macro_rules! http_of_both {
    ($($http:ident)+) => {$(
        records! {
            $http::DnsErrorPayload { rcode, info_code } of 2;
            $http::TlsAlertReceivedPayload { alert_id, alert_message } of 2;
            $http::FieldSizePayload { field_name, field_size } of 2;
        }
        variants! {
            $http::Method {
                0: Get; 1: Head; 2: Post; 3: Put; 4: Delete; 5: Connect; 6: Options; 7: Trace; 8: Patch;
                9: Other(name);
            }
            $http::Scheme {
                0: Http; 1: Https; 2: Other(name);
            }
            $http::ErrorCode {
                0: DnsTimeout; 1: DnsError(payload); 2: DestinationNotFound; 3: DestinationUnavailable;
                4: DestinationIpProhibited; 5: DestinationIpUnroutable; 6: ConnectionRefused;
                7: ConnectionTerminated; 8: ConnectionTimeout; 9: ConnectionReadTimeout;
                10: ConnectionWriteTimeout; 11: ConnectionLimitReached; 12: TlsProtocolError;
                13: TlsCertificateError; 14: TlsAlertReceived(payload); 15: HttpRequestDenied;
                16: HttpRequestLengthRequired; 17: HttpRequestBodySize(size);
                18: HttpRequestMethodInvalid; 19: HttpRequestUriInvalid; 20: HttpRequestUriTooLong;
                21: HttpRequestHeaderSectionSize(size); 22: HttpRequestHeaderSize(payload);
                23: HttpRequestTrailerSectionSize(size); 24: HttpRequestTrailerSize(payload);
                25: HttpResponseIncomplete; 26: HttpResponseHeaderSectionSize(size);
                27: HttpResponseHeaderSize(payload); 28: HttpResponseBodySize(size);
                29: HttpResponseTrailerSectionSize(size); 30: HttpResponseTrailerSize(payload);
                31: HttpResponseTransferCoding(coding); 32: HttpResponseContentCoding(coding);
                33: HttpResponseTimeout; 34: HttpUpgradeFailed; 35: HttpProtocolError; 36: LoopDetected;
                37: ConfigurationError; 38: InternalError(why);
            }
        }
    )+};
}

http_of_both!(http v3);

never_returned! {
    filesystem::types::Advice,
    filesystem::types::DescriptorFlags,
    filesystem::types::DescriptorStat,
    filesystem::types::DescriptorType,
    filesystem::types::DirectoryEntry,
    filesystem::types::ErrorCode,
    filesystem::types::MetadataHashValue,
    filesystem::types::NewTimestamp,
    filesystem::types::OpenFlags,
    filesystem::types::PathFlags,
    sockets::network::IpAddress,
    sockets::network::IpSocketAddress,
    sockets::tcp::ShutdownType,
    sockets::udp::IncomingDatagram,
    sockets::udp::OutgoingDatagram,
}
