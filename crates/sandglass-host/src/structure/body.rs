//! Counts in the bodies of functions what makes compiling them take more than linear time.

use wasmparser::{BlockType, FunctionBody, Operator};

use super::Checked;
use super::bounds::{Bound, Counts};
use super::core_module::{Arity, ModuleScope};

/// Checks the body of a function of this `arity` in `module`.
pub(super) fn check(
    body: &FunctionBody<'_>,
    arity: Arity,
    module: &ModuleScope,
    counts: &mut Counts,
) -> Checked {
    let start = body.range().start;
    counts.offset = start;
    counts.reach(Bound::FunctionBytes, body.range().len() as u64)?;
    let mut locals = 0_u64;
    for group in body.get_locals_reader()? {
        let (count, _) = group?;
        locals = locals.saturating_add(count.into());
    }
    counts.reach(Bound::FunctionLocals, locals)?;
    let mut function = Function {
        counts,
        module,
        blocks: Vec::new(),
        loops: 0,
        catches: 0,
        work: 0,
        values: locals,
    };
    let mut bulk = 0;
    let mut operators = body.get_operators_reader()?;
    while !operators.eof() {
        function.counts.offset = operators.original_position();
        let operator = operators.read()?;
        bulk += u64::from(is_bulk(&operator));
        function.take(&operator, arity)?;
    }
    let Function { counts, values, work, .. } = function;
    counts.most_bulk = counts.most_bulk.max(bulk);
    counts.offset = start;
    counts.add(Bound::Values, values)?;
    counts.add(Bound::BranchWork, work)
}

/// Whether one instruction can take as long as a memory is large.
fn is_bulk(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::MemoryCopy { .. } | Operator::MemoryFill { .. } | Operator::MemoryInit { .. }
    )
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
    fn take(&mut self, operator: &Operator<'_>, own: Arity) -> Checked {
        match operator {
            Operator::Block { blockty } | Operator::If { blockty } | Operator::Try { blockty } => {
                self.open(*blockty, Block::default())
            }
            Operator::Loop { blockty } => self.open(*blockty, Block { is_loop: true, catches: 0 }),
            Operator::TryTable { try_table } => {
                let catches = try_table.catches.len() as u64;
                self.open(try_table.ty, Block { is_loop: false, catches })?;
                self.branch(catches)
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
            | Operator::CatchAll => self.branch(1),
            Operator::BrTable { targets } => self.branch(u64::from(targets.len()) + 1),
            Operator::Return => self.carry(own.results),
            Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                self.carry(self.module.arity_of_function(*function_index).values())
            }
            Operator::CallIndirect { type_index, .. }
            | Operator::ReturnCallIndirect { type_index, .. }
            | Operator::CallRef { type_index }
            | Operator::ReturnCallRef { type_index } => {
                self.carry(self.module.arity(*type_index).values())
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self, ty: BlockType, block: Block) -> Checked {
        self.blocks.push(block);
        self.loops += u64::from(block.is_loop);
        self.catches += block.catches;
        self.counts.reach(Bound::CatchDepth, self.catches)?;
        self.counts.reach(Bound::BlockDepth, self.blocks.len() as u64)?;
        self.counts.reach(Bound::LoopDepth, self.loops)?;
        self.branch(1)?;
        match ty {
            BlockType::Empty => Ok(()),
            BlockType::Type(_) => self.carry(1),
            BlockType::FuncType(index) => self.carry(self.module.arity(index).values()),
        }
    }

    fn branch(&mut self, targets: u64) -> Checked {
        let work = targets.saturating_mul(self.loops);
        self.work = self.work.saturating_add(work);
        self.counts.reach(Bound::FunctionBranchWork, self.work)
    }

    /// Counts values that an operator passes on. A few bytes can pass a thousand.
    fn carry(&mut self, values: u64) -> Checked {
        self.values = self.values.saturating_add(values);
        self.counts.reach(Bound::FunctionValues, self.values)
    }
}
