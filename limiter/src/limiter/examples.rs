//! Examples of what callers send and no rule matches, for `/doctor`.

use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use tollgate_counter::{
    descriptor::{Entry, OwnedEntry},
    lock::lock,
};

/// The maximum number of examples.
const KEPT_MAX: usize = 16;
/// The number of requests that are compared with the examples until [`Examples::each`] is called next.
const ATTEMPTS_MAX: u32 = 256;
/// The maximum length of all texts of an example, in bytes. Longer ones are left out.
const BYTES_MAX: usize = 1024;

/// Examples that differ in their domain or their keys. After a bounded number of requests a further one costs a read of
/// a number that does not change.
#[derive(Debug)]
pub struct Examples {
    attempts_left: AtomicU32,
    kept: Mutex<Vec<Example>>,
}

/// A domain, and a descriptor unless no file has the domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The domain.
    pub domain: String,
    /// Keys and values.
    pub entries: Vec<OwnedEntry>,
}

impl Default for Examples {
    fn default() -> Self {
        Self { attempts_left: AtomicU32::new(ATTEMPTS_MAX), kept: Mutex::default() }
    }
}

impl Examples {
    #[inline(always)]
    pub(super) fn add(&self, domain: &str, entries: &[Entry<'_>]) {
        if self.attempts_left.load(Relaxed) > 0 {
            self.compare(domain, entries);
        }
    }

    #[cold]
    fn compare(&self, domain: &str, entries: &[Entry<'_>]) {
        // Concurrent requests may take the last attempt twice, which is harmless.
        self.attempts_left.store(self.attempts_left.load(Relaxed).saturating_sub(1), Relaxed);
        let bytes: usize = entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
        // A request does not wait for an operator who reads the list.
        let Ok(mut kept) = self.kept.try_lock() else { return };
        let is_kept = kept.iter().any(|example| example.is_like(domain, entries));
        if !is_kept && kept.len() < KEPT_MAX && domain.len() + bytes <= BYTES_MAX {
            let entries = entries.iter().map(|entry| (entry.key.to_owned(), entry.value.to_owned()));
            kept.push(Example { domain: domain.to_owned(), entries: entries.collect() });
        }
    }

    /// The examples that are `current`. The other ones are dropped, and requests are compared again.
    pub fn each(&self, current: impl Fn(&Example) -> bool) -> Vec<Example> {
        let mut kept = lock(&self.kept);
        kept.retain(current);
        self.attempts_left.store(ATTEMPTS_MAX, Relaxed);
        kept.clone()
    }
}

impl Example {
    /// The entries, as a lookup takes them.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        self.entries.iter().map(|(key, value)| Entry::new(key, value)).collect()
    }

    fn is_like(&self, domain: &str, entries: &[Entry<'_>]) -> bool {
        let keys = self.entries.iter().map(|(key, _)| key.as_slice());
        self.domain == domain && keys.eq(entries.iter().map(|entry| entry.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_bounded_in_number_and_length() {
        let examples = Examples::default();
        for number in 0..100 {
            examples.add(&format!("domain-{number}"), &[]);
            examples.add(&"long".repeat(BYTES_MAX), &[]);
        }
        assert_eq!(examples.each(|_| true).len(), KEPT_MAX);
        assert!(examples.each(|_| false).is_empty());
    }

    #[test]
    fn examples_of_other_values_are_one() {
        let examples = Examples::default();
        for value in ["a", "b", "c"] {
            examples.add("edge", &[Entry::new("user", value)]);
            examples.add("edge", &[Entry::new("path", value)]);
        }
        let kept: Vec<_> = examples.each(|_| true).into_iter().map(|example| example.entries).collect();
        let entry = |key: &str| vec![(key.into(), "a".into())];
        assert_eq!(kept, [entry("user"), entry("path")]);
    }

    #[test]
    fn requests_are_compared_until_attempts_are_used_up() {
        let examples = Examples::default();
        (0..ATTEMPTS_MAX).for_each(|_| examples.add("edge", &[]));
        examples.add("other", &[]);
        assert_eq!(examples.each(|_| true).len(), 1);
        examples.add("other", &[]);
        assert_eq!(examples.each(|_| true).len(), 2);
    }
}
