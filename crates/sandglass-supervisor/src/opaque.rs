//! `Debug` for types whose fields would tell a reader of a log nothing, or cannot be shown.

/// Implements `Debug` without fields, as `Name { .. }`.
macro_rules! opaque {
    ($($type:ty as $name:literal),+ $(,)?) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct($name).finish_non_exhaustive()
            }
        }
    )+};
}

pub(crate) use opaque;
