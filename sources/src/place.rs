//! Where rule files are.

use std::path::PathBuf;

use crate::url::Address;

/// Where rules are, unless a control plane has them.
#[derive(Clone, Debug)]
pub enum RuleLocation {
    /// A file or a directory.
    Path(PathBuf),
    /// A rule file on a server.
    Url(Address),
}

impl RuleLocation {
    /// The accepted texts.
    pub const EXPECTED: &str = "a path, a URL without a user such as https://HOST/PATH";
}

/// A text that begins with `http://` or `https://` is a URL, and any other one a path.
impl TryFrom<String> for RuleLocation {
    type Error = ();

    fn try_from(text: String) -> Result<Self, ()> {
        if Address::is_meant(&text) {
            return Address::parse(&text).map(Self::Url).ok_or(());
        }
        if text.is_empty() { Err(()) } else { Ok(Self::Path(text.into())) }
    }
}
