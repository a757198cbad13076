//! Bounds on the checks that wait for counters elsewhere: of a call, of a connection and of this replica.

use std::sync::{Arc, Mutex};

use tollgate_counter::{
    lock::lock,
    resilience::{Caller, Overloaded},
};

/// The most checks in one call.
const CHECKS_PER_CALL_MAX: usize = 1_024;
/// The most open checks of all calls.
const OPEN_CHECKS_MAX: usize = 32_768;
/// A connection gets at most this fraction of what the other connections leave free, so that no connection takes
/// everything.
const CONNECTION_SHARE: usize = 8;

/// The open checks of all calls. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenCheckBounds(Arc<Mutex<usize>>);

/// The open checks of one call. They are open until this is dropped.
#[derive(Debug)]
pub struct OpenChecks {
    checks: usize,
    connection: Caller,
    all: Arc<Mutex<usize>>,
}

impl OpenCheckBounds {
    /// Opens a call with this many checks of `connection`.
    pub(super) fn open(&self, checks: usize, connection: &Caller) -> Result<OpenChecks, Overloaded> {
        let mut all = lock(&self.0);
        let own = connection.open_checks();
        let of_others = all.saturating_sub(own);
        let room = OPEN_CHECKS_MAX.saturating_sub(of_others) / CONNECTION_SHARE;
        if checks > CHECKS_PER_CALL_MAX || own + checks > room {
            return Err(Overloaded);
        }
        *all += checks;
        connection.set_open_checks(own + checks);
        Ok(OpenChecks { checks, connection: connection.clone(), all: self.0.clone() })
    }
}

impl Drop for OpenChecks {
    fn drop(&mut self) {
        let mut all = lock(&self.all);
        *all -= self.checks;
        self.connection.set_open_checks(self.connection.open_checks() - self.checks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_checks(bounds: &OpenCheckBounds) -> usize {
        *lock(&bounds.0)
    }

    #[test]
    fn call_with_too_many_checks_is_refused_and_reserves_nothing() {
        let (bounds, connection) = (OpenCheckBounds::default(), Caller::default());
        assert_eq!(bounds.open(30_000, &connection).err(), Some(Overloaded));
        assert_eq!(bounds.open(CHECKS_PER_CALL_MAX + 1, &connection).err(), Some(Overloaded));
        assert_eq!((open_checks(&bounds), connection.open_checks()), (0, 0));
        assert!(bounds.open(CHECKS_PER_CALL_MAX, &connection).is_ok());
    }

    #[test]
    fn connection_at_its_bound_is_refused_until_a_call_ends() {
        let (bounds, connection) = (OpenCheckBounds::default(), Caller::default());
        let mut open: Vec<OpenChecks> = std::iter::from_fn(|| bounds.open(256, &connection).ok()).collect();
        assert_eq!(open.len() * 256, OPEN_CHECKS_MAX / CONNECTION_SHARE);
        assert!(bounds.open(256, &Caller::default()).is_ok());
        assert!(bounds.open(1, &connection).is_err());
        open.pop();
        assert!(bounds.open(1, &connection).is_ok());
        drop(open);
        assert_eq!((open_checks(&bounds), connection.open_checks()), (0, 0));
    }

    #[test]
    fn greedy_connections_leave_room_for_others() {
        let bounds = OpenCheckBounds::default();
        let mut taken = Vec::new();
        for _ in 0..500 {
            let greedy = Caller::default();
            let open: Vec<OpenChecks> = std::iter::from_fn(|| bounds.open(1, &greedy).ok()).collect();
            taken.push((greedy, open));
        }
        assert!(open_checks(&bounds) <= OPEN_CHECKS_MAX);
        let (greedy, open) = &mut taken[0];
        open.truncate(open.len() - 100);
        assert!(bounds.open(1, greedy).is_err());
        assert!(bounds.open(1, &Caller::default()).is_ok());
    }
}
