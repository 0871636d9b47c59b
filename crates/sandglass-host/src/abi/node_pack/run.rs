//! The state of a pack while it executes, and what the host writes to its memory.

use std::sync::Arc;

use sandglass_model::{Outcome, WallTime};
use wasmtime::{AsContextMut, Caller, Memory, Result, TypedFunc};

use crate::abi::guest_memory;
use crate::store::RunStore;
use sandglass_supervisor::measured;
use sandglass_supervisor::node::{NoAccess, NodeAccess, NodeCall};

use super::contract::ALLOC;
use super::random::RandomStream;

/// The state of an invocation, or of a description.
pub(crate) struct NodeRun {
    pub(super) access: Arc<dyn NodeAccess>,
    pub(super) random: RandomStream,
    /// The time that the node reads as long as it executes, so that a replay is the same.
    pub(super) now: WallTime,
    alloc: TypedFunc<i32, i32>,
    /// Whether the pack is allocating memory for the result of one of its calls.
    is_allocating: bool,
}

measured!(in crate::measured::Measured; NodeRun: access, random, now, alloc, is_allocating);

impl NodeRun {
    pub(super) fn new(call: Option<&NodeCall>, now: WallTime, alloc: TypedFunc<i32, i32>) -> Self {
        let access = call.map(|call| Arc::clone(&call.access));
        Self {
            access: access.unwrap_or_else(|| Arc::new(NoAccess)),
            random: RandomStream::new(call.map_or([0; 32], |call| call.seed)),
            now,
            alloc,
            is_allocating: false,
        }
    }
}

/// A pack's memory has no place for what the host has to write.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum NotAllocated {
    #[error("`{ALLOC}` had no room for {len} bytes: it answered 0")]
    NoRoom { len: usize },
    #[error(
        "`{ALLOC}` answered {ptr} for {len} bytes, which lies outside the guest's memory of \
         {memory} bytes"
    )]
    Outside { len: usize, ptr: u32, memory: usize },
}

/// The error that unwinds a guest whose outcome is known before it returns.
#[derive(Debug, thiserror::Error)]
#[error("the invocation has ended")]
struct Ended(Outcome);

/// The error that ends the invocation with `outcome`, wherever the guest is.
pub(super) fn end_with(outcome: Outcome) -> wasmtime::Error {
    Ended(outcome).into()
}

/// The outcome that the guest was unwound for, if it was.
pub(super) fn outcome_of(error: &wasmtime::Error) -> Option<Outcome> {
    error.downcast_ref::<Ended>().map(|Ended(outcome)| outcome.clone())
}

/// The length of `bytes`, as the ABI passes it.
pub(super) fn length(bytes: &[u8]) -> Result<i32, NotAllocated> {
    // No guest's memory has more than a fraction of the 2 GiB that fit.
    i32::try_from(bytes.len()).map_err(|_| NotAllocated::NoRoom { len: bytes.len() })
}

/// Writes `bytes` to the place that the pack has allocated for them.
#[allow(clippy::disallowed_methods, reason = "nothing is read")]
pub(super) fn write(
    memory: Memory,
    store: impl AsContextMut,
    ptr: i32,
    bytes: &[u8],
) -> Result<(), NotAllocated> {
    let (mut store, len) = (store, bytes.len());
    let (ptr, memory) = (ptr.cast_unsigned(), memory.data_mut(&mut store));
    if ptr == 0 {
        return Err(NotAllocated::NoRoom { len });
    }
    let (from, size) = (ptr as usize, memory.len());
    let place = from.checked_add(len).and_then(|to| memory.get_mut(from..to));
    place.ok_or(NotAllocated::Outside { len, ptr, memory: size })?.copy_from_slice(bytes);
    Ok(())
}

/// The state of the invocation.
///
/// # Errors
/// The pack is not instantiated yet.
pub(super) fn node(store: &mut RunStore) -> Result<&mut NodeRun> {
    let not_yet = || wasmtime::Error::msg("a pack can't call the host while it is instantiated");
    store.node.as_mut().ok_or_else(not_yet)
}

/// Returns `bytes` from a call of the pack, in memory that the pack allocates after the call.
///
/// # Errors
/// The pack does not allocate it, or makes another such call while it allocates.
pub(super) async fn return_bytes(
    caller: &mut Caller<'_, RunStore>,
    bytes: &[u8],
) -> Result<(i32, i32)> {
    let len = length(bytes)?;
    let node = node(caller.data_mut())?;
    if node.is_allocating {
        // Otherwise, the pack could nest such calls without limit, each with a stack of its own.
        wasmtime::bail!("`{ALLOC}` calls what needs `{ALLOC}` for its answer");
    }
    node.is_allocating = true;
    let alloc = node.alloc.clone();
    let allocated = alloc.call_async(&mut *caller, len).await;
    // Also if it throws an exception, because the pack can catch that and make further calls.
    self::node(caller.data_mut())?.is_allocating = false;
    let ptr = allocated?;
    let memory = guest_memory::memory(caller)?;
    write(memory, caller, ptr, bytes)?;
    Ok((ptr, len))
}
