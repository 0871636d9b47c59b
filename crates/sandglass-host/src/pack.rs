//! Asks packs of OpenWOP nodes what nodes they have.

use sandglass_model::{EntityRef, Outcome, Rejection, RejectionKind};
use sandglass_supervisor::deadline::DispatchDeadline;
use sandglass_supervisor::dispatch::{Context, Dispatch};
use sandglass_supervisor::node::{DESCRIBE_BUDGET, PackDescription};
use sandglass_supervisor::rejection::rejection;

use crate::host::Host;
use crate::integration::Integration;

impl Host {
    /// Returns what nodes the pack `integration` has. The exports that describe it are called once, on an
    /// instance of their own, within the integration's limits and [`DESCRIBE_BUDGET`].
    ///
    /// # Errors
    /// It is not a pack (`invalid_dispatch`), or of another version of the ABI
    /// (`unsupported_abi_version`); it traps, does not end, or describes itself wrongly
    /// (`invalid_pack`); it exceeds its limits (`needs_too_much`); or the host cannot execute it now
    /// (`host_unavailable`).
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
                .map_err(|error| invalid(format!("pack's description cannot be read: {error}"))),
            Outcome::Rejected(rejection) => Err(rejection),
            Outcome::TimedOut(exceeded) => Err(invalid(format!(
                "pack did not describe itself within {} ms; it was stopped in `{}`",
                exceeded.budget_ms, exceeded.dying_span
            ))),
            Outcome::Trapped(trap) => {
                Err(invalid(format!("pack trapped when it described itself: {}", trap.message)))
            }
            Outcome::Failed(failure) => Err(invalid(failure.message)),
            Outcome::Limit(breach) => Err(rejection(
                RejectionKind::NeedsTooMuch,
                format!("pack cannot describe itself within its limits: {breach}"),
            )),
            Outcome::Cancelled(_) | Outcome::Interrupted => {
                Err(unavailable("the host stopped before the pack had described itself".to_owned()))
            }
        }
    }
}
