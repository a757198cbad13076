//! How a limit is displayed.

use crate::Unit;

/// A limit as displayed in responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplayedLimit {
    /// As in the rule file; 0 if the rule is unlimited.
    pub requests_per_unit: u64,
    /// As in the rule file; `None` if no unit has the length of the window.
    pub unit: Option<Unit>,
}
