//! WASI preview 1, each function through the boundary by its name: clocks,
//! randomness, polling and standard streams work; there are no files and no
//! sockets, so whatever names one is refused by its own error code.

use wasmtime::{Caller, Linker, Result};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p1::wasi_snapshot_preview1::{self as wasi, WasiSnapshotPreview1};
use wiggle::GuestMemory;

use crate::boundary::{check, instant, waiting};
use crate::functions::Functions;
use crate::store::RunStore;

use crate::abi::guest_memory::memory;

/// The module that these functions are imported from.
pub(crate) const MODULE: &str = "wasi_snapshot_preview1";

/// Most bytes that one call may make the host copy, as Wasmtime's own linker
/// bounds them.
const CALL_BYTES: usize = 128 << 20;

/// Most buffers that one call may name, as POSIX has it (`IOV_MAX`): each is looked
/// at, and nothing interrupts that.
const MAX_BUFFERS: u32 = 1024;

/// Most events that one call may wait for. Each takes resources of the run, which
/// are bounded too.
const MAX_SUBSCRIPTIONS: u32 = 4096;

/// The error code of an argument that isn't allowed, as preview 1 numbers it.
const INVAL: i32 = 28;

/// Links the functions, one line each: those that never wait, and those that may;
/// each with the bound of the list that it takes.
macro_rules! link {
    ($linker:ident, $functions:ident;
     instant { $($name:ident($($arg:ident: $ty:ty),*)
                 $(where $count:ident <= $max:ident)?;)* }
     waiting { $($wname:ident($($warg:ident: $wty:ty),*)
                 $(where $wcount:ident <= $wmax:ident)?;)* }) => {
        $(instant! { $linker, $functions, MODULE;
            fn $name(caller $(, $arg: $ty)*) -> i32 {
                $(if $count.cast_unsigned() > $max {
                    return Ok(INVAL);
                })?
                let (context, mut memory) = split(caller)?;
                wasi::$name(context, &mut memory $(, $arg)*)
            }
        })*
        $(waiting! { $linker, $functions, MODULE;
            fn $wname(caller, race $(, $warg: $wty)*) -> i32 {
                $(if $wcount.cast_unsigned() > $wmax {
                    return Ok(Some(INVAL));
                })?
                let (context, mut memory) = split(caller)?;
                race.run(wasi::$wname(context, &mut memory $(, $warg)*)).await.transpose()
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
            args_sizes_get(a: i32, b: i32);
            environ_get(a: i32, b: i32);
            environ_sizes_get(a: i32, b: i32);
            clock_res_get(a: i32, b: i32);
            clock_time_get(a: i32, b: i64, c: i32);
            fd_allocate(a: i32, b: i64, c: i64);
            fd_fdstat_set_flags(a: i32, b: i32);
            fd_fdstat_set_rights(a: i32, b: i64, c: i64);
            fd_prestat_get(a: i32, b: i32);
            fd_prestat_dir_name(a: i32, b: i32, c: i32);
            fd_tell(a: i32, b: i32);
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
            fd_fdstat_get(a: i32, b: i32);
            fd_filestat_get(a: i32, b: i32);
            fd_filestat_set_size(a: i32, b: i64);
            fd_filestat_set_times(a: i32, b: i64, c: i64, d: i32);
            fd_pread(a: i32, b: i32, c: i32, d: i64, e: i32) where c <= MAX_BUFFERS;
            fd_pwrite(a: i32, b: i32, c: i32, d: i64, e: i32) where c <= MAX_BUFFERS;
            fd_read(a: i32, b: i32, c: i32, d: i32) where c <= MAX_BUFFERS;
            fd_readdir(a: i32, b: i32, c: i32, d: i64, e: i32);
            fd_renumber(a: i32, b: i32);
            fd_seek(a: i32, b: i64, c: i32, d: i32);
            fd_sync(a: i32);
            fd_write(a: i32, b: i32, c: i32, d: i32) where c <= MAX_BUFFERS;
            path_create_directory(a: i32, b: i32, c: i32);
            path_filestat_get(a: i32, b: i32, c: i32, d: i32, e: i32);
            path_filestat_set_times(a: i32, b: i32, c: i32, d: i32, e: i64, f: i64, g: i32);
            path_link(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32, g: i32);
            path_open(a: i32, b: i32, c: i32, d: i32, e: i32, f: i64, g: i64, h: i32, i: i32);
            path_readlink(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32);
            path_remove_directory(a: i32, b: i32, c: i32);
            path_rename(a: i32, b: i32, c: i32, d: i32, e: i32, f: i32);
            path_symlink(a: i32, b: i32, c: i32, d: i32, e: i32);
            path_unlink_file(a: i32, b: i32, c: i32);
            poll_oneoff(a: i32, b: i32, c: i32, d: i32) where c <= MAX_SUBSCRIPTIONS;
        }
    }
    Ok(())
}

/// `proc_exit` is the only one that never returns.
fn link_exit(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn proc_exit(caller, code: i32) -> () {
            let (context, mut memory) = split(caller)?;
            wasi::proc_exit(context, &mut memory, code)
        }
    }
    Ok(())
}

/// `random_get` computes as long as its buffer is large, so it does so in pieces,
/// and looks at the clock between them.
fn link_random(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    /// Well under a millisecond of work.
    const PIECE_BYTES: u32 = 64 << 10;
    instant! { linker, functions, MODULE;
        fn random_get(caller, ptr: i32, len: i32) -> i32 {
            let (mut at, mut left) = (ptr.cast_unsigned(), len.cast_unsigned());
            loop {
                let piece = left.min(PIECE_BYTES);
                let (context, mut memory) = split(caller)?;
                let (from, size) = (at.cast_signed(), piece.cast_signed());
                let errno = wasi::random_get(context, &mut memory, from, size)?;
                left -= piece;
                if errno != 0 || left == 0 {
                    return Ok(errno);
                }
                at = at.wrapping_add(piece);
                check(caller.data_mut())?;
            }
        }
    }
    Ok(())
}

fn split<'a>(caller: &'a mut Caller<'_, RunStore>) -> Result<(&'a mut WasiP1Ctx, GuestMemory<'a>)> {
    let memory = memory(caller)?;
    let (bytes, store) = memory.data_and_store_mut(caller);
    let context = &mut store.wasi().preview1;
    context.set_hostcall_fuel(CALL_BYTES);
    Ok((context, GuestMemory::Unshared(bytes)))
}
