//! The time, and how much of the budget remains.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fill};
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::capability::time;
use sandglass_supervisor::functions::Functions;

use super::MODULE;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_get_time(caller, ptr: i32, len: i32) -> i32 {
            let time = time::compact_utc(caller.data().clock().shared().wall())
                .ok_or("the host's clock shows no time of this calendar")?;
            fill(caller, (ptr, len), time.as_bytes(), WhenTooSmall::Refuse)
        }
        fn host_get_time_millis(caller) -> i64 {
            Ok(caller.data().clock().shared().wall().as_millis())
        }
        fn host_deadline_remaining_ms(caller) -> i64 {
            let store = caller.data();
            let remaining = store.run().deadline().since(store.watch.checked_at).as_millis();
            Ok(i64::try_from(remaining).unwrap_or(i64::MAX))
        }
        fn host_should_stop(caller) -> i32 {
            let store = caller.data();
            Ok(i32::from(store.run().should_stop(store.watch.checked_at)))
        }
    }
    Ok(())
}
