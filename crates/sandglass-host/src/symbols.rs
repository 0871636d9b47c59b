//! Resolves frames of a guest's stack to functions, files and lines.
//!
//! The thread of a killed guest only captures offsets in the module's file, because names and debug
//! information come from the module's author, and reading them may take seconds and gigabytes. They are
//! parsed when a frame first needs them, once per module, one module at a time, not on the threads that
//! execute guests, and within a budget of work and memory. A frame that is not resolved keeps its
//! offset.

mod budget;
mod debug;
mod line_header;
mod names;
mod sections;
pub(crate) mod text;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_model::{Frame, ModuleHash};
use tokio::sync::{Semaphore, watch};

use crate::store::demangle;
use budget::{Budget, Exceeded};
use debug::DebugTable;
use names::Names;
use sandglass_supervisor::settings::MAX_FRAMES;
use sandglass_supervisor::text::printable;
use sections::CoreSections;
pub(crate) use sections::hide_names;

/// Longest wait for the symbols of a module when its frames are shown. Those of other modules may have
/// to be parsed first.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(5);

/// One module at a time in the whole process, to bound the memory for parsing.
static PARSING: Semaphore = Semaphore::const_new(1);

/// The symbols of one module.
#[derive(Debug)]
pub(crate) struct Symbols {
    module: ModuleHash,
    /// Taken when parsing begins.
    sections: Mutex<Vec<CoreSections>>,
    /// `None` until it is parsed.
    table: watch::Sender<Option<Arc<Table>>>,
}

impl Symbols {
    /// Copies the sections of `binary` with symbols. They are parsed later.
    pub(crate) fn of(module: ModuleHash, binary: &[u8]) -> Arc<Self> {
        let sections = sections::of(binary);
        let empty = sections.is_empty().then(|| Arc::new(Table::default()));
        let table = watch::Sender::new(empty);
        Arc::new(Self { module, sections: Mutex::new(sections), table })
    }

    /// Resolves frames that have only an offset, innermost first. Waits at most `longest` for the
    /// module's symbols; after that, parsing continues without the caller.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub(crate) async fn resolve(
        self: &Arc<Self>,
        frames: Vec<Frame>,
        longest: Duration,
    ) -> Vec<Frame> {
        if frames.iter().all(is_resolved) {
            return frames;
        }
        let parsed = self.table.borrow().clone();
        let table = match parsed {
            Some(table) => Some(table),
            None => {
                let mut table = self.table.subscribe();
                self.start_parsing();
                #[allow(clippy::disallowed_methods, reason = "parsing takes real time")]
                let waited = tokio::time::timeout(longest, table.wait_for(Option::is_some)).await;
                waited.ok().and_then(Result::ok).and_then(|table| table.clone())
            }
        };
        match table {
            Some(table) => table.resolve(&frames),
            None => frames,
        }
    }

    /// Parses the symbols on a thread that may block, unless parsing has begun before.
    fn start_parsing(self: &Arc<Self>) {
        let sections = {
            let mut sections = self.sections.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *sections)
        };
        if sections.is_empty() {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(_one) = PARSING.acquire().await else { return };
            let parsing = tokio::task::spawn_blocking(move || Table::parse(sections));
            let module = &this.module;
            let table = match parsing.await {
                Ok((table, Ok(()))) => table,
                Ok((table, Err(Exceeded))) => {
                    tracing::warn!(
                        %module,
                        "frames of the module are not all resolved: its debug information is too \
                         large"
                    );
                    table
                }
                Err(panicked) => {
                    tracing::error!(
                        %module, %panicked,
                        "frames of the module are not resolved: parsing its debug information \
                         failed; report it as a bug of Sandglass"
                    );
                    Table::default()
                }
            };
            this.table.send_replace(Some(Arc::new(table)));
        });
    }
}

/// Resolves an offset in the file of a module to the function that contains it. If the compiler inlined
/// functions there, they come first, the innermost at the beginning. For tools that have a journal and
/// the module's file.
#[must_use]
pub fn frames_at(module: &[u8], offset: u64) -> Vec<Frame> {
    let (table, _) = Table::parse(sections::of(module));
    table.resolve(&[Frame { offset, ..Frame::default() }])
}

/// Whether a frame has more than its offset.
const fn is_resolved(frame: &Frame) -> bool {
    frame.function.is_some() || frame.module.is_some() || frame.file.is_some()
}

/// The symbols of the core modules of one binary, in the order of their code.
#[derive(Debug, Default)]
struct Table(Vec<CoreSymbols>);

#[derive(Debug)]
struct CoreSymbols {
    sections: CoreSections,
    names: Names,
    debug: DebugTable,
}

impl Table {
    /// Parses `all` within one budget, and leaves out what exceeds it.
    fn parse(all: Vec<CoreSections>) -> (Self, Result<(), Exceeded>) {
        let budget = &mut Budget::new();
        let mut complete = Ok(());
        let mut table = Vec::new();
        for mut sections in all {
            let names = Names::parse(&std::mem::take(&mut sections.names), budget);
            let (debug, parsed) = DebugTable::parse(&std::mem::take(&mut sections.debug), budget);
            complete = complete.and(parsed).and(names.as_ref().map(|_| ()).map_err(|error| *error));
            table.push(CoreSymbols { sections, names: names.unwrap_or_default(), debug });
        }
        table.sort_by_key(|module| module.sections.code_start);
        (Self(table), complete)
    }

    fn resolve(&self, frames: &[Frame]) -> Vec<Frame> {
        let resolved = frames.iter().flat_map(|frame| match is_resolved(frame) {
            true => vec![frame.clone()],
            false => self.frames_at(frame.offset),
        });
        resolved.take(MAX_FRAMES as usize).collect()
    }

    /// The functions that one frame of the stack stands for: those that the compiler inlined,
    /// innermost first, and the one that contains them.
    fn frames_at(&self, offset: u64) -> Vec<Frame> {
        let unresolved = Frame { offset, ..Frame::default() };
        let Ok(at) = u32::try_from(offset) else { return vec![unresolved] };
        let behind = self.0.partition_point(|module| module.sections.code_start <= at);
        let Some(module) = behind.checked_sub(1).and_then(|index| self.0.get(index)) else {
            return vec![unresolved];
        };
        if at >= module.sections.bodies_end {
            return vec![unresolved];
        }
        let own_name =
            module.sections.function_at(at).and_then(|index| module.names.function(index));
        let frame = |function: Option<&str>, file: Option<&str>, line| Frame {
            function: function.or(own_name).map(|name| printable(&demangle(name))),
            module: module.names.module.as_deref().map(printable),
            offset,
            file: file.map(printable),
            line,
        };
        match &*module.debug.locations(at - module.sections.code_start) {
            [] => vec![frame(None, None, None)],
            locations => {
                let locations = locations.iter().take(MAX_FRAMES as usize);
                locations.map(|one| frame(one.function, one.file, one.line)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests;
