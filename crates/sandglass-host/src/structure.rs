//! Checks the structure of a module's bytes before anything recurses into them, or takes more time or
//! memory than their size suggests.
//!
//! The validator and the compiler trust a module to be shaped as toolchains shape it: a few
//! kilobytes of nested types overflow their stack, and a few more of nested components,
//! segments or branches cost them gigabytes and minutes. The scan here uses no recursion, and
//! its time and memory are linear in the bytes. It counts what is expensive behind it, against
//! the [`Bound`]s.
//!
//! It also computes what an instance of the module occupies before its code runs
//! ([`InstanceState`]): a component may instantiate one module very often.

mod body;
mod bounds;
mod component;
mod core_module;
mod cost;
mod text;
mod type_scope;
mod types;

use sandglass_model::{Rejection, RejectionKind};
use wasmparser::{BinaryReaderError, Encoding, Parser, Payload};

use crate::module::Kind;
use crate::sandbox::Concurrency;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::text::printable;

pub use bounds::Bound;
use bounds::Counts;
use component::ComponentScope;
use core_module::ModuleScope;
pub(crate) use core_module::page_bytes;
pub(crate) use cost::InstanceState;
pub(crate) use text::to_binary;
use type_scope::TypeScope;

/// Whether the bodies of functions are read. They are most of a module, and nothing else depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bodies {
    Checked,
    Skipped,
}

/// What a check finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checks {
    /// What the module occupies before its code runs.
    pub(crate) state: InstanceState,
    /// Most bulk instructions on memories in one function; 0 if the bodies are skipped.
    pub(crate) most_bulk: u64,
}

/// Checks `binary`, a core module or a component, against all [`Bound`]s, or without `bodies` against
/// those of everything else.
///
/// # Errors
/// It exceeds one, or is malformed. The rejection names the figure, the offset and the bound.
pub(crate) fn check(binary: &[u8], bodies: Bodies) -> Result<Checks, Rejection> {
    let (scanned, counts) = scan(binary, bodies);
    let state = scanned.map_err(|fault| fault.into_rejection(Kind::of(binary)))?;
    Ok(Checks { state, most_bulk: counts.most_bulk })
}

/// What a module needs of the engine that executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demands {
    pub(crate) concurrency: Concurrency,
    /// How many stacks a handler run may have at the same time: one for each instance of a component
    /// whose task waits, and one for the task that runs.
    pub(crate) stacks: u64,
}

/// Returns what the module in `binary` needs of its engine, as far as it can be read.
pub(crate) fn demands(binary: &[u8]) -> Demands {
    let (_, counts) = scan(binary, Bodies::Skipped);
    let concurrency = match counts.is_concurrent {
        true => Concurrency::SeveralCalls,
        false => Concurrency::OneCall,
    };
    let stacks = match (concurrency, counts.figure(Bound::Components)) {
        (Concurrency::OneCall, _) => 1,
        (Concurrency::SeveralCalls, 0 | 1) => 2,
        // Only an instance with code of its own can have a task.
        (Concurrency::SeveralCalls, _) => counts.figure(Bound::Instances).saturating_add(1),
    };
    Demands { concurrency, stacks }
}

/// Returns how much of each [`Bound`] the module in `binary` uses, as long as it can be read. For tools
/// that compare the bounds with real modules.
#[must_use]
pub fn structural_figures(binary: &[u8]) -> Vec<(Bound, u64)> {
    let (_, counts) = scan(binary, Bodies::Checked);
    Bound::ALL.iter().map(|bound| (*bound, counts.figure(*bound))).collect()
}

/// The result of a check: `Ok` if no bound is exceeded so far.
type Checked = Result<(), Fault>;

/// Why a module is rejected.
enum Fault {
    /// It cannot be read, with the message of the parser.
    Malformed(String),
    TooMuch {
        bound: Bound,
        figure: u64,
        offset: usize,
    },
}

