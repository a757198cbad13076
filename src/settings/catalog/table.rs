//! Makes the catalog, and the sections of its values, of the rows of a table.

/// The struct of a section, unless it is that of another module.
macro_rules! section {
    (struct $section:ident $prefix:literal { $($name:ident: $type:ty, $help:literal;)* }) => {
        #[doc = concat!("Settings whose names begin with `", $prefix, "`.")]
        #[derive(Clone, Debug)]
        pub struct $section {
            $(#[doc = $help] pub $name: $type,)*
        }
    };
    (use $($other:tt)*) => {};
}

/// Makes the catalog, and the sections that its values are read into. A section has the beginning of its names, the part
/// of the program that uses it, a heading, and its target; a row has the field of the target, a flag that is not the
/// name, the type, the parser, the default and the help.
macro_rules! settings {
    ($($prefix:literal $part:ident $heading:literal $kind:tt $section:ident: $($target:ident)::+ {
        $($name:ident $(as $flag:literal)?: $type:ty = $parser:expr => $default:literal $help:literal;)*
    })*) => {
        /// All settings, in the order of the help.
        pub const CATALOG: &[Setting] = &[$($(Setting {
            name: concat!($prefix, stringify!($name)),
            default: $default,
            help: $help,
            heading: $heading,
            own_flag: &[$($flag)?],
            part: ProgramPart::$part,
            value_type: || Parser::<$type>::value_type($parser),
        },)*)*];

        $(section! { $kind $($target)::+ $prefix { $($name: $type, $help;)* } })*

        /// The values of all settings. Each is allowed by itself; those that make up something together may conflict.
        #[derive(Clone, Debug)]
        pub struct Sections {
            $(pub(crate) $section: $($target)::+,)*
        }

        impl Default for Sections {
            fn default() -> Self {
                Self {
                    $($section: $($target)::+ { $($name: $parser.parse($default).expect("a default is valid"),)* },)*
                }
            }
        }

        impl Sections {
            /// Parses the text into a setting. `None` if it is not accepted; then the value stays.
            pub(super) fn set(&mut self, setting: &Setting, text: &str) -> Option<()> {
                match setting.name {
                    $($(concat!($prefix, stringify!($name)) => self.$section.$name = $parser.parse(text)?,)*)*
                    _another => return None,
                }
                Some(())
            }
        }
    };
}

pub(super) use {section, settings};
