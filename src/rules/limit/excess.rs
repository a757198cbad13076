//! What becomes of a charge that is larger than what is left.

use crate::{
    algorithm::Excess,
    rules::{file::RateLimit, place::Report, reader::Located},
};

/// What `count_denied`, `overdraft` and `overdraft_limit` say together; a debt is at most `usual` without the
/// last.
pub(super) fn excess(draft: &RateLimit, usual: u64, report: &mut Report<'_>) -> Option<Excess> {
    let is_set = |flag: &Option<Located<bool>>| flag.as_ref().is_some_and(|flag| flag.value);
    let (counted, overdrawn) = (is_set(&draft.count_denied), is_set(&draft.overdraft));
    if let Some(mark) = draft.given("overdraft_limit").filter(|_| !overdrawn) {
        report.add(mark, "`overdraft_limit` needs `overdraft: true`");
        return None;
    }
    match (counted, overdrawn) {
        (false, false) => Some(Excess::Refuse),
        (true, false) => Some(Excess::Count),
        (false, true) => {
            Some(Excess::Overdraft(draft.overdraft_limit.as_ref().map_or(usual, |most| most.value)))
        }
        (true, true) => {
            let mark = draft.given("overdraft").unwrap_or(draft.mark);
            report.add(mark, "`overdraft` does not go with `count_denied`; drop one of them");
            None
        }
    }
}

/// The largest debt there can be.
pub(super) fn debt(excess: Excess) -> u64 {
    match excess {
        Excess::Refuse | Excess::Count => 0,
        Excess::Overdraft(most) => most,
    }
}
