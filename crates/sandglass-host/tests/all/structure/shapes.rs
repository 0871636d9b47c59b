//! Modules of hostile shapes, each of a size that the caller chooses.

use wasm_encoder::{
    Alias, BlockType, CanonicalFunctionSection, CanonicalOption, Catch, CodeSection, Component,
    ComponentAliasSection, ComponentExportKind, ComponentInstanceSection, ComponentOuterAliasKind,
    ComponentTypeSection, ConstExpr, DataSection, ElementSection, Elements, Encode as _,
    EntityType, ExportKind, ExportSection, Function, FunctionSection, GlobalSection, GlobalType,
    ImportSection, InstanceSection, InstanceType, MemorySection, MemoryType, Module, ModuleSection,
    NestedComponentSection, RefType, TableSection, TableType, TypeSection, ValType,
};

const I32: GlobalType = GlobalType { val_type: ValType::I32, mutable: true, shared: false };

fn memory(pages: u64) -> MemoryType {
    MemoryType {
        minimum: pages,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    }
}

fn table(elements: u64) -> TableType {
    let element_type = RefType::FUNCREF;
    TableType { element_type, minimum: elements, maximum: None, table64: false, shared: false }
}

/// LEB128 of `value`.
fn leb(value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut bytes);
    bytes
}

/// A component with one section.
fn component_of(section: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    bytes.push(section);
    bytes.extend(leb(data.len()));
    bytes.extend(data);
    bytes
}

/// A component with an instance type in an instance type, and so on.
pub(super) fn nested_types(depth: usize) -> Vec<u8> {
    let mut data = vec![1];
    // An instance type with one declaration, which is a type.
    data.extend([0x42, 1, 1].repeat(depth - 1));
    data.extend([0x42, 0]);
    component_of(7, &data)
}

/// A component with a component type in a component type, and so on.
pub(super) fn nested_component_types(depth: usize) -> Vec<u8> {
    let mut data = vec![1];
    data.extend([0x41, 1, 1].repeat(depth - 1));
    data.extend([0x41, 0]);
    component_of(7, &data)
}

/// A component in a component, and so on.
pub(super) fn nested_components(depth: usize) -> Vec<u8> {
    // From the inside, back to front: each is a section of the one around it.
    let header: Vec<u8> = b"\0asm\x0d\0\x01\0".iter().rev().copied().collect();
    let mut reversed = header.clone();
    for _ in 1..depth {
        let length = leb(reversed.len());
        reversed.extend(length.iter().rev());
        reversed.push(4);
        reversed.extend(&header);
    }
    reversed.reverse();
    reversed
}

/// Instance types that refer to one another, each nested in the one before by its index alone.
pub(super) fn types_by_reference(depth: u32) -> Vec<u8> {
    let mut types = ComponentTypeSection::new();
    types.instance(&InstanceType::new());
    for before in 0..depth {
        let mut ty = InstanceType::new();
        let kind = ComponentOuterAliasKind::Type;
        ty.alias(Alias::Outer { kind, count: 1, index: before });
        ty.export("a", wasm_encoder::ComponentTypeRef::Instance(0));
        types.instance(&ty);
    }
    let mut component = Component::new();
    component.section(&types);
    component.finish()
}

/// A module with one function `(i32) -> ()`.
fn with_function(function: &Function) -> Vec<u8> {
    let (mut types, mut functions, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([ValType::I32], []);
    functions.function(0);
    code.function(function);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&code);
    module.finish()
}

/// Loops in one another, with as many branches to each of them in the innermost.
pub(super) fn loops(depth: u32, branches_each: u32) -> Vec<u8> {
    let mut function = Function::new([]);
    for _ in 0..depth {
        function.instructions().loop_(BlockType::Empty);
    }
    for _ in 0..branches_each {
        for target in 0..depth {
            function.instructions().local_get(0).br_if(target);
        }
    }
    for _ in 0..=depth {
        function.instructions().end();
    }
    with_function(&function)
}

/// Blocks in one another, with a branch to the outermost in each.
pub(super) fn blocks(depth: u32) -> Vec<u8> {
    let mut function = Function::new([]);
    for nested in 0..depth {
        function.instructions().block(BlockType::Empty).local_get(0).br_if(nested);
    }
    for _ in 0..=depth {
        function.instructions().end();
    }
    with_function(&function)
}

