//! The host functions that guests can import: their names and classes, once.

use std::borrow::Cow;

use crate::host_function::HostFunction;

/// How a host function behaves towards the deadline. Each declares one, and
/// there are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// It never waits; at the most it tells something.
    Instant,
    /// It may wait; it is dropped where it waits when the deadline passes.
    Async,
    /// It holds a thread, for a bounded time; it goes on unheard where its run ends
    /// first.
    Blocking,
}

/// One host function of a [`Functions`] table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionId(u16);

/// The host functions of one linker, in the order in which they were linked.
#[derive(Debug, Default)]
pub(crate) struct Functions(Vec<Function>);

#[derive(Debug)]
struct Function {
    module: Cow<'static, str>,
    field: Cow<'static, str>,
    /// The name that reports and labels carry: `module.field`, without the
    /// module of the users' own ABI.
    name: String,
    class: Class,
}

impl Functions {
    pub(crate) fn add(
        &mut self,
        module: &'static str,
        field: &'static str,
        class: Class,
    ) -> FunctionId {
        let name = if module == crate::abi::env::MODULE {
            field.to_owned()
        } else {
            format!("{module}.{field}")
        };
        self.push(Function { module: module.into(), field: field.into(), name, class })
    }

    /// Adds a function of the embedder's own.
    pub(crate) fn add_embedders(&mut self, function: &HostFunction) -> FunctionId {
        self.push(Function {
            module: function.interface().to_owned().into(),
            field: function.field().to_owned().into(),
            name: function.full_name(),
            class: function.class(),
        })
    }

    fn push(&mut self, function: Function) -> FunctionId {
        let id =
            u16::try_from(self.0.len()).expect("a linker has a few thousand functions at most");
        self.0.push(function);
        FunctionId(id)
    }

    pub(crate) fn name(&self, id: FunctionId) -> &str {
        &self.0[usize::from(id.0)].name
    }

    /// The name of this import as reports carry it, where a guest can wait in it.
    pub(crate) fn waiting(&self, module: &str, field: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|function| function.module == module && function.field == field)
            .filter(|function| function.class != Class::Instant)
            .map(|function| function.name.as_str())
    }
}
