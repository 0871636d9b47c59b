//! Enums whose variants have fixed names in JSON and in records.

/// Declares an enum whose variants are written with the given names, in JSON and as text.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// All variants, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in JSON and in records.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// All variants with their names.
            pub(crate) const WORDS: &'static [(&'static str, Self)] =
                &[$(($text, Self::$variant),)*];

            /// The variant with this name.
            pub fn parse(name: &str) -> Option<Self> {
                Self::WORDS.iter().find(|(word, _)| *word == name).map(|(_, variant)| *variant)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use names;
