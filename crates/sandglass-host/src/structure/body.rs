//! Bodies of functions: what makes compiling them take more than linear time.

use wasmparser::{BlockType, FunctionBody, Operator};

use super::Fault;
use super::bounds::{Bound, Counts};
use super::core_module::{Arity, ModuleScope};

/// Checks the body of a function of this `arity` in `module`.
pub(super) fn check(
    body: &FunctionBody<'_>,
    arity: Arity,
    module: &ModuleScope,
    counts: &mut Counts,
) -> Result<(), Fault> {
    let start = body.range().start;
    counts.reach(Bound::FunctionBytes, body.range().len() as u64, start)?;
    let mut locals = 0_u64;
    for group in body.get_locals_reader()? {
        let (count, _) = group?;
        locals = locals.saturating_add(count.into());
    }
    counts.reach(Bound::FunctionLocals, locals, start)?;
    let mut function = Function {
        counts,
        module,
        blocks: Vec::new(),
        loops: 0,
        catches: 0,
        work: 0,
        values: locals,
    };
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        let at = operators.original_position();
        function.take(&operators.read()?, arity, at)?;
    }
    let (values, work) = (function.values, function.work);
    counts.add(Bound::Values, values, start)?;
    counts.add(Bound::BranchWork, work, start)
}

struct Function<'a> {
    counts: &'a mut Counts,
    module: &'a ModuleScope,
    blocks: Vec<Block>,
    /// Loops among `blocks`.
    loops: u64,
    /// Catch clauses of all `blocks`.
    catches: u64,
    /// For [`Bound::FunctionBranchWork`].
    work: u64,
    /// For [`Bound::FunctionValues`].
    values: u64,
}

/// An open block.
#[derive(Clone, Copy, Default)]
struct Block {
    is_loop: bool,
    catches: u64,
}

impl Function<'_> {
    fn take(&mut self, operator: &Operator<'_>, own: Arity, at: usize) -> Result<(), Fault> {
        match operator {
            Operator::Block { blockty } | Operator::If { blockty } | Operator::Try { blockty } => {
                self.open(*blockty, Block::default(), at)
            }
            Operator::Loop { blockty } => {
                self.open(*blockty, Block { is_loop: true, catches: 0 }, at)
            }
            Operator::TryTable { try_table } => {
                let catches = try_table.catches.len() as u64;
                self.open(try_table.ty, Block { is_loop: false, catches }, at)?;
                self.branch(catches, at)
            }
            Operator::End => {
                // The last one ends the function.
                let block = self.blocks.pop().unwrap_or_default();
                self.loops -= u64::from(block.is_loop);
                self.catches -= block.catches;
                Ok(())
            }
            Operator::Else
            | Operator::Br { .. }
            | Operator::BrIf { .. }
            | Operator::BrOnNull { .. }
            | Operator::BrOnNonNull { .. }
            | Operator::BrOnCast { .. }
            | Operator::BrOnCastFail { .. }
            | Operator::Catch { .. }
            | Operator::CatchAll => self.branch(1, at),
            Operator::BrTable { targets } => self.branch(u64::from(targets.len()) + 1, at),
            Operator::Return => self.carry(own.results, at),
            Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                self.carry(self.module.arity_of_function(*function_index).values(), at)
            }
            Operator::CallIndirect { type_index, .. }
            | Operator::ReturnCallIndirect { type_index, .. }
            | Operator::CallRef { type_index }
            | Operator::ReturnCallRef { type_index } => {
                self.carry(self.module.arity(*type_index).values(), at)
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, ty: BlockType, block: Block, at: usize) -> Result<(), Fault> {
        self.blocks.push(block);
        self.loops += u64::from(block.is_loop);
        self.catches += block.catches;
        self.counts.reach(Bound::CatchDepth, self.catches, at)?;
        self.counts.reach(Bound::BlockDepth, self.blocks.len() as u64, at)?;
        self.counts.reach(Bound::LoopDepth, self.loops, at)?;
        self.branch(1, at)?;
        match ty {
            BlockType::Empty => Ok(()),
            BlockType::Type(_) => self.carry(1, at),
            BlockType::FuncType(index) => self.carry(self.module.arity(index).values(), at),
        }
    }

    fn branch(&mut self, targets: u64, at: usize) -> Result<(), Fault> {
        let work = targets.saturating_mul(self.loops);
        self.work = self.work.saturating_add(work);
        self.counts.reach(Bound::FunctionBranchWork, self.work, at)
    }

    /// Counts values that an operator passes on. A few bytes can pass a thousand.
    fn carry(&mut self, values: u64, at: usize) -> Result<(), Fault> {
        self.values = self.values.saturating_add(values);
        self.counts.reach(Bound::FunctionValues, self.values, at)
    }
}
