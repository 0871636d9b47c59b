//! What an entity may do: its spec file, read and checked.

mod check;
mod components;
mod duration;
mod effect;
mod endings;
mod endless;
pub(crate) mod failure_route;
pub mod guard;
mod integration;
mod invariant;
mod limits;
mod lint;
pub(crate) mod refusable;
mod section;
mod spawn;
mod spawn_cycles;
mod states;
mod variable;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use sandglass_model::{Event, Limit, Object, RulesVersion, SpecDigest};
use serde_json::Value;

use crate::session::LimitSettings;

pub use failure_route::FailureCategory;
pub use guard::{Guard, OtherEntities, Scope};
pub use invariant::{INVARIANTS_MAX, Invariant};
pub use limits::run_limits;
pub use sandglass_source::{DIAGNOSTICS_MAX, Diagnostic, Name, Severity};
pub(crate) use spawn::NEW_ID;
pub use spawn_cycles::spawn_cycles;
pub(crate) use variable::type_of;

/// Largest spec file, in bytes: a thousand times what people write by hand.
pub const SOURCE_MAX_BYTES: usize = 1 << 20;
/// Most states of one automaton: people and dashboards cannot handle more.
pub const STATES_MAX: usize = 1_000;
/// Most variables of one automaton: each transition records them.
pub const VARIABLES_MAX: usize = 1_000;
/// Most actions of one automaton.
pub const ACTIONS_MAX: usize = 1_000;
/// Most integrations of one automaton.
pub const INTEGRATIONS_MAX: usize = 1_000;
/// Most integrations that one action may start: as many handlers as an entity may have at a time.
pub const DISPATCHES_MAX: usize = crate::decide::IN_FLIGHT_MAX;
/// Most effects of one action, so that one transition stays one small transaction.
pub const EFFECTS_MAX: usize = 64;
/// Most entities that one transition spawns: each is a write of its own, and the next action of their
/// parent waits for all of them.
pub const SPAWNS_MAX: usize = 8;

/// What an entity may do.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The digest of the file and the rules.
    pub digest: SpecDigest,
    /// The rules by which its entities' decisions are made.
    pub rules: RulesVersion,
    /// The file.
    pub source: String,
    /// Whether the file says that defaults that Sandglass applies are errors.
    pub is_strict: bool,
    /// The automaton's name: the entity type.
    pub name: Name,
    /// Its states, as declared.
    pub states: Vec<Name>,
    /// The state of a new entity.
    pub initial: Name,
    /// The states that take no action.
    pub terminal: BTreeSet<String>,
    /// The states that need no timer.
    pub indefinite: BTreeSet<String>,
    /// The variables.
    pub variables: BTreeMap<String, Variable>,
    /// The variable that holds the conversation that a session belongs to.
    pub conversation: Option<Name>,
    /// The actions, by name.
    pub actions: BTreeMap<String, Action>,
    /// The invariants, as declared.
    pub invariants: Vec<Invariant>,
    /// The integrations, by name.
    pub integrations: BTreeMap<String, Integration>,
    /// The state timers, by state.
    pub timeouts: BTreeMap<String, StateTimeout>,
    /// Its `[limits]`. If there are any, its entities are sessions.
    pub limits: Option<Limits>,
    /// The host functions that it limits by name. Only a host knows which functions exist.
    pub timed_functions: Vec<Name>,
    /// What could not be read.
    unread: Unread,
}

/// Declarations of a file that could not be read, so that their uses are not reported as well.
#[derive(Clone, Debug, Default)]
struct Unread {
    /// Variables without a type.
    variables: BTreeSet<String>,
    /// Names that effects change. If no variable has such a name, that is reported at the effect.
    changed: BTreeSet<String>,
    /// Whether a variable has no name.
    has_variable: bool,
    /// Whether an action has no name.
    has_action: bool,
    /// Actions with parameters that could not be read.
    params: BTreeSet<String>,
}

impl Unread {
    /// Whether `name` may be a variable.
    fn may_be_variable(&self, name: &str) -> bool {
        self.has_variable || self.variables.contains(name)
    }
}

/// What a spec declares about its entities as sessions.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The limits of a run.
    pub settings: LimitSettings,
    /// Their places in the file.
    places: BTreeMap<Limit, Range<usize>>,
    /// The signals that count as progress. Others count as activity only.
    pub material: Vec<String>,
    /// The signals that machines send at intervals, which show no activity.
    pub synthetic: Arc<[String]>,
    /// Whether a run that works only for a handler of another session stops for good when that
    /// session does.
    pub stop_with_parent: bool,
    /// Whether a shutdown of the host stops a run that has work in flight, so that it has to be
    /// resumed. Otherwise the next start finds that work as interrupted.
    pub stop_at_shutdown: bool,
    /// How often a run that a limit stopped is followed by another one automatically, in each
    /// session.
    pub retries: BTreeMap<Limit, u64>,
}

