//! Names of counters for clients.

use crate::limiter::{ActiveView, Request, plan::AppliedLimit};

impl ActiveView<'_> {
    /// A name of the counter that decides the descriptor at this index: a keyed hash of its key, from which neither the
    /// key nor the position of the counter follows. `None` if there is no counter.
    pub fn partition_key(&self, request: &Request<'_>, descriptor: usize) -> Option<[u8; 8]> {
        let domain = self.rules.domain(request.domain)?;
        let descriptor = request.descriptors.get(descriptor)?;
        let applied = AppliedLimit::new(domain, descriptor, request);
        let key = applied.check(domain, descriptor)?.key;
        Some(self.rules.secret().hash(key).to_le_bytes())
    }
}
