//! Kinds of things with one word each, which all outputs share.

/// Declares an enum with a word for each of its kinds: all of them in a list, the word of one, and the word as what is serialised.
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
            /// All of them, in their order.
            pub const ALL: [$name; [$($word),+].len()] = [$($name::$kind),+];

            /// The word of the output.
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