impl Spec {
    /// Whether a shutdown of the host waits for the work of its entities, and stops their runs.
    #[must_use]
    pub fn stops_at_shutdown(&self) -> bool {
        self.limits.as_ref().is_none_or(|limits| limits.stop_at_shutdown)
    }
}

/// The result of reading a spec file.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The spec; `None` if there is an error.
    pub spec: Option<Spec>,
    /// Errors and warnings, in the order of the file, at most [`DIAGNOSTICS_MAX`].
    pub diagnostics: Vec<Diagnostic>,
}

/// A variable of an entity.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Its name.
    pub name: Name,
    /// Its type.
    pub kind: VariableKind,
    /// Its value in a new entity.
    pub initial: Value,
}

/// The type of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableKind {
    /// Text.
    String,
    /// A whole number from 0 to `i64::MAX`, at which it saturates.
    Counter,
    /// True or false.
    Bool,
    /// Any number.
    Number,
    /// A list of texts.
    List,
}

/// An action of an entity.
#[derive(Clone, Debug)]
pub struct Action {
    /// Its name.
    pub name: Name,
    /// A kind for tools of users; it has no effect here.
    pub kind: Option<String>,
    /// The states that take it.
    pub from: Vec<Name>,
    /// The state that it leads to; `None` if the state does not change.
    pub to: Option<Name>,
    /// The names of its parameters.
    pub params: Vec<Name>,
    /// The condition for it to be taken.
    pub guard: Option<Guard>,
    /// The other entities whose states that condition reads.
    pub others: Vec<OtherEntities>,
    /// What it does, in order.
    pub effects: Vec<Effect>,
    /// The integrations that it starts, in order.
    pub dispatches: Vec<String>,
    /// A sentence for people.
    pub hint: Option<String>,
}

/// An effect of an action, besides its transition.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Starts the integrations that wait for this trigger.
    Trigger {
        /// The trigger.
        name: Name,
    },
    /// Adds to a number.
    Increment {
        /// The counter or number.
        variable: Name,
        /// How much.
        by: Assigned,
    },
    /// Subtracts from a number, at most down to 0.
    Decrement {
        /// The counter or number.
        variable: Name,
        /// How much.
        by: Assigned,
    },
    /// Sets a variable.
    Set {
        /// The variable.
        variable: Name,
        /// The new value.
        value: Assigned,
    },
    /// Appends a text to a list.
    Append {
        /// The list.
        variable: Name,
        /// The text.
        value: Assigned,
    },
    /// Removes the item at an index from a list, if there is one.
    RemoveAt {
        /// The list.
        variable: Name,
        /// The index, from 0.
        index: Assigned,
    },
    /// Sends an action to the same entity later.
    Schedule {
        /// The action.
        action: Name,
        /// The delay, in milliseconds.
        delay_ms: u64,
    },
    /// Sends an action to the same entity at the time that a field or variable has, if it has one.
    ScheduleAt {
        /// The action.
        action: Name,
        /// The field or variable.
        field: Name,
    },
    /// Emits an event, for clients that follow the entity's records.
    Emit {
        /// The event.
        event: Name,
    },
    /// Creates another entity.
    Spawn(Box<SpawnEffect>),
}

/// An entity that an action creates.
#[derive(Clone, Debug)]
pub struct SpawnEffect {
    /// Its type.
    pub entity_type: Name,
    /// Its id.
    pub id: SpawnId,
    /// Its first action.
    pub initial_action: Option<Name>,
    /// The parent's variable or field that its id is stored in.
    pub store_id_in: Option<Name>,
    /// The parent's fields that are parameters of its first action.
    pub copy_fields: Vec<Name>,
}

/// Where the id of a spawned entity comes from.
#[derive(Clone, Debug)]
pub enum SpawnId {
    /// This text, in which `{uuid}` is replaced by a new one.
    Template(Name),
    /// The action's parameter of this name; a new one if there is no such text.
    Param(Name),
}

/// The value that an effect uses.
#[derive(Clone, Debug)]
pub enum Assigned {
    /// This value.
    Literal(Value),
    /// The action's parameter of this name. Without it, the effect does nothing.
    Param(Name),
    /// The present value of the variable of this name.
    Variable(Name),
}

impl Effect {
    /// The variable that it changes, and what it uses for that.
    #[must_use]
    pub const fn changes(&self) -> Option<(&Name, &Assigned)> {
        match self {
            Self::Increment { variable, by } | Self::Decrement { variable, by } => {
                Some((variable, by))
            }
            Self::Set { variable, value } | Self::Append { variable, value } => {
                Some((variable, value))
            }
            Self::RemoveAt { variable, index } => Some((variable, index)),
            Self::Trigger { .. }
            | Self::Schedule { .. }
            | Self::ScheduleAt { .. }
            | Self::Emit { .. }
            | Self::Spawn(_) => None,
        }
    }

