//! The type of the table of host functions that guests can import: their names, classes and bounds. The
//! functions themselves are in `sandglass-host`, `src/abi/`.

mod reach;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::HostCallMetrics;

use crate::capability::Guest;
use crate::host_memory::HostMemory;
use crate::sync::lock;

pub use reach::{Reach, SEND_AT_ONCE, WAIT_INSIDE, WASI_SENDS};

/// How a host function behaves towards the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It never waits.
    Instant,
    /// It may wait. When the deadline passes, it is dropped where it waits.
    Async,
    /// It occupies a thread for a bounded time. If its run ends first, it continues, and its result is
    /// discarded.
    Blocking,
}

/// How much of a guest's memory one call of a host function may read. `abi::guest_memory` enforces
/// it for core modules, and Wasmtime's host-call fuel for components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Its numbers alone.
    Numbers,
    /// So many bytes.
    Bytes(u64),
    /// The largest response that is granted, and a name.
    Response,
    /// The granted scratch, and a name.
    Scratch,
    /// The run's whole account. `guest_memory` checks what is left of it.
    HostMemory,
    /// What one call of a component may pass ([`HostMemory::call_bytes`]).
    Call,
}

impl Reads {
    /// So many bytes.
    pub const fn bytes(bytes: u32) -> Self {
        Self::Bytes(bytes as u64)
    }

    /// The bound for `guest`, in bytes.
    pub fn bytes_for(self, guest: &Guest) -> u64 {
        /// Longest name that comes with a value.
        const NAME_BYTES: u64 = 1024;
        match self {
            Self::Numbers => 0,
            Self::Bytes(bytes) => bytes,
            Self::Response => guest.grants.response_bytes.saturating_add(NAME_BYTES),
            Self::Scratch => guest.grants.scratch_bytes.saturating_add(NAME_BYTES),
            Self::HostMemory => guest.memory.limit(),
            Self::Call => HostMemory::call_bytes(guest.grants.response_bytes) as u64,
        }
    }
}

/// One host function of a [`Functions`] table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionId(u16);

impl FunctionId {
    /// Its place in the table.
    #[inline]
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// A function that components can import.
#[derive(Clone, Copy, Debug)]
pub struct Import {
    /// Package and interface; with the part of the version that compatible versions share
    /// (`@0.3`) if this host has it in two incompatible versions and this is the second.
    pub interface: &'static str,
    /// Its name in the interface, as components spell it.
    pub function: &'static str,
    /// How it behaves towards the deadline.
    pub class: Class,
}

impl FunctionId {
    /// The id of a function of `imports`, which are added to a table that has `first` functions. It is
    /// computed at compile time, and compilation fails if the function is missing.
    pub const fn of(first: usize, imports: &[Import], interface: &str, function: &str) -> Self {
        let mut at = 0;
        loop {
            if same(imports[at].function, function) && same(imports[at].interface, interface) {
                #[allow(clippy::cast_possible_truncation, reason = "a few hundred functions")]
                return Self((first + at) as u16);
            }
            at += 1;
        }
    }
}

/// `==` for constants.
const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The host functions of one linker, in the order in which they were linked.
#[derive(Debug, Default)]
pub struct Functions(Vec<Function>);

/// A host function of a [`Functions`] table.
#[derive(Debug)]
#[non_exhaustive]
pub struct Function {
    /// The module or interface that guests import it from.
    pub module: Cow<'static, str>,
    /// Its name in the module.
    pub field: Cow<'static, str>,
    /// Its name in reports and labels: `module.field`, or `field` alone if that is unique.
    pub name: &'static str,
    /// How it behaves towards the deadline.
    pub class: Class,
    /// What a call can reach.
    pub reach: Reach,
    /// How much of a guest's memory one call may read.
    pub reads: Reads,
    /// The metrics of its calls; created by the first call.
    metrics: OnceLock<HostCallMetrics>,
}

/// Returns `name` as a static text, so that reports carry it without a copy. There are only as many
/// names as functions in the code of the host and its embedder.
fn intern(name: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = lock(&NAMES);
    if let Some(known) = names.get(name.as_str()) {
        return known;
    }
    let name = name.leak();
    names.insert(name);
    name
}

impl Functions {
    /// Adds a function, called `name` in reports, which guests import as `field` from `module`.
    pub fn add(
        &mut self,
        module: impl Into<Cow<'static, str>>,
        field: impl Into<Cow<'static, str>>,
        name: String,
        class: Class,
        reads: Reads,
    ) -> FunctionId {
        let id =
            u16::try_from(self.0.len()).expect("a linker has a few thousand functions at most");
        let (module, field, name): (Cow<'static, str>, Cow<'static, str>, _) =
            (module.into(), field.into(), intern(name));
        let reach = Reach::of(&module, &field, class);
        let metrics = OnceLock::new();
        self.0.push(Function { module, field, name, class, reach, reads, metrics });
        FunctionId(id)
    }

