//! Makes handlers of commands: of a core module of WASI 0.1, and of components of WASI 0.2 and 0.3.

use anyhow::{Context, Result, anyhow};
use wac_graph::types::Package;
use wac_graph::{CompositionGraph, EncodeOptions};
use wasm_encoder::reencode::{Error, Reencode, utils};
use wasm_encoder::{
    CodeSection, ExportKind, ExportSection, Function, FunctionSection, Instruction, MemArg, Module,
    TypeSection, ValType,
};
use wasmparser::{
    CodeSectionReader, ExportSectionReader, FunctionSectionReader, Parser, Payload, TypeRef,
    TypeSectionReader,
};

/// Adds `run` to a command of WASI 0.1, which calls `_start`. When that returns, the result is in the
/// memory where the host has put the context, as guests without `host_set_result` return it.
pub(crate) fn core(command: &[u8]) -> Result<Vec<u8>> {
    let mut counts = Counts::default();
    for payload in Parser::new(0).parse_all(command) {
        match payload? {
            Payload::TypeSection(types) => {
                for group in types {
                    counts.types += u32::try_from(group?.types().len())?;
                }
            }
            Payload::ImportSection(imports) => {
                for import in imports.into_imports() {
                    counts.functions += u32::from(matches!(import?.ty, TypeRef::Func(_)));
                }
            }
            Payload::FunctionSection(functions) => counts.functions += functions.count(),
            Payload::ExportSection(exports) => {
                for export in exports {
                    let export = export?;
                    if export.name == "_start" {
                        counts.start = Some(export.index);
                    }
                }
            }
            _ => {}
        }
    }
    let start = counts.start.context("it exports no `_start`")?;
    let mut module = Module::new();
    let mut wrapper = Wrapper { start, ty: counts.types, function: counts.functions };
    let parsed = wrapper.parse_core_module(&mut module, Parser::new(0), command);
    parsed.map_err(|error| anyhow!("{error}"))?;
    Ok(module.finish())
}

/// What a module has.
#[derive(Default)]
struct Counts {
    types: u32,
    functions: u32,
    start: Option<u32>,
}

/// Appends one type, function, export and body to a module.
struct Wrapper {
    start: u32,
    ty: u32,
    function: u32,
}

/// The result: its length, and the text behind it.
const RESULT: &[u8; 16] = br#"{"success":true}"#;

impl Wrapper {
    fn body(&self) -> Function {
        let at = |offset| MemArg { offset, align: 0, memory_index: 0 };
        let mut body = Function::new([]);
        body.instruction(&Instruction::Call(self.start));
        body.instruction(&Instruction::LocalGet(0));
        body.instruction(&Instruction::I32Const(RESULT.len() as i32));
        body.instruction(&Instruction::I32Store(at(0)));
        for (offset, half) in [(4, &RESULT[..8]), (12, &RESULT[8..])] {
            let half = half.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes));
            body.instruction(&Instruction::LocalGet(0));
            body.instruction(&Instruction::I64Const(half));
            body.instruction(&Instruction::I64Store(at(offset)));
        }
        body.instruction(&Instruction::LocalGet(0));
        body.instruction(&Instruction::I32Const(4));
        body.instruction(&Instruction::I32Add);
        body.instruction(&Instruction::End);
        body
    }
}

impl Reencode for Wrapper {
    type Error = std::convert::Infallible;

    fn parse_type_section(
        &mut self,
        types: &mut TypeSection,
        section: TypeSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_type_section(self, types, section)?;
        types.ty().function([ValType::I32, ValType::I32], [ValType::I32]);
        Ok(())
    }

    fn parse_function_section(
        &mut self,
        functions: &mut FunctionSection,
        section: FunctionSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_function_section(self, functions, section)?;
        functions.function(self.ty);
        Ok(())
    }

    fn parse_export_section(
        &mut self,
        exports: &mut ExportSection,
        section: ExportSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_export_section(self, exports, section)?;
        exports.export("run", ExportKind::Func, self.function);
        Ok(())
    }

    fn parse_code_section(
        &mut self,
        code: &mut CodeSection,
        section: CodeSectionReader<'_>,
    ) -> Result<(), Error> {
        utils::parse_code_section(self, code, section)?;
        code.function(&self.body());
        Ok(())
    }
}

/// Makes a command of WASI 0.2 of one of WASI 0.1.
pub(crate) fn componentize(command: &[u8]) -> Result<Vec<u8>> {
    use wasi_preview1_component_adapter_provider::{
        WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER,
    };
    wit_component::ComponentEncoder::default()
        .module(command)?
        .adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_COMMAND_ADAPTER)?
        .encode()
}

/// Composes a command of WASI 0.2 or 0.3 with a handler that calls it.
pub(crate) fn component(command: &[u8]) -> Result<Vec<u8>> {
    // Rust's commands of 0.3 also export a `run` of 0.2, which only traps.
    let run = exports(command)?.into_iter().filter(|name| name.starts_with("wasi:cli/run@")).max();
    let run = run.context("it exports no `wasi:cli/run`")?;
    let is_async = run.starts_with("wasi:cli/run@0.3");
    let handler = include_str!("handler.wat")
        .replace("RUN", &run)
        .replace(" ASYNC ", if is_async { " async " } else { " " });
    let handler = wat::parse_str(handler)?;

    let mut graph = CompositionGraph::new();
    let command = Package::from_bytes("a:command", None, command, graph.types_mut())?;
    let command = graph.register_package(command)?;
    let handler = Package::from_bytes("a:handler", None, handler, graph.types_mut())?;
    let handler = graph.register_package(handler)?;
    let (command, handler) = (graph.instantiate(command), graph.instantiate(handler));
    let called = graph.alias_instance_export(command, &run)?;
    graph.set_instantiation_argument(handler, &run, called)?;
    let handle = graph.alias_instance_export(handler, "handle")?;
    graph.export(handle, "handle")?;
    Ok(graph.encode(EncodeOptions { define_components: true, ..EncodeOptions::default() })?)
}

/// The exports of a component, without those of what is in it.
fn exports(component: &[u8]) -> Result<Vec<String>> {
    let (mut names, mut depth) = (Vec::new(), 0);
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    names.push(export?.name.name.to_string());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}
