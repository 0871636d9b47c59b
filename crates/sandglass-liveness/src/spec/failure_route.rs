//! Reads the `failure_routes` of an integration: the action of a failure by its category.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{FailureKind, Outcome, RejectionKind, RulesVersion};
use sandglass_source::{Diagnostics, Table, did_you_mean};
use serde_json::{Value, json};

use super::{Name, Spec};

/// The key of an integration.
pub(super) const KEY: &str = "failure_routes";

/// The parameter of a routed action: the failure.
pub(crate) const PARAM: &str = "failure";

/// What a failure means for the operator who has to act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureCategory {
    /// It may work later.
    Transient,
    /// What was asked for, or what has to execute it, is not valid.
    Integrity,
    /// It is not allowed.
    Authorization,
    /// A budget is used up.
    Budget,
    /// Its effects may have landed.
    Ambiguous,
    /// It will not work.
    Permanent,
}

impl FailureCategory {
    const ALL: [Self; 6] = [
        Self::Permanent,
        Self::Ambiguous,
        Self::Integrity,
        Self::Transient,
        Self::Budget,
        Self::Authorization,
    ];

    /// The name in spec files and results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Integrity => "integrity",
            Self::Authorization => "authorization",
            Self::Budget => "budget",
            Self::Ambiguous => "ambiguous",
            Self::Permanent => "permanent",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.as_str() == name)
    }

    /// The category of a failed handler: the one that its guest stated, or else what the kind of
    /// failure implies. `None` if it did not fail.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Failed(failure) => Some(match failure.kind {
                FailureKind::TypedFailure => {
                    let typed = failure.typed();
                    typed.and_then(|typed| Self::named(&typed.category)).unwrap_or(Self::Permanent)
                }
                FailureKind::GuestFailure | FailureKind::NoAction | FailureKind::ActionNotTaken => {
                    Self::Permanent
                }
                FailureKind::Denied => Self::Authorization,
                // The guest worked, but its result cannot be read.
                _ => Self::Ambiguous,
            }),
            Outcome::Trapped(_) | Outcome::Limit(_) | Outcome::TimedOut(_) => Some(Self::Ambiguous),
            Outcome::Rejected(rejection) => Some(match rejection.kind {
                RejectionKind::HostUnavailable => Self::Transient,
                RejectionKind::MissingGrant => Self::Authorization,
                RejectionKind::ModuleTooLarge
                | RejectionKind::NeedsTooMuch
                | RejectionKind::CompileLimit => Self::Budget,
                _ => Self::Integrity,
            }),
            Outcome::Completed(_) | Outcome::Cancelled(_) | Outcome::Interrupted => None,
        }
    }

    /// Whether a later attempt can help, and whether the effects of this one have landed.
    const fn advice(self) -> (&'static str, &'static str) {
        match self {
            Self::Transient => ("with_backoff", "not_applied"),
            Self::Authorization => ("after_authorization", "not_applied"),
            Self::Integrity | Self::Budget => ("never", "not_applied"),
            Self::Ambiguous | Self::Permanent => ("reconcile", "unknown"),
        }
    }
}

/// The value of [`PARAM`]: the typed failure that the guest returned, or what the host knows in its
/// place.
pub(crate) fn envelope(category: FailureCategory, outcome: &Outcome) -> Value {
    if let Outcome::Failed(failure) = outcome
        && failure.typed().is_some()
        && let Some(result) = &failure.result
    {
        return result["typed_failure"].clone();
    }
    let (kind, message) = outcome.error().unwrap_or_default();
    let (retryability, applied) = category.advice();
    json!({
        "version": 1,
        "category": category.as_str(),
        "code": kind,
        "retryability": retryability,
        "outcome": applied,
        "diagnostic": message,
    })
}

/// The action for all failures without a route: the one of the first category of these that has one.
pub(super) fn fallback(routes: &BTreeMap<FailureCategory, Name>) -> Option<&Name> {
    FailureCategory::ALL.iter().find_map(|category| routes.get(category))
}

/// Reads the routes of an integration, which the action `under` triggers if there is one. All
/// actions have been read.
pub(super) fn read(
    integration: &Table<'_, '_>,
    under: Option<&Name>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> BTreeMap<FailureCategory, Name> {
    let (mut routes, mut seen) = (BTreeMap::new(), BTreeSet::new());
    if spec.rules < RulesVersion::V3 {
        return routes;
    }
    let label = format!("a failure route of {}", integration.label);
    for table in integration.tables(KEY, |_| label.clone(), out) {
        table.only(&["category", "action", "to_state"], out);
        let Some(category) = category(&table, out) else { continue };
        if seen.insert(category) {
            routes.extend(action(&table, under, spec, out).map(|action| (category, action)));
        } else {
            let message =
                format!("{} has two routes for `{}`", integration.label, category.as_str());
            out.error_with_help(&table.span, message, "keep one of them");
        }
    }
    if let (false, Some(on_failure)) = (routes.is_empty(), integration.value("on_failure")) {
        let message = format!("{} has both `on_failure` and `{KEY}`", integration.label);
        let help = "`on_failure` is taken for the categories without a route; remove it, or the \
                    routes";
        out.report_default(&on_failure.span(), message, help);
    }
    routes
}

fn category(route: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<FailureCategory> {
    let name = route.required_text("category", out)?;
    let category = FailureCategory::named(&name);
    if category.is_none() {
        let known = FailureCategory::ALL.map(FailureCategory::as_str);
        let message = format!("no failure is of the category `{name}`");
        out.error_with_help(name.span(), message, did_you_mean(&name, known));
    }
    category
}

/// The action of a route: named, or the only one that leads from the handler's state to `to_state`.
fn action(
    route: &Table<'_, '_>,
    under: Option<&Name>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Name> {
    let (action, to_state) = (route.name("action", out), route.name("to_state", out));
    let to_state = match (action, to_state) {
        (Some(action), None) => return Some(action),
        (None, Some(to_state)) => to_state,
        _ => {
            let message = format!("{} names one of `action` and `to_state`", route.label);
            out.error_with_help(&route.span, message, "write `action = \"ACTION\"`");
            return None;
        }
    };
    let source = under.and_then(|under| spec.actions.get(under.as_str()));
    let of_handler = source.and_then(|source| source.to.as_deref());
    let mut leading = spec.actions.values().filter(|action| {
        source.is_none_or(|source| source.name != action.name)
            && action.to.as_ref() == Some(&to_state)
            && of_handler.is_some_and(|state| action.is_taken_from(state))
    });
    match (leading.next(), leading.next()) {
        (Some(only), None) => Some(Name::new(only.name.as_str(), to_state.span().clone())),
        (first, _) => {
            let which = if first.is_none() { "no" } else { "more than one" };
            let message = format!(
                "{which} action leads from the state of the handler to `{to_state}`, the \
                 `to_state` of {}",
                route.label
            );
            out.error_with_help(to_state.span(), message, "name it: `action = \"ACTION\"`");
            None
        }
    }
}
