//! The decision of an action by a spec that the guest passes.

use serde_json::json;
use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fill, text};
use crate::boundary::waiting;
use crate::evaluation::{SPEC_BYTES, SpecQuery};
use crate::store::RunStore;
use sandglass_supervisor::functions::{Functions, Reads};
use sandglass_supervisor::race::CallEnded;

use super::{MODULE, NAME_BYTES};

/// Largest parameters of an action that are read, as JSON, in bytes.
const PARAMS_BYTES: u32 = 64 * 1024;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_evaluate_spec(
            caller, race,
            spec_ptr: i32, spec_len: i32, state_ptr: i32, state_len: i32,
            action_ptr: i32, action_len: i32, params_ptr: i32, params_len: i32,
            out_ptr: i32, out_len: i32
        ) reads [(spec_ptr, spec_len), (state_ptr, state_len), (action_ptr, action_len), (params_ptr, params_len)] up_to (Reads::bytes(SPEC_BYTES + 2 * NAME_BYTES + PARAMS_BYTES)) -> i32 {
            let query = SpecQuery {
                spec: text(caller, "the spec", (spec_ptr, spec_len), SPEC_BYTES)?,
                state: text(caller, "the state", (state_ptr, state_len), NAME_BYTES)?,
                action: text(caller, "the action", (action_ptr, action_len), NAME_BYTES)?,
                params: text(caller, "the params", (params_ptr, params_len), PARAMS_BYTES)?,
            };
            let evaluating = caller.data().evaluate(query);
            let wait = async { Ok::<_, CallEnded>(evaluating.await) };
            let Some(evaluated) = race.call(wait).await else { return Ok(None) };
            // In this ABI, an evaluation that fails is a result, too.
            let result = match evaluated? {
                Ok(result) => result,
                Err(why) => {
                    caller.data_mut().guest_mut().fail(&why);
                    json!({ "success": false, "error": why }).to_string()
                }
            };
            fill(caller, (out_ptr, out_len), result.as_bytes(), WhenTooSmall::Refuse).map(Some)
        }
    }
    Ok(())
}
