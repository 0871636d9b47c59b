//! The structural bounds, one table of them.

use super::{Checked, Fault};

macro_rules! bounds {
    ($($(#[$doc:meta])* $name:ident: $what:literal, $most:literal;)*) => {
        /// What the structure of a module may have at most: far more than toolchains write.
        /// Counts are of a whole file, with all modules and components in it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Bound {
            $($(#[$doc])* $name,)*
        }

        impl Bound {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// What is counted, as messages and the documentation name it.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Self::$name => $what),* }
            }

            /// The highest figure that is allowed.
            #[must_use]
            pub const fn most(self) -> u64 {
                match self { $(Self::$name => $most),* }
            }
        }
    };
}

bounds! {
    /// Modules and components in one another, the outermost included.
    ComponentDepth: "levels of nested components", 16;
    /// Component types and instance types in one another.
    TypeDepth: "levels of nested types", 32;
    /// Component-level types that refer to one another: a list of lists has two levels. The
    /// validator panics above 127.
    ReferenceDepth: "levels of types that refer to types", 64;
    /// Blocks in one another in one function.
    BlockDepth: "levels of nested blocks in one function", 10_000;
    /// Loops in one another in one function.
    LoopDepth: "levels of nested loops in one function", 200;
    /// Clauses of all blocks around an instruction that catch exceptions. A throw compares its tag
    /// with each of them in each frame of the stack, and nothing interrupts it.
    CatchDepth: "catch clauses around one instruction", 250;
    /// Bytes of one function's body. The compiler takes about 400 times as much memory.
    FunctionBytes: "bytes in one function", 1_048_576;
    /// Core modules.
    Modules: "core modules", 1_000;
    /// Components, the outermost included.
    Components: "components", 1_000;
    /// Types of core modules.
    Types: "types of core modules", 100_000;
    /// Functions that core modules define.
    Functions: "functions", 200_000;
    /// Imports of core modules.
    Imports: "imports", 100_000;
    /// Exports of core modules.
    Exports: "exports", 100_000;
    /// Globals that core modules define.
    Globals: "globals", 200_000;
    /// Tables that core modules define.
    Tables: "tables", 1_000;
    /// Initial elements of these tables.
    TableElements: "initial elements of tables", 1_000_000;
    /// Memories that core modules define.
    Memories: "memories", 1_000;
    /// Exception tags that core modules define.
    Tags: "tags", 10_000;
    /// Element segments.
    ElementSegments: "element segments", 20_000;
    /// Items of element segments.
    ElementItems: "items in element segments", 400_000;
    /// Data segments.
    DataSegments: "data segments", 100_000;
    /// Bytes of memory between the first and the last data segment of each memory.
    DataImageBytes: "bytes of memory that data segments span", 67_108_864;
    /// What a start-up function initializes at run time: elements, globals and data whose
    /// place or value is computed, and passive elements. The compiler writes code for each.
    StartupItems: "values that are initialized at start-up", 30_000;
    /// Bytes of expressions that initialize globals, tables and segments.
    InitializerBytes: "bytes of initializer expressions", 2_097_152;
    /// Local variables of one function, without its parameters.
    FunctionLocals: "local variables in one function", 20_000;
    /// Local variables, and parameters and results of functions, calls and blocks.
    Values: "local variables, parameters and results", 4_000_000;
    /// The same in the body of one function.
    FunctionValues: "local variables, parameters and results in one function", 200_000;
    /// Targets of branches, each times the loops around it.
    BranchWork: "branches times the loops around each", 5_000_000;
    /// The same in the body of one function.
    FunctionBranchWork: "branches times the loops around each in one function", 200_000;
    /// Bytes in names of imports, exports and types.
    NameBytes: "bytes in names of imports, exports and types", 4_194_304;
    /// Items of components: types and their parts, imports, exports, aliases, instances with
    /// their arguments, and canonical functions.
    ComponentItems: "items in components", 100_000;
    /// Items of components, as often as they are instantiated.
    InstantiatedItems: "items in all instances of components", 200_000;
    /// Instances of core modules.
    Instances: "instances of core modules", 1_000;
    /// Functions of one component that another one calls: the compiler writes an adapter for
    /// each.
    Adapters: "calls between components that need an adapter", 1_000;
}

impl Bound {
    /// What the author can do.
    pub(super) const fn remedy(self) -> &'static str {
        match self {
            Self::ComponentDepth
            | Self::TypeDepth
            | Self::ReferenceDepth
            | Self::BlockDepth
            | Self::LoopDepth
            | Self::CatchDepth => "nest less",
            Self::FunctionBytes
            | Self::FunctionLocals
            | Self::FunctionValues
            | Self::FunctionBranchWork => "split the function",
            _ => "split the module, or leave out what it does not use",
        }
    }
}

/// What was counted so far, and where in the file.
#[derive(Debug)]
pub(super) struct Counts {
    figures: [u64; Bound::ALL.len()],
    /// Of what is counted now, for messages.
    pub(super) offset: usize,
    /// Whether the component needs an engine with several calls at a time.
    pub(super) is_concurrent: bool,
    /// Most bulk instructions on memories in one function.
    pub(super) most_bulk: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Self { figures: [0; Bound::ALL.len()], offset: 0, is_concurrent: false, most_bulk: 0 }
    }
}

impl Counts {
    pub(super) fn figure(&self, bound: Bound) -> u64 {
        self.figures[bound as usize]
    }

    /// Counts `more` of what the bound is on.
    pub(super) fn add(&mut self, bound: Bound, more: u64) -> Checked {
        self.reach(bound, self.figure(bound).saturating_add(more))
    }

    /// Notes that `figure` is reached. The highest one is kept.
    pub(super) fn reach(&mut self, bound: Bound, figure: u64) -> Checked {
        let highest = &mut self.figures[bound as usize];
        *highest = figure.max(*highest);
        match figure > bound.most() {
            true => Err(Fault::TooMuch { bound, figure, offset: self.offset }),
            false => Ok(()),
        }
    }
}