/// Blocks in one another that catch exceptions, each with this many clauses.
pub(super) fn catches(depth: u32, clauses: usize) -> Vec<u8> {
    let mut function = Function::new([]);
    for _ in 0..depth {
        let clauses = std::iter::repeat_n(Catch::All { label: 0 }, clauses);
        function.instructions().try_table(BlockType::Empty, clauses);
    }
    for _ in 0..=depth {
        function.instructions().end();
    }
    with_function(&function)
}

/// A function with this many local variables.
pub(super) fn locals(count: u32) -> Vec<u8> {
    let mut function = Function::new([(count, ValType::I64)]);
    function.instructions().end();
    with_function(&function)
}

/// Calls of a function with a thousand results, which stay on the stack.
pub(super) fn results(calls: u32) -> Vec<u8> {
    let (mut types, mut functions, mut code) =
        (TypeSection::new(), FunctionSection::new(), CodeSection::new());
    types.ty().function([], [ValType::I32; 1000]);
    types.ty().function([], []);
    functions.function(0).function(1);
    let mut many = Function::new([]);
    many.instructions().unreachable().end();
    let mut caller = Function::new([]);
    for _ in 0..calls {
        caller.instructions().call(0);
    }
    caller.instructions().unreachable().end();
    code.function(&many).function(&caller);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&code);
    module.finish()
}

/// An active element segment with this many items, at the value of an imported global.
pub(super) fn elements(items: u32) -> Vec<u8> {
    let (mut types, mut imports, mut functions) =
        (TypeSection::new(), ImportSection::new(), FunctionSection::new());
    types.ty().function([], []);
    let offset = GlobalType { val_type: ValType::I32, mutable: false, shared: false };
    imports.import("env", "offset", EntityType::Global(offset));
    functions.function(0);
    let mut tables = TableSection::new();
    tables.table(table(items.into()));
    let mut elements = ElementSection::new();
    let functions_of = vec![0; items as usize];
    elements.active(None, &ConstExpr::global_get(0), Elements::Functions(functions_of.into()));
    let mut code = CodeSection::new();
    let mut nothing = Function::new([]);
    nothing.instructions().end();
    code.function(&nothing);
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&tables);
    module.section(&elements).section(&code);
    module.finish()
}

/// This many memories, each with two data segments that are 16 MiB apart.
pub(super) fn sparse_data(memories: u32) -> Vec<u8> {
    let (mut section, mut data) = (MemorySection::new(), DataSection::new());
    for index in 0..memories {
        section.memory(memory(256));
        data.active(index, &ConstExpr::i32_const(0), [1]);
        data.active(index, &ConstExpr::i32_const((16 << 20) - 2), [1]);
    }
    let mut module = Module::new();
    module.section(&section).section(&data);
    module.finish()
}

/// A module with this many globals.
pub(super) fn globals(count: u32) -> Module {
    let mut globals = GlobalSection::new();
    for _ in 0..count {
        globals.global(I32, &ConstExpr::i32_const(1));
    }
    let mut module = Module::new();
    module.section(&globals);
    module
}

/// A component that instantiates `module` this many times.
pub(super) fn instances(module: &Module, count: u32) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    let mut instances = InstanceSection::new();
    for _ in 0..count {
        instances.instantiate::<[_; 0], &str>(0, []);
    }
    component.section(&instances);
    component.finish()
}

/// A component that instantiates `module` twice, in one that is instantiated twice, and so on:
/// two to the power of `levels` core instances from a few bytes for each level.
pub(super) fn doubled_instances(module: &Module, levels: u32) -> Vec<u8> {
    let mut component = Component::new();
    component.section(&ModuleSection(module));
    for level in 0..levels {
        let mut inner = Component::new();
        let mut aliases = ComponentAliasSection::new();
        if level == 0 {
            let kind = ComponentOuterAliasKind::CoreModule;
            aliases.alias(Alias::Outer { kind, count: 1, index: 0 });
            inner.section(&aliases);
            let mut instances = InstanceSection::new();
            instances.instantiate::<[_; 0], &str>(0, []);
            instances.instantiate::<[_; 0], &str>(0, []);
            inner.section(&instances);
        } else {
            let kind = ComponentOuterAliasKind::Component;
            aliases.alias(Alias::Outer { kind, count: 1, index: level - 1 });
            inner.section(&aliases);
            let mut instances = ComponentInstanceSection::new();
            instances.instantiate::<[_; 0], &str>(0, []);
            instances.instantiate::<[_; 0], &str>(0, []);
            inner.section(&instances);
        }
        component.section(&NestedComponentSection(&inner));
    }
    let mut instances = ComponentInstanceSection::new();
    instances.instantiate::<[_; 0], &str>(levels - 1, []);
    component.section(&instances);
    component.finish()
}

