//! The memory of batches that are received in pieces, over all peers.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The bytes that the incomplete batches of all peers share.
const SHARED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The memory for the incomplete batches of all peers: a maximum, and one batch that may grow beyond it. So there is
/// always one that becomes complete, and frees its memory, while the links of the others wait.
#[derive(Clone, Debug)]
pub(super) struct AssemblyBudget {
    shared: Arc<Semaphore>,
    exempt: Arc<Semaphore>,
}

/// What the incomplete batch of one session takes.
#[derive(Debug)]
pub(super) struct Assembly {
    budget: AssemblyBudget,
    taken: Option<OwnedSemaphorePermit>,
    /// Held by the batch that may grow beyond the maximum.
    exempt: Option<OwnedSemaphorePermit>,
}

impl AssemblyBudget {
    pub(super) fn new(shared_max: usize) -> Self {
        Self { shared: Arc::new(Semaphore::new(shared_max)), exempt: Arc::new(Semaphore::new(1)) }
    }

    /// The bytes that may still be taken.
    #[cfg(test)]
    pub(super) fn available(&self) -> usize {
        self.shared.available_permits()
    }
}

impl Default for AssemblyBudget {
    fn default() -> Self {
        Self::new(SHARED_BYTES_MAX)
    }
}

impl Assembly {
    pub(super) fn new(budget: AssemblyBudget) -> Self {
        Self { budget, taken: None, exempt: None }
    }

    /// Takes as much as the batch needs to have this many bytes. False if it has to wait for other batches.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        // A piece that arrives again over another connection has taken its bytes already.
        let missing = bytes.saturating_sub(self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if missing == 0 || self.exempt.is_some() {
            return true;
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let Ok(more) = self.budget.shared.clone().try_acquire_many_owned(missing) else {
            self.exempt = self.budget.exempt.clone().try_acquire_owned().ok();
            return self.exempt.is_some();
        };
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        true
    }

    /// Frees everything: the batch is complete.
    pub(super) fn end(&mut self) {
        (self.taken, self.exempt) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_batch_grows_beyond_the_maximum_while_others_wait() {
        let budget = AssemblyBudget::new(100);
        let [mut one, mut two, mut three] = [(); 3].map(|()| Assembly::new(budget.clone()));
        assert!(one.take(60) && two.take(40));
        assert!(two.take(50), "it is the only one beyond the maximum");
        assert!(!one.take(61) && !three.take(1) && two.take(500));
        assert_eq!(budget.available(), 0);
        assert!(one.take(60), "it has them already");
        two.end();
        assert!(one.take(100) && three.take(1), "the next one is beyond it");
        drop((one, three));
        assert_eq!(budget.available(), 100, "an ended session frees its memory");
        assert!(two.take(101));
    }
}
