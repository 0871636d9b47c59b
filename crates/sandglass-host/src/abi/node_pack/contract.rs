//! The names and types of the functions of the OpenWOP node pack ABI, version 1.

/// The module that packs import from.
pub(crate) const MODULE: &str = "openwop";

/// The version that this host implements.
pub(crate) const VERSION: i32 = 1;

pub(crate) const ABI_VERSION: &str = "openwop_abi_version";
pub(crate) const PACK_NAME: &str = "openwop_pack_name";
pub(crate) const NODE_COUNT: &str = "openwop_node_count";
pub(crate) const NODE_ID_AT: &str = "openwop_node_id_at";
pub(crate) const ALLOC: &str = "openwop_alloc";
pub(crate) const FREE: &str = "openwop_free";
pub(crate) const NODE_INVOKE: &str = "openwop_node_invoke";

pub(crate) const CHANNEL_READ: &str = "openwop_channel_read";
pub(crate) const VARIABLE_GET: &str = "openwop_variable_get";
pub(crate) const INTERRUPT: &str = "openwop_interrupt";

/// How a pointer and a length are returned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairForm {
    /// As two results.
    Two,
    /// As one `i64`, with the pointer in its low half.
    Packed,
}

impl PairForm {
    /// Returns the pair in `packed`.
    pub(crate) fn unpack(packed: i64) -> (i32, i32) {
        let half = |bits: u64| {
            let bytes = (bits & u64::from(u32::MAX)).to_le_bytes();
            i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let bits = packed.cast_unsigned();
        (half(bits), half(bits >> 32))
    }

    /// Packs a pair.
    pub(crate) fn pack((ptr, len): (i32, i32)) -> i64 {
        let [ptr, len] = [ptr, len].map(|half| u64::from(half.cast_unsigned()));
        (ptr | (len << 32)).cast_signed()
    }
}

/// A function and its type in the notation of messages. A function that returns a pair has two types:
/// the first with two results, the second with a packed one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) types: &'static [&'static str],
}

impl Function {
    /// Which of its types `shown` is; `None` if it is neither.
    pub(crate) fn form(&self, shown: &str) -> Option<PairForm> {
        let forms = [PairForm::Two, PairForm::Packed];
        self.types.iter().zip(forms).find(|(ty, _)| **ty == shown).map(|(_, form)| form)
    }

    /// Its types, for a message.
    pub(crate) fn expected(&self) -> String {
        self.types.join(" or ")
    }
}

/// What a pack exports in addition to its memory.
pub(crate) const EXPORTS: &[Function] = &[
    Function { name: ABI_VERSION, types: &["() -> (i32)"] },
    Function { name: PACK_NAME, types: &["() -> (i32, i32)", "() -> (i64)"] },
    Function { name: NODE_COUNT, types: &["() -> (i32)"] },
    Function { name: NODE_ID_AT, types: &["(i32) -> (i32, i32)", "(i32) -> (i64)"] },
    Function { name: ALLOC, types: &["(i32) -> (i32)"] },
    Function { name: FREE, types: &["(i32, i32) -> ()"] },
    Function {
        name: NODE_INVOKE,
        types: &["(i32, i32, i32) -> (i32, i32)", "(i32, i32, i32) -> (i64)"],
    },
];

/// What a pack can import from [`MODULE`].
pub(crate) const IMPORTS: &[Function] = &[
    Function { name: CHANNEL_READ, types: &["(i32, i32) -> (i32, i32)", "(i32, i32) -> (i64)"] },
    Function { name: "openwop_channel_write", types: &["(i32, i32, i32, i32) -> (i32)"] },
    Function { name: VARIABLE_GET, types: &["(i32, i32) -> (i32, i32)", "(i32, i32) -> (i64)"] },
    Function { name: "openwop_variable_set", types: &["(i32, i32, i32, i32) -> (i32)"] },
    Function { name: INTERRUPT, types: &["(i32, i32) -> (i32, i32)", "(i32, i32) -> (i64)"] },
    Function { name: "openwop_log", types: &["(i32, i32, i32) -> ()"] },
    Function { name: "openwop_now_ms", types: &["() -> (i64)"] },
    Function { name: "openwop_random", types: &["(i32, i32) -> ()"] },
];

/// The export with this name.
pub(crate) fn export(name: &str) -> Option<&'static Function> {
    EXPORTS.iter().find(|function| function.name == name)
}

/// The function that packs can import under this name.
pub(crate) fn import(module: &str, name: &str) -> Option<&'static Function> {
    IMPORTS.iter().find(|function| module == MODULE && function.name == name)
}

/// The names of the functions that packs can import.
pub(crate) fn imports() -> impl Iterator<Item = &'static str> {
    IMPORTS.iter().map(|function| function.name)
}

/// Whether a core module that exports this name is a pack.
pub(crate) fn marks_a_pack(export: &str) -> bool {
    export == ABI_VERSION || export == NODE_INVOKE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_a_packed_pair_returns_the_pair() {
        for pair in [(0, 0), (1, 2), (-1, 1), (i32::MIN, -1), (i32::MAX, i32::MIN)] {
            assert_eq!(PairForm::unpack(PairForm::pack(pair)), pair);
        }
        assert_eq!(PairForm::unpack(0x0000_0007_8000_0000), (i32::MIN, 7), "the pointer is low");
    }

    #[test]
    fn the_type_of_a_function_determines_the_form_of_its_pair() {
        let invoke = export(NODE_INVOKE).expect("it is there");
        assert_eq!(invoke.form("(i32, i32, i32) -> (i32, i32)"), Some(PairForm::Two));
        assert_eq!(invoke.form("(i32, i32, i32) -> (i64)"), Some(PairForm::Packed));
        assert_eq!(invoke.form("(i32, i32, i32) -> (i32)"), None);
    }
}
