//! Packs of OpenWOP nodes describe themselves.

use sandglass_model::{EntityRef, Outcome, Rejection, RejectionKind};
use sandglass_supervisor::deadline::DispatchDeadline;
use sandglass_supervisor::dispatch::{Context, Dispatch};
use sandglass_supervisor::node::{DESCRIBE_BUDGET, PackDescription};
use sandglass_supervisor::rejection::rejection;

use crate::host::Host;
use crate::integration::Integration;

impl Host {
    /// Has the pack that `integration` is say what nodes it has: its describing exports are
    /// called once, on an instance of their own, inside the integration's limits and for at
    /// most [`DESCRIBE_BUDGET`].
    ///
    /// # Errors
    /// It is no pack (`invalid_dispatch`), or of another version of the ABI
    /// (`unsupported_abi_version`); it traps, goes on and on, or answers what can't be meant
    /// (`invalid_pack`); it takes more than it may have (`needs_too_much`); or the host can't run
    /// it now (`host_unavailable`).
    pub async fn describe_pack(
        &self,
        integration: &Integration,
    ) -> Result<PackDescription, Rejection> {
        let entity = EntityRef::new("Pack", "description").expect("both are names");
        let dispatch = Dispatch::new(entity, "Describe", Context::default())
            .deadline(DispatchDeadline::after(DESCRIBE_BUDGET))
            .describing();
        let unavailable = |why: String| rejection(RejectionKind::HostUnavailable, why);
        let outcome = self.dispatch(integration, dispatch).await;
        let invalid = |why: String| rejection(RejectionKind::InvalidPack, why);
        match outcome.map_err(|error| unavailable(error.to_string()))? {
            Outcome::Completed(completion) => serde_json::from_value(completion.result)
                .map_err(|error| invalid(format!("pack's description can't be read: {error}"))),
            Outcome::Rejected(rejection) => Err(rejection),
            Outcome::TimedOut(exceeded) => Err(invalid(format!(
                "pack didn't say what it is within {} ms; it was stopped in `{}`",
                exceeded.budget_ms, exceeded.dying_span
            ))),
            Outcome::Trapped(trap) => Err(invalid(format!(
                "pack trapped when it had to say what it is: {}",
                trap.message
            ))),
            Outcome::Failed(failure) => Err(invalid(failure.message)),
            Outcome::Limit(breach) => Err(rejection(
                RejectionKind::NeedsTooMuch,
                format!("pack can't say what it is within its limits: {breach}"),
            )),
            Outcome::Cancelled(_) | Outcome::Interrupted => {
                Err(unavailable("the host stopped before the pack had said what it is".to_owned()))
            }
        }
    }
}
