//! Replaces the templates of a handler's configuration before its guest is instantiated, and reports a
//! handler that ends meanwhile.

use std::time::Duration;

use sandglass_model::report::micros;
use sandglass_model::{Cause, Monotonic, Outcome, Rejection, RunReport, TimeSplit, WallTime};

use super::{Execution, poll_on_cpu};
use crate::ending::cancelled;
use sandglass_supervisor::deadline::StartedDeadline;
use sandglass_supervisor::dispatch::Context;
use sandglass_supervisor::node::Work;
use sandglass_supervisor::notice::Notice;
use sandglass_supervisor::race::Race;
use sandglass_supervisor::template::{Resolved, has_templates, resolve};

/// The dying span of a handler that ends while the templates of its configuration are replaced.
const REPLACING_TEMPLATES: &str = "templates";

/// The configuration whose templates are replaced, if it has any.
pub(super) struct Templates {
    pub(super) resolved: Resolved,
    /// The time on the CPU that this took.
    pub(super) cpu: Duration,
    /// When it was done.
    pub(super) until: Monotonic,
}

impl Execution {
    /// Replaces the templates of the configuration, if it has any. The budget has begun, because a
    /// store of secrets may be slow.
    pub(super) async fn replace_templates(
        &self,
        now: Monotonic,
        notice: Option<&Notice<'_>>,
    ) -> Result<Templates, Option<Rejection>> {
        let Context { config, entity_state, .. } = &self.dispatch.context;
        let is_handler = matches!(self.dispatch.work, Work::Handle) && !self.dispatch.is_replay();
        if !is_handler || !has_templates(config) {
            return Ok(Templates {
                resolved: Resolved::default(),
                cpu: Duration::ZERO,
                until: now,
            });
        }
        let (grants, dispatch) = (&self.integration.grants, &self.dispatch);
        let race = Race::new(&self.dispatch.run, &self.shared.clock);
        let resolving = race.run(async {
            // As `host_get_secret`, which reaches the same stores of secrets.
            self.shared.lease.valid().await;
            resolve(config, entity_state, |name| grants.secret(name, dispatch, self.id)).await
        });
        let (resolved, cpu) = poll_on_cpu(&self.shared, now, notice, resolving).await;
        let resolved = resolved.ok_or(None)?.map_err(Some)?;
        Ok(Templates { resolved, cpu, until: self.shared.clock.now() })
    }

    /// The report of a handler that was rejected because of a template, or stopped while its templates
    /// were replaced.
    pub(super) fn report_unresolved(
        &self,
        rejection: Option<Rejection>,
        started_at: WallTime,
        deadline: &StartedDeadline,
        notice: Option<&Notice<'_>>,
    ) -> RunReport {
        let (run, now) = (&self.dispatch.run, self.shared.clock.now());
        if let Some(notice) = notice {
            notice.close(now);
        }
        let cause = run.due(now).unwrap_or_else(|| run.set_cause(Cause::NotStarted));
        let (outcome, dying_span) = match (rejection, cause) {
            (Some(rejection), Cause::NotStarted) => (Outcome::Rejected(rejection), None),
            _ => {
                let dying_span = Some(REPLACING_TEMPLATES.to_owned());
                (cancelled(run, cause, dying_span.clone()), dying_span)
            }
        };
        let queue = micros(deadline.start.since(self.queued_at));
        let instantiate = micros(now.since(deadline.start));
        let mut report = RunReport {
            outcome,
            cause,
            dying_span,
            time_split_us: TimeSplit { queue, instantiate, ..self.split() },
            wall_us: self.wall_us(now),
            ..self.report(Some(started_at), *deadline)
        };
        self.measure(&mut report, deadline, now);
        report
    }
}