    /// The type that it converts what it uses to, if its variable is a `kind`.
    #[must_use]
    pub const fn uses(&self, kind: VariableKind) -> VariableKind {
        match self {
            Self::Append { .. } => VariableKind::String,
            Self::RemoveAt { .. } => VariableKind::Counter,
            _ => kind,
        }
    }
}

/// An integration: a handler, when it is started, and the action of each of its endings.
#[derive(Clone, Debug)]
pub struct Integration {
    /// Its name.
    pub name: Name,
    /// The trigger effect or the action that starts it.
    pub trigger: Name,
    /// The condition after the action under which the action starts it; `None` if it always does.
    pub guard: Option<Guard>,
    /// The other entities whose states that condition reads.
    pub others: Vec<OtherEntities>,
    /// The action that it is declared under, as one of its triggers.
    pub declared_under: Option<Name>,
    /// What executes its handlers.
    pub kind: IntegrationKind,
    /// The module that its handlers execute. If it is none, the type and name of what an embedder
    /// provides, such as `adapter:http` or `webhook:notify`.
    pub module: Name,
    /// Configuration for its handlers.
    pub config: BTreeMap<String, String>,
    /// Its budget, in milliseconds: 1 to [`sandglass_model::limit::MAX_BUDGET_MS`].
    pub budget_ms: u64,
    /// Whether the file declares no budget.
    pub budget_defaulted: bool,
    /// The parameter by which an action can reduce the budget.
    pub budget_param: Option<Name>,
    /// The longest wait for its start, in milliseconds: the budget, unless declared.
    pub schedule_to_start_ms: u64,
    /// The limit on a host call, in milliseconds, if the file declares one.
    pub host_call_ms: Option<u64>,
    /// Limits on calls of single functions.
    pub host_calls_ms: BTreeMap<String, u64>,
    /// Whether it outlives the state that started it.
    pub keep_on_exit: bool,
    /// What follows if the host crashes during a handler.
    pub on_crash: OnCrash,
    /// How its handlers count towards the bounds of a run.
    pub counted: Counted,
    /// The action of a success; `None` if the result names it.
    pub on_success: Option<Name>,
    /// The action of a failure, a trap, a limit and a rejection; `None` if such an end is only
    /// recorded. So are the following ones.
    pub on_failure: Option<Name>,
    /// The actions that replace `on_failure` for failures of these categories.
    pub failure_routes: BTreeMap<FailureCategory, Name>,
    /// The action of a deadline that passed.
    pub on_timeout: Option<Name>,
    /// The action of a handler that was lost with its host.
    pub on_interrupted: Option<Name>,
    /// The action of a handler that was stopped.
    pub on_cancelled: Option<Name>,
}

/// What executes the handlers of an integration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegrationKind {
    /// A module.
    Wasm,
    /// Something that an embedder provides.
    Adapter,
    /// A request that an embedder sends.
    Webhook,
}

impl Integration {
    /// The budget of a handler that is started with `params`, in milliseconds: the one that these
    /// request, if it is a whole number from 1 to the declared budget, or else the declared one.
    #[must_use]
    pub fn budget_for(&self, params: &Object) -> u64 {
        let requested = self.budget_param.as_ref().and_then(|name| params.get(name.as_str()));
        let requested_ms = requested.and_then(Value::as_u64).filter(|ms| *ms > 0);
        requested_ms.map_or(self.budget_ms, |ms| ms.min(self.budget_ms))
    }
}

/// What follows if the host crashes during a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCrash {
    /// It ends as interrupted: its effects may have landed.
    #[default]
    Interrupt,
    /// It is started again, with the same dispatch id.
    Rerun,
}

/// How the handlers of an integration count towards [`Limit::MaxHandlerRuns`] and
/// [`Limit::MaxLoopIterations`] of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// As handlers that the run starts.
    #[default]
    Handler,
    /// As handlers, and as turns of a loop. If a spec has such an integration, only these are its
    /// turns.
    Turn,
    /// They do not count, because they continue what another handler began.
    Continuation,
}

/// The timer of a state: what happens if nothing else does.
#[derive(Clone, Debug)]
pub struct StateTimeout {
    /// The state.
    pub state: Name,
    /// How long nothing may be dispatched in the state, in milliseconds.
    pub after_ms: u64,
    /// The action that it takes.
    pub on_timeout: Name,
    /// Signals of other entities and from outside that restart it.
    pub reset_on: Vec<Name>,
    /// How often it may fire for one entity; `None` for any number.
    pub max_occurrences: Option<u32>,
    /// The parameters of the action.
    pub params: Object,
}

