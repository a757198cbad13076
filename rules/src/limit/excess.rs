//! How a charge that exceeds the remaining budget is handled.

use tollgate_counter::algorithm::Excess;

use crate::{diagnostics::Diagnostics, file::RateLimitDraft};

/// Reads `count_denied`, `overdraft` and `overdraft_limit`, whose default is `default_debt`.
pub(super) fn excess(
    draft: &RateLimitDraft,
    default_debt: u64,
    diagnostics: &mut Diagnostics<'_>,
) -> Option<Excess> {
    let counted = draft.is_set("count_denied");
    let overdrawn = draft.is_set("overdraft");
    if let Some(mark) = draft.given("overdraft_limit").filter(|_| !overdrawn) {
        diagnostics.add(mark, "`overdraft_limit` needs `overdraft: true`");
        return None;
    }
    match (counted, overdrawn) {
        (false, false) => Some(Excess::Refuse),
        (true, false) => Some(Excess::Count),
        (false, true) => {
            Some(Excess::Overdraft(draft.integer("overdraft_limit").map_or(default_debt, |max| max.value)))
        }
        (true, true) => {
            let mark = draft.given("overdraft").unwrap_or(draft.mark);
            diagnostics.add(mark, "`overdraft` cannot be combined with `count_denied`; remove one of them");
            None
        }
    }
}

/// The maximum debt.
pub(super) fn debt(excess: Excess) -> u64 {
    match excess {
        Excess::Refuse | Excess::Count => 0,
        Excess::Overdraft(max) => max,
    }
}
