//! Folds a journal into its specs and entities. It does not question the records; a replay does.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{EntityRef, Event, Record, RulesVersion, SpecDigest};

use crate::entity::Entity;
use crate::spec::Spec;

/// The specs and entities of a journal, up to one of its records.
#[derive(Clone, Debug, Default)]
pub struct Fold {
    specs: BTreeMap<SpecDigest, Arc<Spec>>,
    /// Specs that need not be parsed again when they are registered.
    parsed: BTreeMap<SpecDigest, Arc<Spec>>,
    entities: BTreeMap<EntityRef, Entity>,
}

/// Why a record does not fit the ones before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The text and rules version of a spec do not have the recorded digest.
    #[error("the text and rules version of spec {0} have another digest")]
    SpecAltered(SpecDigest),
    /// A spec is decided by rules that this build does not know.
    #[error(
        "spec {digest} needs version {rules} of the rules, and this build knows versions 1 to {}; \
         a newer sandglass wrote this journal, or it is damaged",
        RulesVersion::CURRENT
    )]
    UnknownRules {
        /// Its digest.
        digest: SpecDigest,
        /// The rules that the record names.
        rules: RulesVersion,
    },
    /// The text of a spec is not a valid spec.
    #[error("spec {digest} can't be read: {first}")]
    SpecUnreadable {
        /// Its digest.
        digest: SpecDigest,
        /// The first error in it.
        first: String,
    },
    /// A spec is registered under the name of another automaton.
    #[error("spec {digest} is of the automaton `{name}`")]
    SpecMisnamed {
        /// Its digest.
        digest: SpecDigest,
        /// The name of its automaton.
        name: String,
    },
    /// An entity obeys a spec that is not in the journal.
    #[error("spec {0} is not in the journal")]
    UnknownSpec(SpecDigest),
    /// A record is about an entity that was never created.
    #[error("{0} was never created")]
    UnknownEntity(EntityRef),
    /// An entity is created a second time.
    #[error("{0} was created before")]
    EntityExists(EntityRef),
    /// A record of this kind names no entity.
    #[error("the record names no entity")]
    NoEntity,
}

impl Fold {
    /// An empty fold.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A fold without entities, whose specs are known without their records.
    #[must_use]
    pub fn of(specs: BTreeMap<SpecDigest, Arc<Spec>>) -> Self {
        Self { specs, ..Self::default() }
    }

    /// An empty fold that uses these specs, without parsing them again, when the journal registers
    /// them.
    #[must_use]
    pub fn with_parsed(specs: impl IntoIterator<Item = Arc<Spec>>) -> Self {
        let parsed = specs.into_iter().map(|spec| (spec.digest, spec)).collect();
        Self { parsed, ..Self::default() }
    }

    /// Folds in one more record.
    ///
    /// # Errors
    /// It does not fit the ones before it; nothing was changed.
    pub fn apply(&mut self, record: &Record) -> Result<(), Unfit> {
        if let Event::SpecRegistered { digest, automaton, source, rules } = &record.event {
            return self.register(*digest, automaton, source, *rules);
        }
        let name = record.entity.as_ref().ok_or(Unfit::NoEntity)?;
        if let Event::Created { spec, .. } = &record.event {
            if self.entities.contains_key(name) {
                return Err(Unfit::EntityExists(name.clone()));
            }
            self.specs.get(spec).ok_or(Unfit::UnknownSpec(*spec))?;
            let created = Entity::created(name.clone(), &record.event, record.at);
            self.entities.extend(created.map(|entity| (name.clone(), entity)));
            return Ok(());
        }
        let Some(entity) = self.entities.get_mut(name) else {
            return Err(Unfit::UnknownEntity(name.clone()));
        };
        let spec = self.specs.get(&entity.spec).ok_or(Unfit::UnknownSpec(entity.spec))?;
        if let Event::SpecChanged { to, .. } = &record.event {
            self.specs.get(to).ok_or(Unfit::UnknownSpec(*to))?;
        }
        entity.apply(spec, &record.event, record.at);
        Ok(())
    }

    /// The entity of this name.
    #[must_use]
    pub fn entity(&self, name: &EntityRef) -> Option<&Entity> {
        self.entities.get(name)
    }

    /// The spec of this digest.
    #[must_use]
    pub fn spec(&self, digest: SpecDigest) -> Option<&Arc<Spec>> {
        self.specs.get(&digest)
    }

    /// All entities, by name.
    pub fn entities(&self) -> impl Iterator<Item = &Entity> {
        self.entities.values()
    }

    /// Removes an entity from the fold. Later records about it do not fit.
    pub fn take(&mut self, name: &EntityRef) -> Option<Entity> {
        self.entities.remove(name)
    }

    /// Adds an entity as its records up to one of them made it. Returns false, and changes nothing,
    /// if its spec is not known.
    pub fn put(&mut self, entity: Entity) -> bool {
        let is_known = self.specs.contains_key(&entity.spec);
        if is_known {
            self.entities.insert(entity.entity.clone(), entity);
        }
        is_known
    }

    /// All specs, by digest.
    #[must_use]
    pub const fn specs(&self) -> &BTreeMap<SpecDigest, Arc<Spec>> {
        &self.specs
    }

    fn register(
        &mut self,
        digest: SpecDigest,
        automaton: &str,
        source: &str,
        rules: RulesVersion,
    ) -> Result<(), Unfit> {
        if !rules.is_known() {
            return Err(Unfit::UnknownRules { digest, rules });
        }
        if SpecDigest::of(source, rules) != digest {
            return Err(Unfit::SpecAltered(digest));
        }
        if self.specs.contains_key(&digest) {
            return Ok(());
        }
        // Equal digests mean equal texts and rules, and so equal specs.
        if let Some(spec) = self.parsed.get(&digest).filter(|spec| *spec.name == *automaton) {
            self.specs.insert(digest, Arc::clone(spec));
            return Ok(());
        }
        let parsed = Spec::parse_recorded(source, rules);
        let Some(spec) = parsed.spec else {
            let first = parsed.diagnostics.first().map(ToString::to_string).unwrap_or_default();
            return Err(Unfit::SpecUnreadable { digest, first });
        };
        if spec.name != *automaton {
            return Err(Unfit::SpecMisnamed { digest, name: spec.name.to_string() });
        }
        self.specs.insert(digest, Arc::new(spec));
        Ok(())
    }
}
