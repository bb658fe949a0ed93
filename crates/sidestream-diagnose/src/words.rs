//! Enums with one word for each kind, which all outputs share.

/// Declares an enum with a word for each of its kinds: a list of all kinds, the word of one, and its serialisation as that
/// word.
macro_rules! words {
    (
        $(#[$about:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $kind:ident = $word:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $kind,)+
        }

        impl $name {
            /// All kinds, in order.
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$kind),+];

            /// Returns the word in the output.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$kind => $word,)+
                }
            }
        }

        impl crate::sort::Part for $name {
            fn bits(self) -> u64 {
                self as u64
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }
    };
}

pub(crate) use words;