/// A component that passes a module to a component so that this one instantiates it, `count`
/// times.
pub(super) fn passed_module(module: &Module, count: u32) -> Vec<u8> {
    let mut inner = Component::new();
    let mut core_types = wasm_encoder::CoreTypeSection::new();
    core_types.ty().module(&wasm_encoder::ModuleType::new());
    inner.section(&core_types);
    let mut imports = wasm_encoder::ComponentImportSection::new();
    imports.import("m", wasm_encoder::ComponentTypeRef::Module(0));
    inner.section(&imports);
    let mut instances = InstanceSection::new();
    for _ in 0..count {
        instances.instantiate::<[_; 0], &str>(0, []);
    }
    inner.section(&instances);
    let mut component = Component::new();
    component.section(&ModuleSection(module)).section(&NestedComponentSection(&inner));
    let mut instances = ComponentInstanceSection::new();
    instances.instantiate(0, [("m", ComponentExportKind::Module, 0)]);
    component.section(&instances);
    component.finish()
}

/// A component whose inner component calls a function of another one through this many adapters.
pub(super) fn adapters(count: u32) -> Vec<u8> {
    let (mut types, mut functions, mut exports, mut code) =
        (TypeSection::new(), FunctionSection::new(), ExportSection::new(), CodeSection::new());
    types.ty().function([], []);
    functions.function(0);
    exports.export("f", ExportKind::Func, 0);
    let mut nothing = Function::new([]);
    nothing.instructions().end();
    code.function(&nothing);
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&exports).section(&code);

    let mut callee = Component::new();
    callee.section(&ModuleSection(&module));
    let mut instances = InstanceSection::new();
    instances.instantiate::<[_; 0], &str>(0, []);
    callee.section(&instances);
    let mut aliases = ComponentAliasSection::new();
    aliases.alias(Alias::CoreInstanceExport { instance: 0, kind: ExportKind::Func, name: "f" });
    callee.section(&aliases);
    let mut types = ComponentTypeSection::new();
    types.function().params::<[_; 0], wasm_encoder::ComponentValType>([]).result(None);
    callee.section(&types);
    let mut canonical = CanonicalFunctionSection::new();
    canonical.lift(0, 0, [] as [CanonicalOption; 0]);
    callee.section(&canonical);
    let mut exports = wasm_encoder::ComponentExportSection::new();
    exports.export("f", ComponentExportKind::Func, 0, None);
    callee.section(&exports);

    let mut caller = Component::new();
    let mut types = ComponentTypeSection::new();
    types.function().params::<[_; 0], wasm_encoder::ComponentValType>([]).result(None);
    caller.section(&types);
    let mut imports = wasm_encoder::ComponentImportSection::new();
    imports.import("f", wasm_encoder::ComponentTypeRef::Func(0));
    caller.section(&imports);
    let mut canonical = CanonicalFunctionSection::new();
    for _ in 0..count {
        canonical.lower(0, [] as [CanonicalOption; 0]);
    }
    caller.section(&canonical);

    let mut component = Component::new();
    component.section(&NestedComponentSection(&callee));
    component.section(&NestedComponentSection(&caller));
    let mut instances = ComponentInstanceSection::new();
    instances.instantiate::<[_; 0], &str>(0, []);
    component.section(&instances);
    let mut aliases = ComponentAliasSection::new();
    let kind = ComponentExportKind::Func;
    aliases.alias(Alias::InstanceExport { instance: 0, kind, name: "f" });
    component.section(&aliases);
    let mut instances = ComponentInstanceSection::new();
    instances.instantiate(1, [("f", ComponentExportKind::Func, 0)]);
    component.section(&instances);
    component.finish()
}

/// A module that imports this many functions, each with a name of 50,000 bytes.
pub(super) fn names(count: u32) -> Vec<u8> {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    types.ty().function([], []);
    for _ in 0..count {
        imports.import("env", &"n".repeat(50_000), EntityType::Function(0));
    }
    let mut module = Module::new();
    module.section(&types).section(&imports);
    module.finish()
}
