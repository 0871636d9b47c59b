//! Function names from a module's name section.

use wasmparser::{BinaryReader, Name, NameSectionReader};

use super::budget::{Budget, Exceeded};
use super::text::{self, Text};

/// The names of one core module.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) module: Option<Text>,
    /// By index in the function index space, in ascending order.
    functions: Vec<(u32, Text)>,
}

impl Names {
    /// Parses the data of a name section. A section that is malformed names what comes before
    /// the error, as engines do.
    pub(super) fn parse(data: &[u8], budget: &mut Budget) -> Result<Self, Exceeded> {
        let mut names = Self::default();
        let section = NameSectionReader::new(BinaryReader::new(data, 0));
        for subsection in section.map_while(Result::ok) {
            match subsection {
                Name::Module { name, .. } => names.module = Some(text::keep(name, budget)?),
                Name::Function(functions) => {
                    for naming in functions.into_iter().map_while(Result::ok) {
                        names.functions.push((naming.index, text::keep(naming.name, budget)?));
                    }
                }
                _ => budget.work(1)?,
            }
        }
        names.functions.sort_by_key(|(index, _)| *index);
        Ok(names)
    }

    /// The name of the function with this index. `None` if the section does not name it.
    pub(super) fn function(&self, index: u32) -> Option<&str> {
        let at = self.functions.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        Some(&self.functions[at].1)
    }
}