impl From<BinaryReaderError> for Fault {
    fn from(error: BinaryReaderError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl Fault {
    fn into_rejection(self, module: Kind) -> Rejection {
        match self {
            Self::Malformed(error) => rejection(
                RejectionKind::InvalidModule,
                format!("{module} is not valid: {}", printable(&error)),
            ),
            Self::TooMuch { bound, figure, offset } => rejection(
                RejectionKind::ModuleTooLarge,
                format!(
                    "{module} has {figure} {} (at offset {offset}), and at most {} are allowed; {}",
                    bound.what(),
                    bound.most(),
                    bound.remedy()
                ),
            ),
        }
    }
}

/// A module or component whose sections are being read.
enum Scope {
    Module(ModuleScope),
    Component(ComponentScope),
}

impl Scope {
    /// The types of a component.
    const fn types(&mut self) -> Option<&mut TypeScope> {
        match self {
            Self::Component(component) => Some(&mut component.types),
            Self::Module(_) => None,
        }
    }
}

fn scan(binary: &[u8], bodies: Bodies) -> (Result<InstanceState, Fault>, Counts) {
    let (counts, whole) = (Counts::default(), InstanceState::default());
    let mut scanner = Scanner { binary, bodies, counts, open: Vec::new(), whole };
    let scanned = scanner.scan();
    (scanned, scanner.counts)
}

struct Scanner<'a> {
    binary: &'a [u8],
    bodies: Bodies,
    counts: Counts,
    /// The innermost last. [`Bound::ComponentDepth`] bounds its length.
    open: Vec<Scope>,
    whole: InstanceState,
}

impl Scanner<'_> {
    fn scan(&mut self) -> Result<InstanceState, Fault> {
        for payload in Parser::new(0).parse_all(self.binary) {
            match payload? {
                Payload::Version { encoding, range, .. } => {
                    self.counts.offset = range.start;
                    self.enter(encoding)?;
                }
                Payload::End(offset) => {
                    self.counts.offset = offset;
                    self.leave()?;
                }
                Payload::CodeSectionEntry(_) if self.bodies == Bodies::Skipped => {}
                payload => match self.open.last_mut() {
                    Some(Scope::Module(module)) => module.take(payload, &mut self.counts)?,
                    Some(Scope::Component(_)) => self.take_in_component(payload)?,
                    None => {}
                },
            }
        }
        // The parser reports an unfinished module as an error, so one was completed.
        Ok(self.whole)
    }

    fn take_in_component(&mut self, payload: Payload<'_>) -> Checked {
        if let Payload::ComponentTypeSection(section) = &payload {
            return types::check(&mut self.open, self.binary, section.range(), &mut self.counts);
        }
        component::take(&mut self.open, payload, &mut self.counts)
    }

    fn enter(&mut self, encoding: Encoding) -> Checked {
        let depth = self.open.len() as u64 + 1;
        self.counts.reach(Bound::ComponentDepth, depth)?;
        self.open.push(match encoding {
            Encoding::Module => {
                self.counts.add(Bound::Modules, 1)?;
                Scope::Module(ModuleScope::default())
            }
            Encoding::Component => {
                self.counts.add(Bound::Components, 1)?;
                Scope::Component(ComponentScope::of_depth(depth))
            }
        });
        Ok(())
    }

    fn leave(&mut self) -> Checked {
        let Some(ended) = self.open.pop() else { return Ok(()) };
        match (ended, self.open.last_mut()) {
            (Scope::Module(module), Some(Scope::Component(parent))) => {
                parent.define_module(module.cost());
            }
            (Scope::Component(component), Some(Scope::Component(parent))) => {
                parent.define_component(&component, &mut self.counts)?;
            }
            (ended, _) => {
                let cost = match ended {
                    Scope::Module(module) => module.cost(),
                    Scope::Component(component) => component.cost(),
                };
                cost.check(&mut self.counts)?;
                self.whole = cost.state;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