/// Whether defaults that Sandglass applies, and keys that it does not know, are errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Only if the file has `strict = true` in `[automaton]`.
    #[default]
    AsDeclared,
    /// Always.
    Strict,
}

impl Spec {
    /// Reads and checks a spec file, and returns all errors at once. Its entities are decided by
    /// [`RulesVersion::CURRENT`].
    #[must_use]
    pub fn parse(source: &str) -> Parsed {
        Self::parse_with(source, Strictness::AsDeclared)
    }

    /// As [`Spec::parse`], as strictly as `strictness` says.
    #[must_use]
    pub fn parse_with(source: &str, strictness: Strictness) -> Parsed {
        section::parse(source, strictness)
    }

    /// Reads a spec that a journal holds, registered with `rules`. It was valid when it was
    /// loaded, and stays readable if the checks have become stricter since.
    #[must_use]
    pub fn parse_recorded(source: &str, rules: RulesVersion) -> Parsed {
        section::parse_recorded(source, rules)
    }

    /// The record that registers it.
    #[must_use]
    pub fn registered(&self) -> Event {
        Event::SpecRegistered {
            digest: self.digest,
            automaton: self.name.to_string(),
            source: self.source.clone(),
            rules: self.rules,
        }
    }

    /// Reads and checks a spec file that may not be text.
    #[must_use]
    pub fn parse_bytes(source: &[u8], strictness: Strictness) -> Parsed {
        match std::str::from_utf8(source) {
            Ok(text) => Self::parse_with(text, strictness),
            Err(_) => {
                let diagnostics = sandglass_source::not_text(source, "a spec file");
                Parsed { spec: None, diagnostics }
            }
        }
    }

    /// Whether `state` takes no action.
    #[must_use]
    pub fn is_terminal(&self, state: &str) -> bool {
        self.terminal.contains(state)
    }

    /// The endings of `integration` that `state` does not accept, as `key = action`. While there
    /// are any, none of its handlers may start in that state.
    #[must_use]
    pub fn endings_not_taken(&self, integration: &Integration, state: &str) -> Vec<String> {
        let is_taken = |action: &str| {
            let declared = self.actions.get(action);
            !self.is_terminal(state) && declared.is_some_and(|action| action.is_taken_from(state))
        };
        let missing = integration.endings().filter(|(_, action)| !is_taken(action));
        missing.map(|(ending, action)| format!("{ending} = {action}")).collect()
    }

    /// Whether it declares which handlers are the turns of its loop.
    #[must_use]
    pub fn has_turns(&self) -> bool {
        self.integrations.values().any(|integration| integration.counted == Counted::Turn)
    }

    /// How a handler of this integration counts towards the bounds of a run. An undeclared one
    /// counts as any other.
    #[must_use]
    pub fn counted(&self, integration: &str) -> Counted {
        self.integrations.get(integration).map(|one| one.counted).unwrap_or_default()
    }

    /// The variables of a new entity.
    #[must_use]
    pub fn initial_variables(&self) -> Object {
        self.variables.iter().map(|(name, of)| (name.clone(), of.initial.clone())).collect()
    }

    /// The declared action whose name is nearest to `wanted`.
    #[must_use]
    pub fn nearest_action(&self, wanted: &str) -> Option<&str> {
        sandglass_source::nearest(wanted, self.actions.keys().map(String::as_str))
    }
}

impl Action {
    /// The entities that it spawns, in order.
    pub fn spawns(&self) -> impl Iterator<Item = &SpawnEffect> {
        self.effects.iter().filter_map(|effect| match effect {
            Effect::Spawn(spawn) => Some(&**spawn),
            _ => None,
        })
    }

    /// Whether it is declared for `state`.
    #[must_use]
    pub fn is_taken_from(&self, state: &str) -> bool {
        self.from.iter().any(|from| from == state)
    }

    /// The state after it was taken in `state`.
    #[must_use]
    pub fn leads_to<'a>(&'a self, state: &'a str) -> &'a str {
        self.to.as_deref().unwrap_or(state)
    }

    /// Whether a state that it is declared for may still refuse it.
    #[must_use]
    pub fn may_be_refused(&self) -> bool {
        self.guard.is_some()
    }
}

impl Integration {
    /// Its endings that have an action, as the key and the action.
    pub fn endings(&self) -> impl Iterator<Item = (&'static str, &Name)> {
        let routes = self.failure_routes.values().map(|action| (failure_route::KEY, action));
        let declared = [
            ("on_success", &self.on_success),
            ("on_failure", &self.on_failure),
            ("on_timeout", &self.on_timeout),
            ("on_interrupted", &self.on_interrupted),
            ("on_cancelled", &self.on_cancelled),
        ];
        let declared = declared.into_iter();
        declared.filter_map(|(key, action)| Some((key, action.as_ref()?))).chain(routes)
    }
}
