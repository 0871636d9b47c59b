//! WASI preview 1. Each function passes the boundary under its name. Clocks, randomness, polling and
//! standard streams work; there are no files and no sockets, so functions that need one return their
//! error codes.

use wasmtime::{Caller, Error, Linker, Result};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p1::wasi_snapshot_preview1::{self as wasi, WasiSnapshotPreview1};
use wiggle::GuestMemory;

use crate::boundary::{LISTED_MAX, instant, waiting};
use crate::store::RunStore;
use sandglass_supervisor::executor::give_way;
use sandglass_supervisor::functions::{Functions, Reads};

use crate::abi::guest_memory::{memory, slice};

/// The module that these functions are imported from.
pub(crate) const MODULE: &str = "wasi_snapshot_preview1";

/// Most bytes that one call may make the host read or copy: a few milliseconds of work.
const CALL_BYTES: usize = 16 << 20;

/// [`CALL_BYTES`], as the declaration of functions that read a guest's memory.
const READS: Reads = Reads::Bytes(CALL_BYTES as u64);

/// Most buffers of one call: nothing interrupts a call between two of them.
const MAX_BUFFERS: u32 = LISTED_MAX;

/// Sizes of the description of a buffer, of a subscription and of an event in preview 1, in bytes.
const BUFFER_BYTES: i32 = 8;
const SUBSCRIPTION_BYTES: i32 = 48;
const EVENT_BYTES: i32 = 32;

/// Most events that one call may wait for. Each takes resources of the handler run, which are bounded,
/// too.
const MAX_SUBSCRIPTIONS: u32 = 4096;

/// The error code of preview 1 for an invalid argument.
const INVAL: i32 = 28;

/// What a function may read: nothing, unless its line names a list or places in the guest's memory.
macro_rules! bound {
    () => {
        Reads::Numbers
    };
    ($($reads:tt)+) => {
        READS
    };
}

/// Links the functions, one line each: those that never wait, and those that may. A line states the
/// bound on the list that the function takes, and the places in the guest's memory that it reads and
/// writes, as pointers and lengths. An empty `reads []` stands for places that a recording leaves out.
macro_rules! link {
    ($linker:ident, $functions:ident;
     instant { $($name:ident($($arg:ident: $ty:ty),*)
                 $(where $count:ident <= $max:ident)?
                 $(reads [$($reads:tt)*])? $(writes [$($writes:tt)*])?;)* }
     waiting { $($wname:ident($($warg:ident: $wty:ty),*)
                 $(where $wcount:ident <= $wmax:ident)?
                 $(reads [$($wreads:tt)*])? $(gathers $gathers:tt)? $(writes [$($wwrites:tt)*])?;)* }) => {
        $(instant! { $linker, $functions, MODULE;
            fn $name(caller $(, $arg: $ty)*) reads [$($($reads)*)?]
                up_to (bound!($($count)? $([$($reads)*])?)) -> i32 {
                $(if $count.cast_unsigned() > $max {
                    note_errno(caller, INVAL);
                    return Ok(INVAL);
                })?
                let (context, mut memory) = split(caller)?;
                let errno = wasi::$name(context, &mut memory $(, $arg)*)?;
                note_errno(caller, errno);
                $(record_writes(caller, errno, &[$($writes)*])?;)?
                Ok(errno)
            }
        })*
        $(waiting! { $linker, $functions, MODULE;
            fn $wname(caller, race $(, $warg: $wty)*) reads [$($($wreads)*)?]
                up_to (bound!($($wcount)? $([$($wreads)*])? $($gathers)?)) $(gathers $gathers)? -> i32 {
                $(if $wcount.cast_unsigned() > $wmax {
                    note_errno(caller, INVAL);
                    return Ok(Some(INVAL));
                })?
                let (context, mut memory) = split(caller)?;
                let wait = wasi::$wname(context, &mut memory $(, $warg)*);
                let Some(errno) = race.run(wait).await.transpose()? else { return Ok(None) };
                note_errno(caller, errno);
                $(record_writes(caller, errno, &[$($wwrites)*])?;)?
                Ok(Some(errno))
            }
        })*
    };
}

