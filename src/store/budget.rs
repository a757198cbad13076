//! How much memory counters may take.

use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
};

/// The least that a budget may be, in bytes.
pub const BYTES_MIN: u64 = 1024 * 1024;

/// Where control groups tell how much memory this process may use, in their two versions.
const GROUP_LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Bytes that may be taken, and that are.
#[derive(Debug)]
pub(super) struct Budget {
    most: usize,
    taken: AtomicUsize,
}

impl Budget {
    pub(super) fn new(most: u64) -> Self {
        Self { most: usize::try_from(most).unwrap_or(usize::MAX), taken: AtomicUsize::new(0) }
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether that many more would be too many.
    pub(super) fn is_short_of(&self, bytes: usize) -> bool {
        self.most < self.taken().saturating_add(bytes)
    }

    /// Notes that what took `before` bytes now takes `after`.
    pub(super) fn change(&self, before: usize, after: usize) {
        if before <= after {
            self.taken.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.taken.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

/// The memory that this process may use: its control group's limit, at most the machine's; `None` where neither
/// can be told.
pub fn machine_memory() -> Option<u64> {
    let number = |path: &&str| fs::read_to_string(path).ok()?.trim().parse().ok();
    let groups = GROUP_LIMITS.iter().filter_map(number);
    let machine = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(total);
    groups.chain(machine).min()
}

/// The total in the text of `/proc/meminfo`, which counts in KiB.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_memory_is_read_in_bytes() {
        assert_eq!(total("MemTotal:       16316412 kB\nMemFree: 1 kB\n"), Some(16_316_412 * 1024));
        assert_eq!(total("nothing"), None);
    }
}
