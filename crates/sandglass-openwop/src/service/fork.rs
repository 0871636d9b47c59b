//! Forks of runs.

use sandglass_liveness::session::LimitSettings;
use serde_json::{Map, Value};

use super::{Error, Service, bounds};
use crate::id;
use crate::log::Standing;
use crate::runs::Created;
use crate::settings::unbounded;
use sandglass_workflow::cut::Cut;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::event::RunEvent;
use sandglass_workflow::step::{Begin, Copied, Fork, ForkMode, Start};

/// In what a fork differs from its source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) configurable: Map<String, Value>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) metadata: Option<Map<String, Value>>,
}

impl Service {
    /// Forks a run; returns the first event that the fork does not copy. That is the requested one,
    /// unless a branch has to begin earlier: if the requested one is in the middle of a node, the
    /// branch begins after the beginning of that node. The source may be a run of another host. `chosen` is
    /// the id of the fork, if the host that has received the request has chosen one.
    pub(crate) async fn fork(
        &self,
        source_id: &str,
        (from, mode): (u64, ForkMode),
        overlay: &Overlay,
        key: Option<(&str, String)>,
        chosen: Option<String>,
    ) -> Result<(Created, u64), Error> {
        let may_be_repeated = key.is_some() || chosen.is_some();
        let run = match (&key, chosen) {
            (Some((key, _)), _) => id::of_fork_key(key, mode),
            (None, Some(chosen)) => chosen,
            (None, None) => id::of_fork(mode)?,
        };
        let entity = id::entity_of(&run).ok_or_else(|| Error::no_run(&run))?;
        if may_be_repeated {
            // As for a run that is created: a repeated request succeeds, whatever has become of the source.
            let digest = key.as_ref().map(|(_, digest)| &**digest);
            if let Some(created) = self.runs.earlier(&entity, digest).await? {
                let begin = self.runs.begin_of(&entity).await?;
                let fork = begin.and_then(|begin| begin.fork);
                return Ok((created, fork.map_or(from, |fork| fork.from)));
            }
        }
        if let Some((key, digest)) = &key {
            // A key stands for one request. A fork of the other mode with this key belongs to another one, and
            // another host may own it.
            let other = id::of_fork_key(key, other_mode(mode));
            let other = id::entity_of(&other).ok_or_else(|| Error::no_run(&other))?;
            self.runs.recorded(&other, Some(digest)).await?;
        }
        let log = self.recorded_log(source_id).await?;
        let source = self.standing(&log).await?;
        if from >= source.folded.events {
            let last = source.folded.events.saturating_sub(1);
            return Err(Error::ForkPastEnd { last });
        }
        if mode == ForkMode::Replay && source.state.ended.is_none() {
            return Err(Error::RunActive);
        }
        let Some(mut of) = source.folded.projection.begin.clone() else {
            return Err(Error::no_run(source_id));
        };
        self.runs.check_room()?;
        let mut configurable = std::mem::take(&mut of.configurable);
        configurable.extend(overlay.configurable.clone());
        let (cut, limits) = match mode {
            // It ends as its source did: no clock and no counter decides again.
            ForkMode::Replay => (Cut::of_replay(from), unbounded()),
            ForkMode::Branch => {
                let lines = log.all();
                let events: Vec<&RunEvent> = lines.iter().map(|line| &line.entry.event).collect();
                self.cut_of_branch(&source, &events, from, &configurable)?
            }
        };
        let start = of.start();
        let own = Start {
            tags: overlay.tags.clone().unwrap_or(of.tags),
            metadata: overlay.metadata.clone().unwrap_or(of.metadata),
            parent_run_id: None,
        };
        // A fork that copies events has the first one as it is.
        let is_copied = mode == ForkMode::Replay || cut.from > 0;
        let inherited = Some(start).filter(|start| is_copied && *start != own);
        let copied_at = source.folded.first_at.filter(|_| cut.from > 0);
        let begin = Begin {
            configurable,
            tags: own.tags,
            metadata: own.metadata,
            inherited,
            copied_at,
            request: key.map(|(_, digest)| digest),
            fork: Some(Fork { source: source_id.to_owned(), from: cut.from, to: cut.to, mode }),
            copied: cut.copied,
            parent: None,
            ..of
        };
        let created = self.runs.begin(&entity, begin, &source.definition, limits).await?;
        Ok((created, cut.from))
    }

    /// Where a branch from number `from` of `events` begins, and its limits. After a breach of a limit of
    /// the run it has the end of its source, and nothing is counted again.
    fn cut_of_branch(
        &self,
        source: &Standing,
        events: &[&RunEvent],
        from: u64,
        configurable: &Map<String, Value>,
    ) -> Result<(Cut, LimitSettings), Error> {
        let at_end = || match source.state.ended {
            Some(_) => Ok((Cut::at_end(from, source.folded.events), unbounded())),
            // It is being stopped, and has no end yet.
            None => Err(Error::RunActive),
        };
        if Cut::is_after_breach(events, from) {
            return at_end();
        }
        let cut = Cut::of_branch(&source.definition, events, from);
        match self.limits_of_branch(&source.definition, configurable, cut.copied) {
            Ok(limits) => Ok((cut, limits)),
            // The branch has the limit that its source breaches next.
            Err(Error::LimitUsedUp { .. })
                if Cut::is_after_breach(events, from.saturating_add(1)) =>
            {
                at_end()
            }
            Err(error) => Err(error),
        }
    }

    /// The limits of a branch: those of its source, unless the overlay sets them.
    fn limits_of_branch(
        &self,
        definition: &Definition,
        configurable: &Map<String, Value>,
        copied: Copied,
    ) -> Result<LimitSettings, Error> {
        let present = self.engine().library.definition(&definition.id);
        if present.is_some_and(|one| one.digest == definition.digest) {
            self.runs.check_configurable(definition, configurable)?;
        }
        let bounds = bounds(configurable, "/runOptionsOverlay/configurable")?;
        self.runs.limits(definition, &bounds, copied)
    }
}

const fn other_mode(mode: ForkMode) -> ForkMode {
    match mode {
        ForkMode::Replay => ForkMode::Branch,
        ForkMode::Branch => ForkMode::Replay,
    }
}
