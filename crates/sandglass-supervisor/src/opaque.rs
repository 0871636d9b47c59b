//! `Debug` for types whose fields would not help a reader of a log, or cannot be shown.

/// Implements `Debug` with the named fields alone, as `Name { field: .., .. }`.
macro_rules! opaque {
    ($($type:ty as $name:literal $({ $($field:ident),+ })?),+ $(,)?) => {$(
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct($name)
                    $($(.field(stringify!($field), &self.$field))+)?
                    .finish_non_exhaustive()
            }
        }
    )+};
}

pub(crate) use opaque;
