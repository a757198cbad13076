//! The memory of batches that are received in pieces, over all peers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of incomplete batches from which on only one of them grows.
const SHARED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The memory for the incomplete batches of all peers: a maximum, and one batch that may grow beyond it. So there is
/// always one that becomes complete, and frees its memory, while the links of the others wait.
#[derive(Debug)]
pub(super) struct AssemblyBudget {
    shared_max: usize,
    state: Mutex<BudgetState>,
}

#[derive(Debug, Default)]
struct BudgetState {
    used: usize,
    /// Whether a batch may grow beyond the maximum.
    has_exempt: bool,
}

/// What the incomplete batch of one session takes.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    budget: Arc<AssemblyBudget>,
    bytes: usize,
    is_exempt: bool,
}

impl AssemblyBudget {
    pub(super) fn new(shared_max: usize) -> Self {
        Self { shared_max, state: Mutex::default() }
    }

    /// The bytes that incomplete batches take.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.state().used
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        // Each change is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for AssemblyBudget {
    fn default() -> Self {
        Self::new(SHARED_BYTES_MAX)
    }
}

impl Assembly {
    pub(super) fn new(budget: Arc<AssemblyBudget>) -> Self {
        Self { budget, ..Self::default() }
    }

    /// Takes as much as the batch needs to have this many bytes. False if it has to wait for other batches.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        // A piece that arrives again over another connection has taken its bytes already.
        if bytes <= self.bytes {
            return true;
        }
        let mut state = self.budget.state();
        let used = state.used + bytes - self.bytes;
        if used > self.budget.shared_max && !self.is_exempt {
            if state.has_exempt {
                return false;
            }
            (self.is_exempt, state.has_exempt) = (true, true);
        }
        state.used = used;
        self.bytes = bytes;
        true
    }

    /// Frees everything: the batch is complete.
    pub(super) fn end(&mut self) {
        let mut state = self.budget.state();
        state.used -= self.bytes;
        state.has_exempt &= !self.is_exempt;
        (self.bytes, self.is_exempt) = (0, false);
    }
}

impl Drop for Assembly {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_batch_grows_beyond_the_maximum_while_others_wait() {
        let budget = Arc::new(AssemblyBudget::new(100));
        let [mut one, mut two, mut three] = [(); 3].map(|()| Assembly::new(budget.clone()));
        assert!(one.take(60) && two.take(40));
        assert!(two.take(50), "it is the only one beyond the maximum");
        assert!(!one.take(61) && !three.take(1) && two.take(500));
        assert_eq!(budget.used(), 560);
        assert!(one.take(60), "it has them already");
        two.end();
        assert!(one.take(100) && three.take(1), "the next one is beyond it");
        drop((one, three));
        assert_eq!(budget.used(), 0, "an ended session frees its memory");
        assert!(two.take(101));
    }
}