/// Links every function of preview 1.
pub(crate) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    link_exit(linker, functions)?;
    link_random(linker, functions)?;
    link! { linker, functions;
        instant {
            args_get(a: i32, b: i32);
            args_sizes_get(a: i32, b: i32) writes [(a, 4), (b, 4)];
            environ_get(a: i32, b: i32);
            environ_sizes_get(a: i32, b: i32) writes [(a, 4), (b, 4)];
            clock_res_get(a: i32, b: i32) writes [(b, 8)];
            clock_time_get(a: i32, b: i64, c: i32) writes [(c, 8)];
            fd_allocate(a: i32, b: i64, c: i64);
            fd_fdstat_set_flags(a: i32, b: i32);
            fd_fdstat_set_rights(a: i32, b: i64, c: i64);
            fd_prestat_get(a: i32, b: i32) writes [(b, 8)];
            fd_prestat_dir_name(a: i32, b: i32, c: i32);
            fd_tell(a: i32, b: i32) writes [(b, 8)];
            proc_raise(a: i32);
            sched_yield();
            sock_accept(a: i32, b: i32, c: i32);
            sock_recv(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32) where c <= MAX_BUFFERS;
            sock_send(a: i32, b: i32, c: i32, d: i32, e: i32) where c <= MAX_BUFFERS;
            sock_shutdown(a: i32, b: i32);
        }
        waiting {
            fd_advise(a: i32, b: i64, c: i64, d: i32);
            fd_close(a: i32);
            fd_datasync(a: i32);
            fd_fdstat_get(a: i32, b: i32) writes [(b, 24)];
            fd_filestat_get(a: i32, b: i32) writes [(b, 64)];
            fd_filestat_set_size(a: i32, b: i64);
            fd_filestat_set_times(a: i32, b: i64, c: i64, d: i32);
            fd_pread(a: i32, b: i32, c: i32, d: i64, e: i32) where c <= MAX_BUFFERS;
            fd_pwrite(a: i32, b: i32, c: i32, d: i64, e: i32) where c <= MAX_BUFFERS;
            fd_read(a: i32, b: i32, c: i32, d: i32) where c <= MAX_BUFFERS reads [(b, c.wrapping_mul(BUFFER_BYTES))] writes [(d, 4)];
            fd_readdir(a: i32, b: i32, c: i32, d: i64, e: i32);
            fd_renumber(a: i32, b: i32);
            fd_seek(a: i32, b: i64, c: i32, d: i32) writes [(d, 8)];
            fd_sync(a: i32);
            fd_write(a: i32, b: i32, c: i32, d: i32) where c <= MAX_BUFFERS gathers (b, c) writes [(d, 4)];
            path_create_directory(a: i32, b: i32, c: i32) reads [(b, c)];
            path_filestat_get(a: i32, b: i32, c: i32, d: i32, e: i32) reads [(c, d)];
            path_filestat_set_times(a: i32, b: i32, c: i32, d: i32, e: i64, f: i64, g: i32) reads [];
            path_link(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32, g: i32) reads [];
            path_open(a: i32, b: i32, c: i32, d: i32, e: i32, f: i64, g: i64, h: i32, i: i32) reads [(c, d)];
            path_readlink(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32) reads [(b, c)];
            path_remove_directory(a: i32, b: i32, c: i32) reads [(b, c)];
            path_rename(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32) reads [];
            path_symlink(a: i32, b: i32, c: i32, d: i32, e: i32) reads [];
            path_unlink_file(a: i32, b: i32, c: i32) reads [(b, c)];
            poll_oneoff(a: i32, b: i32, c: i32, d: i32) where c <= MAX_SUBSCRIPTIONS
                reads [(a, c.wrapping_mul(SUBSCRIPTION_BYTES))]
                writes [(b, c.wrapping_mul(EVENT_BYTES)), (d, 4)];
        }
    }
    Ok(())
}

/// `proc_exit` is the only function that never returns. It takes any code, while Wasmtime's takes only
/// those that it can exit with itself.
fn link_exit(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn proc_exit(caller, code: i32) -> () {
            let _ = caller;
            Err(Error::from(I32Exit(code)).into())
        }
    }
    Ok(())
}

/// `random_get` takes time in proportion to its buffer, so it works in pieces, between which other
/// guests are executed.
fn link_random(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    /// Well under a millisecond of work.
    const PIECE_BYTES: u32 = 64 << 10;
    waiting! { linker, functions, MODULE;
        fn random_get(caller, race, ptr: i32, len: i32) -> i32 {
            let (mut at, mut missing) = (ptr.cast_unsigned(), len.cast_unsigned());
            loop {
                let piece = missing.min(PIECE_BYTES);
                let (context, mut memory) = split(caller)?;
                let (from, size) = (at.cast_signed(), piece.cast_signed());
                let errno = wasi::random_get(context, &mut memory, from, size)?;
                note_errno(caller, errno);
                record_writes(caller, errno, &[(from, size)])?;
                missing -= piece;
                if errno != 0 || missing == 0 {
                    return Ok(Some(errno));
                }
                at = at.wrapping_add(piece);
                if race.run(give_way()).await.is_none() {
                    return Ok(None);
                }
            }
        }
    }
    Ok(())
}

/// Notes that a call failed if its error code says so.
fn note_errno(caller: &mut Caller<'_, RunStore>, errno: i32) {
    if errno != 0 {
        caller.data_mut().guest_mut().note_failure();
    }
}

/// Records what a successful call wrote to the guest's memory.
#[allow(clippy::disallowed_methods, reason = "a recording keeps no more than its limit")]
fn record_writes(
    caller: &mut Caller<'_, RunStore>,
    errno: i32,
    places: &[(i32, i32)],
) -> Result<()> {
    if errno != 0 || caller.data().calls.recording.is_off() {
        return Ok(());
    }
    let memory = memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    for (ptr, len) in places {
        // The call succeeded, so the place is inside the memory.
        if let Ok(bytes) = slice(memory, "what was written", *ptr, *len) {
            store.calls.recording.wrote(ptr.cast_unsigned(), bytes);
        }
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "Wasmtime's WASI reads no more than its fuel allows")]
fn split<'a>(caller: &'a mut Caller<'_, RunStore>) -> Result<(&'a mut WasiP1Ctx, GuestMemory<'a>)> {
    let memory = memory(caller)?;
    let (bytes, store) = memory.data_and_store_mut(caller);
    let context = &mut store.wasi().preview1;
    context.set_hostcall_fuel(CALL_BYTES);
    Ok((context, GuestMemory::Unshared(bytes)))
}