    /// Adds all of `imports`, in their order.
    pub fn add_imports(&mut self, imports: &[Import]) {
        for import in imports {
            let Import { interface, function, class } = *import;
            let unversioned = interface.split('@').next().unwrap_or(interface);
            self.add(interface, function, format!("{unversioned}.{function}"), class, Reads::Call);
        }
    }

    /// The name of a function in reports and labels.
    pub fn name(&self, id: FunctionId) -> &'static str {
        self.0[usize::from(id.0)].name
    }

    /// How much of a guest's memory one call of it may read.
    #[inline]
    pub fn reads(&self, id: FunctionId) -> Reads {
        self.0[usize::from(id.0)].reads
    }

    /// What a call of it can reach.
    #[inline]
    pub fn reach(&self, id: FunctionId) -> Reach {
        self.0[usize::from(id.0)].reach
    }

    /// Measures that a call took `time`. `metrics` are those of the host.
    #[inline]
    pub fn took(&self, id: FunctionId, metrics: &Metrics, time: Duration) {
        // A replay has disabled metrics, which must not be kept for other runs.
        if !metrics.is_enabled() {
            return;
        }
        let Function { name, metrics: looked, .. } = &self.0[usize::from(id.0)];
        looked.get_or_init(|| metrics.host_call_metrics(name)).took(time);
    }

    /// The name of the function with this number; `None` if there is none.
    pub fn at(&self, place: u64) -> Option<&str> {
        let function = self.0.get(usize::try_from(place).ok()?)?;
        Some(function.name)
    }

    /// The id of the function with this number; `None` if there is none.
    pub fn id(&self, number: u64) -> Option<FunctionId> {
        let number = u16::try_from(number).ok()?;
        (usize::from(number) < self.0.len()).then_some(FunctionId(number))
    }

    /// Whether a guest can wait in the function.
    pub fn can_wait(&self, id: FunctionId) -> bool {
        self.0[usize::from(id.0)].class != Class::Instant
    }

    /// The functions, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &Function> {
        self.0.iter()
    }

    /// The names of all functions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|function| function.name)
    }

    /// The names of the functions that may have a time limit.
    pub fn timed(&self) -> impl Iterator<Item = &'static str> {
        let waits = |function: &&Function| {
            function.class != Class::Instant && !function.module.starts_with("wasi")
        };
        self.0.iter().filter(waits).map(|function| function.name)
    }

    /// The modules or interfaces of the functions.
    pub fn interfaces(&self) -> impl Iterator<Item = &str> {
        self.0.chunk_by(|one, next| one.module == next.module).map(|chunk| &*chunk[0].module)
    }

    /// The function that guests import as `field` from `module`.
    pub fn find(&self, module: &str, field: &str) -> Option<&Function> {
        self.0.iter().find(|function| function.module == module && function.field == field)
    }

    /// The name of this import in reports; `None` if a guest cannot wait in it.
    pub fn waiting(&self, module: &str, field: &str) -> Option<&str> {
        self.find(module, field)
            .filter(|function| function.class != Class::Instant)
            .map(|function| function.name)
    }
}
