//! Enums whose variants have names.

/// Defines an enum with the list of its variants, `ALL`, and the text that stands for each, `name`.
#[macro_export]
macro_rules! named {
    ($(#[$of_enum:meta])* pub enum $enum:ident { $($(#[$of_variant:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$of_enum])*
        pub enum $enum {
            $($(#[$of_variant])* $variant,)*
        }

        impl $enum {
            /// All variants, in their order.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The variants with their names.
            pub const NAMED: [(&str, Self); Self::ALL.len()] = [$(($name, Self::$variant)),*];

            /// The text that stands for the variant.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}
