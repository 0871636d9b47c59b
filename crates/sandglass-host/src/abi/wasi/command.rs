//! The command world of WASI 0.2. Each function passes the boundary under its WIT name; Wasmtime
//! implements it. Clocks, randomness, polling, standard streams and the environment work; there are no
//! files, and sockets are refused.

use wasmtime::Result;
use wasmtime::component::Resource;
use wasmtime_wasi::cli::WasiCliView;
use wasmtime_wasi::clocks::WasiClocksView;
use wasmtime_wasi::filesystem::WasiFilesystemView;
use wasmtime_wasi::p2::bindings::{cli, clocks, filesystem, io, random, sockets};
use wasmtime_wasi::p2::{FsError, FsResult, SocketError, SocketResult, StreamResult};
use wasmtime_wasi::random::WasiRandomView;
use wasmtime_wasi::sockets::WasiSocketsView;

use super::delegate;
use crate::store::RunStore;

/// Wasmtime's error of a stream, as opposed to the one that guests get.
type StreamFailure = wasmtime_wasi::p2::StreamError;

delegate! { IMPORTS from 0;
    "wasi:cli/environment" in cli::environment by cli {
        Host {
            instant "get-environment" fn get_environment() -> Result<Vec<(String, String)>>;
            instant "get-arguments" fn get_arguments() -> Result<Vec<String>>;
            instant "initial-cwd" fn initial_cwd() -> Result<Option<String>>;
        }
    }
    "wasi:cli/exit" in cli::exit by cli {
        Host {
            instant "exit" fn exit(status: Result<(), ()>) -> Result<()>;
            instant "exit-with-code" fn exit_with_code(status_code: u8) -> Result<()>;
        }
    }
    "wasi:cli/stdin" in cli::stdin by cli {
        Host { instant "get-stdin" fn get_stdin() -> Result<Resource<InputStream>>; }
    }
    "wasi:cli/stdout" in cli::stdout by cli {
        Host { instant "get-stdout" fn get_stdout() -> Result<Resource<OutputStream>>; }
    }
    "wasi:cli/stderr" in cli::stderr by cli {
        Host { instant "get-stderr" fn get_stderr() -> Result<Resource<OutputStream>>; }
    }
    "wasi:cli/terminal-input" in cli::terminal_input by cli {
        HostTerminalInput {
            instant "[resource-drop]terminal-input" fn drop(this: Resource<TerminalInput>) -> Result<()>;
        }
        Host {}
    }
    "wasi:cli/terminal-output" in cli::terminal_output by cli {
        HostTerminalOutput {
            instant "[resource-drop]terminal-output" fn drop(this: Resource<TerminalOutput>) -> Result<()>;
        }
        Host {}
    }
    "wasi:cli/terminal-stdin" in cli::terminal_stdin by cli {
        Host { instant "get-terminal-stdin" fn get_terminal_stdin() -> Result<Option<Resource<TerminalInput>>>; }
    }
    "wasi:cli/terminal-stdout" in cli::terminal_stdout by cli {
        Host { instant "get-terminal-stdout" fn get_terminal_stdout() -> Result<Option<Resource<TerminalOutput>>>; }
    }
    "wasi:cli/terminal-stderr" in cli::terminal_stderr by cli {
        Host { instant "get-terminal-stderr" fn get_terminal_stderr() -> Result<Option<Resource<TerminalOutput>>>; }
    }
    "wasi:clocks/monotonic-clock" in clocks::monotonic_clock by clocks {
        Host {
            instant "now" fn now() -> Result<Instant>;
            instant "resolution" fn resolution() -> Result<Duration>;
            instant "subscribe-instant" fn subscribe_instant(when: Instant) -> Result<Resource<Pollable>>;
            instant "subscribe-duration" fn subscribe_duration(when: Duration) -> Result<Resource<Pollable>>;
        }
    }
    "wasi:clocks/wall-clock" in clocks::wall_clock by clocks {
        Host {
            instant "now" fn now() -> Result<Datetime>;
            instant "resolution" fn resolution() -> Result<Datetime>;
        }
    }
    "wasi:filesystem/types" in filesystem::types by filesystem {
        HostDescriptor {
            instant "[method]descriptor.read-via-stream" fn read_via_stream(this: Resource<Descriptor>, offset: Filesize) -> FsResult<Resource<InputStream>>;
            instant "[method]descriptor.write-via-stream" fn write_via_stream(this: Resource<Descriptor>, offset: Filesize) -> FsResult<Resource<OutputStream>>;
            instant "[method]descriptor.append-via-stream" fn append_via_stream(this: Resource<Descriptor>) -> FsResult<Resource<OutputStream>>;
            polled "[method]descriptor.advise" fn advise(this: Resource<Descriptor>, offset: Filesize, length: Filesize, advice: Advice) -> FsResult<()>;
            polled "[method]descriptor.sync-data" fn sync_data(this: Resource<Descriptor>) -> FsResult<()>;
            polled "[method]descriptor.get-flags" fn get_flags(this: Resource<Descriptor>) -> FsResult<DescriptorFlags>;
            polled "[method]descriptor.get-type" fn get_type(this: Resource<Descriptor>) -> FsResult<DescriptorType>;
            polled "[method]descriptor.set-size" fn set_size(this: Resource<Descriptor>, size: Filesize) -> FsResult<()>;
            polled "[method]descriptor.set-times" fn set_times(this: Resource<Descriptor>, data_access_timestamp: NewTimestamp, data_modification_timestamp: NewTimestamp) -> FsResult<()>;
            polled "[method]descriptor.read" fn read(this: Resource<Descriptor>, length: Filesize, offset: Filesize) -> FsResult<(Vec<u8>, bool)>;
            polled "[method]descriptor.write" fn write(this: Resource<Descriptor>, buffer: Vec<u8>, offset: Filesize) -> FsResult<Filesize>;
            polled "[method]descriptor.read-directory" fn read_directory(this: Resource<Descriptor>) -> FsResult<Resource<DirectoryEntryStream>>;
            polled "[method]descriptor.sync" fn sync(this: Resource<Descriptor>) -> FsResult<()>;
            polled "[method]descriptor.create-directory-at" fn create_directory_at(this: Resource<Descriptor>, path: String) -> FsResult<()>;
            polled "[method]descriptor.stat" fn stat(this: Resource<Descriptor>) -> FsResult<DescriptorStat>;
            polled "[method]descriptor.stat-at" fn stat_at(this: Resource<Descriptor>, path_flags: PathFlags, path: String) -> FsResult<DescriptorStat>;
            polled "[method]descriptor.set-times-at" fn set_times_at(this: Resource<Descriptor>, path_flags: PathFlags, path: String, data_access_timestamp: NewTimestamp, data_modification_timestamp: NewTimestamp) -> FsResult<()>;
            polled "[method]descriptor.link-at" fn link_at(this: Resource<Descriptor>, old_path_flags: PathFlags, old_path: String, new_descriptor: Resource<Descriptor>, new_path: String) -> FsResult<()>;
            polled "[method]descriptor.open-at" fn open_at(this: Resource<Descriptor>, path_flags: PathFlags, path: String, open_flags: OpenFlags, flags: DescriptorFlags) -> FsResult<Resource<Descriptor>>;
            polled "[method]descriptor.readlink-at" fn readlink_at(this: Resource<Descriptor>, path: String) -> FsResult<String>;
            polled "[method]descriptor.remove-directory-at" fn remove_directory_at(this: Resource<Descriptor>, path: String) -> FsResult<()>;
            polled "[method]descriptor.rename-at" fn rename_at(this: Resource<Descriptor>, old_path: String, new_descriptor: Resource<Descriptor>, new_path: String) -> FsResult<()>;
            polled "[method]descriptor.symlink-at" fn symlink_at(this: Resource<Descriptor>, old_path: String, new_path: String) -> FsResult<()>;
            polled "[method]descriptor.unlink-file-at" fn unlink_file_at(this: Resource<Descriptor>, path: String) -> FsResult<()>;
            polled "[method]descriptor.is-same-object" fn is_same_object(this: Resource<Descriptor>, other: Resource<Descriptor>) -> Result<bool>;
            polled "[method]descriptor.metadata-hash" fn metadata_hash(this: Resource<Descriptor>) -> FsResult<MetadataHashValue>;
            polled "[method]descriptor.metadata-hash-at" fn metadata_hash_at(this: Resource<Descriptor>, path_flags: PathFlags, path: String) -> FsResult<MetadataHashValue>;
            instant "[resource-drop]descriptor" fn drop(this: Resource<Descriptor>) -> Result<()>;
        }
        HostDirectoryEntryStream {
            polled "[method]directory-entry-stream.read-directory-entry" fn read_directory_entry(this: Resource<DirectoryEntryStream>) -> FsResult<Option<DirectoryEntry>>;
            instant "[resource-drop]directory-entry-stream" fn drop(this: Resource<DirectoryEntryStream>) -> Result<()>;
        }
        Host {
            instant "filesystem-error-code" fn filesystem_error_code(err: Resource<Error>) -> Result<Option<ErrorCode>>;
            => fn convert_error_code(FsError) -> Result<ErrorCode>;
        }
    }
    "wasi:filesystem/preopens" in filesystem::preopens by filesystem {
        Host { instant "get-directories" fn get_directories() -> Result<Vec<(Resource<Descriptor>, String)>>; }
    }
    "wasi:io/error" in io::error by table {
        HostError {
            instant "[method]error.to-debug-string" fn to_debug_string(this: Resource<Error>) -> Result<String>;
            instant "[resource-drop]error" fn drop(this: Resource<Error>) -> Result<()>;
        }
        Host {}
    }
    "wasi:io/poll" in io::poll by table {
        HostPollable {
            polled "[method]pollable.ready" fn ready(this: Resource<Pollable>) -> Result<bool>;
            waiting "[method]pollable.block" fn block(this: Resource<Pollable>) -> Result<()>;
            instant "[resource-drop]pollable" fn drop(this: Resource<Pollable>) -> Result<()>;
        }
        Host {
            waiting "poll" fn poll(pollables: Vec<Resource<Pollable>>) -> Result<Vec<u32>>;
        }
    }
    "wasi:io/streams" in io::streams by table {
        HostInputStream {
            instant "[method]input-stream.read" fn read(this: Resource<InputStream>, len: u64) -> StreamResult<Vec<u8>>;
            waiting "[method]input-stream.blocking-read" fn blocking_read(this: Resource<InputStream>, len: u64) -> StreamResult<Vec<u8>>;
            instant "[method]input-stream.skip" fn skip(this: Resource<InputStream>, len: u64) -> StreamResult<u64>;
            waiting "[method]input-stream.blocking-skip" fn blocking_skip(this: Resource<InputStream>, len: u64) -> StreamResult<u64>;
            instant "[method]input-stream.subscribe" fn subscribe(this: Resource<InputStream>) -> Result<Resource<Pollable>>;
            polled "[resource-drop]input-stream" fn drop(this: Resource<InputStream>) -> Result<()>;
        }
        HostOutputStream {
            instant "[method]output-stream.check-write" fn check_write(this: Resource<OutputStream>) -> StreamResult<u64>;
            instant "[method]output-stream.write" fn write(this: Resource<OutputStream>, contents: Vec<u8>) -> StreamResult<()>;
            waiting "[method]output-stream.blocking-write-and-flush" fn blocking_write_and_flush(this: Resource<OutputStream>, contents: Vec<u8>) -> StreamResult<()>;
            instant "[method]output-stream.flush" fn flush(this: Resource<OutputStream>) -> StreamResult<()>;
            waiting "[method]output-stream.blocking-flush" fn blocking_flush(this: Resource<OutputStream>) -> StreamResult<()>;
            instant "[method]output-stream.subscribe" fn subscribe(this: Resource<OutputStream>) -> Result<Resource<Pollable>>;
            instant "[method]output-stream.write-zeroes" fn write_zeroes(this: Resource<OutputStream>, len: u64) -> StreamResult<()>;
            waiting "[method]output-stream.blocking-write-zeroes-and-flush" fn blocking_write_zeroes_and_flush(this: Resource<OutputStream>, len: u64) -> StreamResult<()>;
            instant "[method]output-stream.splice" fn splice(this: Resource<OutputStream>, src: Resource<InputStream>, len: u64) -> StreamResult<u64>;
            waiting "[method]output-stream.blocking-splice" fn blocking_splice(this: Resource<OutputStream>, src: Resource<InputStream>, len: u64) -> StreamResult<u64>;
            polled "[resource-drop]output-stream" fn drop(this: Resource<OutputStream>) -> Result<()>;
        }
        Host {
            => fn convert_stream_error(StreamFailure) -> Result<StreamError>;
        }
    }
    "wasi:random/random" in random::random by random {
        Host {
            instant "get-random-bytes" fn get_random_bytes(len: u64) -> Result<Vec<u8>>;
            instant "get-random-u64" fn get_random_u64() -> Result<u64>;
        }
    }
    "wasi:random/insecure" in random::insecure by random {
        Host {
            instant "get-insecure-random-bytes" fn get_insecure_random_bytes(len: u64) -> Result<Vec<u8>>;
            instant "get-insecure-random-u64" fn get_insecure_random_u64() -> Result<u64>;
        }
    }
    "wasi:random/insecure-seed" in random::insecure_seed by random {
        Host { instant "insecure-seed" fn insecure_seed() -> Result<(u64, u64)>; }
    }
    "wasi:sockets/network" in sockets::network by sockets {
        HostNetwork { instant "[resource-drop]network" fn drop(this: Resource<Network>) -> Result<()>; }
        Host {
            instant "network-error-code" fn network_error_code(err: Resource<Error>) -> Result<Option<ErrorCode>>;
            => fn convert_error_code(SocketError) -> Result<ErrorCode>;
        }
    }
    "wasi:sockets/instance-network" in sockets::instance_network by sockets {
        Host { instant "instance-network" fn instance_network() -> Result<Resource<Network>>; }
    }
    "wasi:sockets/udp" in sockets::udp by sockets {
        HostUdpSocket {
            polled "[method]udp-socket.start-bind" fn start_bind(this: Resource<UdpSocket>, network: Resource<Network>, local_address: IpSocketAddress) -> SocketResult<()>;
            instant "[method]udp-socket.finish-bind" fn finish_bind(this: Resource<UdpSocket>) -> SocketResult<()>;
            polled "[method]udp-socket.stream" fn stream(this: Resource<UdpSocket>, remote_address: Option<IpSocketAddress>) -> SocketResult<(Resource<IncomingDatagramStream>, Resource<OutgoingDatagramStream>)>;
            instant "[method]udp-socket.local-address" fn local_address(this: Resource<UdpSocket>) -> SocketResult<IpSocketAddress>;
            instant "[method]udp-socket.remote-address" fn remote_address(this: Resource<UdpSocket>) -> SocketResult<IpSocketAddress>;
            instant "[method]udp-socket.address-family" fn address_family(this: Resource<UdpSocket>) -> Result<IpAddressFamily>;
            instant "[method]udp-socket.unicast-hop-limit" fn unicast_hop_limit(this: Resource<UdpSocket>) -> SocketResult<u8>;
            instant "[method]udp-socket.set-unicast-hop-limit" fn set_unicast_hop_limit(this: Resource<UdpSocket>, value: u8) -> SocketResult<()>;
            instant "[method]udp-socket.receive-buffer-size" fn receive_buffer_size(this: Resource<UdpSocket>) -> SocketResult<u64>;
            instant "[method]udp-socket.set-receive-buffer-size" fn set_receive_buffer_size(this: Resource<UdpSocket>, value: u64) -> SocketResult<()>;
            instant "[method]udp-socket.send-buffer-size" fn send_buffer_size(this: Resource<UdpSocket>) -> SocketResult<u64>;
            instant "[method]udp-socket.set-send-buffer-size" fn set_send_buffer_size(this: Resource<UdpSocket>, value: u64) -> SocketResult<()>;
            instant "[method]udp-socket.subscribe" fn subscribe(this: Resource<UdpSocket>) -> Result<Resource<Pollable>>;
            instant "[resource-drop]udp-socket" fn drop(this: Resource<UdpSocket>) -> Result<()>;
        }
        HostIncomingDatagramStream {
            instant "[method]incoming-datagram-stream.receive" fn receive(this: Resource<IncomingDatagramStream>, max_results: u64) -> SocketResult<Vec<IncomingDatagram>>;
            instant "[method]incoming-datagram-stream.subscribe" fn subscribe(this: Resource<IncomingDatagramStream>) -> Result<Resource<Pollable>>;
            instant "[resource-drop]incoming-datagram-stream" fn drop(this: Resource<IncomingDatagramStream>) -> Result<()>;
        }
        HostOutgoingDatagramStream {
            instant "[method]outgoing-datagram-stream.check-send" fn check_send(this: Resource<OutgoingDatagramStream>) -> SocketResult<u64>;
            instant "[method]outgoing-datagram-stream.send" fn send(this: Resource<OutgoingDatagramStream>, datagrams: Vec<OutgoingDatagram>) -> SocketResult<u64>;
            instant "[method]outgoing-datagram-stream.subscribe" fn subscribe(this: Resource<OutgoingDatagramStream>) -> Result<Resource<Pollable>>;
            polled "[resource-drop]outgoing-datagram-stream" fn drop(this: Resource<OutgoingDatagramStream>) -> Result<()>;
        }
        Host {}
    }
    "wasi:sockets/udp-create-socket" in sockets::udp_create_socket by sockets {
        Host {
            polled "create-udp-socket" fn create_udp_socket(address_family: IpAddressFamily) -> SocketResult<Resource<UdpSocket>>;
        }
    }
    "wasi:sockets/tcp" in sockets::tcp by sockets {
        HostTcpSocket {
            polled "[method]tcp-socket.start-bind" fn start_bind(this: Resource<TcpSocket>, network: Resource<Network>, local_address: IpSocketAddress) -> SocketResult<()>;
            instant "[method]tcp-socket.finish-bind" fn finish_bind(this: Resource<TcpSocket>) -> SocketResult<()>;
            instant "[method]tcp-socket.start-connect" fn start_connect(this: Resource<TcpSocket>, network: Resource<Network>, remote_address: IpSocketAddress) -> SocketResult<()>;
            instant "[method]tcp-socket.finish-connect" fn finish_connect(this: Resource<TcpSocket>) -> SocketResult<(Resource<InputStream>, Resource<OutputStream>)>;
            polled "[method]tcp-socket.start-listen" fn start_listen(this: Resource<TcpSocket>) -> SocketResult<()>;
            instant "[method]tcp-socket.finish-listen" fn finish_listen(this: Resource<TcpSocket>) -> SocketResult<()>;
            instant "[method]tcp-socket.accept" fn accept(this: Resource<TcpSocket>) -> SocketResult<(Resource<TcpSocket>, Resource<InputStream>, Resource<OutputStream>)>;
            instant "[method]tcp-socket.local-address" fn local_address(this: Resource<TcpSocket>) -> SocketResult<IpSocketAddress>;
            instant "[method]tcp-socket.remote-address" fn remote_address(this: Resource<TcpSocket>) -> SocketResult<IpSocketAddress>;
            instant "[method]tcp-socket.is-listening" fn is_listening(this: Resource<TcpSocket>) -> Result<bool>;
            instant "[method]tcp-socket.address-family" fn address_family(this: Resource<TcpSocket>) -> Result<IpAddressFamily>;
            instant "[method]tcp-socket.set-listen-backlog-size" fn set_listen_backlog_size(this: Resource<TcpSocket>, value: u64) -> SocketResult<()>;
            instant "[method]tcp-socket.keep-alive-enabled" fn keep_alive_enabled(this: Resource<TcpSocket>) -> SocketResult<bool>;
            instant "[method]tcp-socket.set-keep-alive-enabled" fn set_keep_alive_enabled(this: Resource<TcpSocket>, value: bool) -> SocketResult<()>;
            instant "[method]tcp-socket.keep-alive-idle-time" fn keep_alive_idle_time(this: Resource<TcpSocket>) -> SocketResult<Duration>;
            instant "[method]tcp-socket.set-keep-alive-idle-time" fn set_keep_alive_idle_time(this: Resource<TcpSocket>, value: Duration) -> SocketResult<()>;
            instant "[method]tcp-socket.keep-alive-interval" fn keep_alive_interval(this: Resource<TcpSocket>) -> SocketResult<Duration>;
            instant "[method]tcp-socket.set-keep-alive-interval" fn set_keep_alive_interval(this: Resource<TcpSocket>, value: Duration) -> SocketResult<()>;
            instant "[method]tcp-socket.keep-alive-count" fn keep_alive_count(this: Resource<TcpSocket>) -> SocketResult<u32>;
            instant "[method]tcp-socket.set-keep-alive-count" fn set_keep_alive_count(this: Resource<TcpSocket>, value: u32) -> SocketResult<()>;
            instant "[method]tcp-socket.hop-limit" fn hop_limit(this: Resource<TcpSocket>) -> SocketResult<u8>;
            instant "[method]tcp-socket.set-hop-limit" fn set_hop_limit(this: Resource<TcpSocket>, value: u8) -> SocketResult<()>;
            instant "[method]tcp-socket.receive-buffer-size" fn receive_buffer_size(this: Resource<TcpSocket>) -> SocketResult<u64>;
            instant "[method]tcp-socket.set-receive-buffer-size" fn set_receive_buffer_size(this: Resource<TcpSocket>, value: u64) -> SocketResult<()>;
            instant "[method]tcp-socket.send-buffer-size" fn send_buffer_size(this: Resource<TcpSocket>) -> SocketResult<u64>;
            instant "[method]tcp-socket.set-send-buffer-size" fn set_send_buffer_size(this: Resource<TcpSocket>, value: u64) -> SocketResult<()>;
            instant "[method]tcp-socket.subscribe" fn subscribe(this: Resource<TcpSocket>) -> Result<Resource<Pollable>>;
            instant "[method]tcp-socket.shutdown" fn shutdown(this: Resource<TcpSocket>, shutdown_type: ShutdownType) -> SocketResult<()>;
            instant "[resource-drop]tcp-socket" fn drop(this: Resource<TcpSocket>) -> Result<()>;
        }
        Host {}
    }
    "wasi:sockets/tcp-create-socket" in sockets::tcp_create_socket by sockets {
        Host {
            instant "create-tcp-socket" fn create_tcp_socket(address_family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>>;
        }
    }
    "wasi:sockets/ip-name-lookup" in sockets::ip_name_lookup by sockets {
        HostResolveAddressStream {
            instant "[method]resolve-address-stream.resolve-next-address" fn resolve_next_address(this: Resource<ResolveAddressStream>) -> SocketResult<Option<IpAddress>>;
            instant "[method]resolve-address-stream.subscribe" fn subscribe(this: Resource<ResolveAddressStream>) -> Result<Resource<Pollable>>;
            instant "[resource-drop]resolve-address-stream" fn drop(this: Resource<ResolveAddressStream>) -> Result<()>;
        }
        Host {
            instant "resolve-addresses" fn resolve_addresses(network: Resource<Network>, name: String) -> SocketResult<Resource<ResolveAddressStream>>;
        }
    }
}

/// Not linked, because it is unstable; but the generated code requires it.
impl clocks::timezone::Host for RunStore {
    fn display(
        &mut self,
        when: clocks::wall_clock::Datetime,
    ) -> Result<clocks::timezone::TimezoneDisplay> {
        let utc_offset = self.utc_offset(when)?;
        let name = "UTC".to_owned();
        Ok(clocks::timezone::TimezoneDisplay { utc_offset, name, in_daylight_saving_time: false })
    }

    fn utc_offset(&mut self, _when: clocks::wall_clock::Datetime) -> Result<i32> {
        Ok(0)
    }
}
