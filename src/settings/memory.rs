//! The memory available to the process, and the share of it that each bound gets by default.

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

/// The minimum number of connections of `auto`.
const CONNECTIONS_MIN: usize = 100;
/// The minimum memory for requests, and for replies, in bytes: a message of the maximum size with its overhead.
const MESSAGES_BYTES_MIN: u64 = 8 * 1024 * 1024;
/// The assumed memory of a machine that does not report it, in bytes.
const UNKNOWN_BYTES: u64 = 1024 * 1024 * 1024;
/// The root of `/sys` and `/proc`.
const ROOT: &str = "/";

/// A share of the memory available to the process. What all shares leave is for rules and code.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryShare {
    percent: u64,
    /// The minimum that may be set, in bytes.
    pub(super) bytes_min: u64,
}

/// A share of the memory available to the process for connections: the memory of each, as measured idle with TLS, and the
/// maximum of `auto`.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionShare {
    percent: u64,
    bytes_each: u64,
    connections_max: usize,
}

impl MemoryShare {
    /// Counters.
    pub(super) const COUNTERS: Self = Self { percent: 50, bytes_min: tollgate_store::BYTES_MIN };
    /// Incomplete requests.
    pub(super) const REQUESTS: Self = Self { percent: 10, bytes_min: MESSAGES_BYTES_MIN };
    /// Unsent replies.
    pub(super) const REPLIES: Self = Self { percent: 10, bytes_min: MESSAGES_BYTES_MIN };
    /// Streams of quotas, which are served only if a setting says so.
    pub(super) const QUOTAS: Self = Self { percent: 5, bytes_min: tollgate_store::BYTES_MIN };

    /// The share of the usable memory in bytes, and at least the minimum.
    pub(super) fn bytes(self) -> u64 {
        usable_bytes(self.percent).max(self.bytes_min)
    }

    /// The numbers of bytes that may be set.
    pub(super) fn bounds(self) -> RangeInclusive<u64> {
        self.bytes_min..=SystemMemory::for_process().total.unwrap_or(u64::MAX)
    }
}

impl ConnectionShare {
    /// Connections of the gRPC listener, each with the unsent replies that it may always have.
    pub(super) const GRPC: Self = Self { percent: 16, bytes_each: 64 * 1024, connections_max: 10_000 };
    /// Connections of the HTTP listener.
    pub(super) const HTTP: Self = Self { percent: 4, bytes_each: 32 * 1024, connections_max: 1_000 };

    /// The number of connections that fit into this share, within the bounds of `auto`.
    pub(super) fn connections(self) -> usize {
        let fitting = usable_bytes(self.percent) / self.bytes_each;
        let max = self.connections_max;
        usize::try_from(fitting).unwrap_or(max).clamp(CONNECTIONS_MIN, max)
    }
}

/// A part of the usable memory, in bytes.
fn usable_bytes(percent: u64) -> u64 {
    SystemMemory::for_process().usable / 100 * percent
}

/// The memory at the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SystemMemory {
    /// The limit of the control group, or else the memory of the machine, in bytes.
    total: Option<u64>,
    /// The limit of the control group, or else the available memory of the machine, in bytes.
    usable: u64,
}

impl SystemMemory {
    fn for_process() -> Self {
        Self::under(Path::new(ROOT))
    }

    /// Reads the files under `root`.
    fn under(root: &Path) -> Self {
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let machine = |name| kibibytes(&meminfo, name);
        let group = group_limit(root);
        let total = group.into_iter().chain(machine("MemTotal:")).min();
        let available = machine("MemAvailable:").or(machine("MemTotal:"));
        let usable = group.into_iter().chain(available).min().unwrap_or(UNKNOWN_BYTES);
        Self { total, usable }
    }
}

/// The smallest limit of the control group of this process and of its ancestors, in cgroup v1 and v2.
fn group_limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| {
        // A line has a number, the controllers, and the path of the group; v2 has no controllers.
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group: PathBuf = path.trim_start_matches('/').into();
        // No number for `max`.
        let read = |group: &Path| fs::read_to_string(root.join(mount).join(group).join(file)).ok();
        let limit = |group: &Path| read(group)?.trim().parse::<u64>().ok();
        // In a container the path may be that of the host; then only the group at the mount point exists.
        group.ancestors().filter_map(limit).min()
    });
    limits.min()
}

/// A value in the text of `/proc/meminfo`, in bytes.
fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    /// A machine with 1,000 MiB, of which 600 MiB are available, and these files.
    fn memory(files: &[(&str, &str)]) -> SystemMemory {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal: 1024000 kB\nMemFree: 1 kB\nMemAvailable: 614400 kB\n");
        for (path, text) in [meminfo].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        SystemMemory::under(root.path())
    }

    #[test]
    fn memory_without_group_limit_is_available_memory() {
        let machine = SystemMemory { total: Some(1_000 * MIB), usable: 600 * MIB };
        assert_eq!(memory(&[]), machine);
        let unlimited = [("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")];
        assert_eq!(memory(&unlimited), machine);
    }

    #[test]
    fn memory_is_the_smallest_limit_of_group_and_ancestors() {
        let limited = SystemMemory { total: Some(256 * MIB), usable: 256 * MIB };
        let second = [
            ("proc/self/cgroup", "0::/pods/one\n"),
            ("sys/fs/cgroup/pods/memory.max", "268435456\n"),
            ("sys/fs/cgroup/pods/one/memory.max", "max\n"),
        ];
        assert_eq!(memory(&second), limited);
        let first = [
            ("proc/self/cgroup", "3:cpu,cpuacct:/one\n2:memory:/one\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/one/memory.limit_in_bytes", "268435456\n"),
        ];
        assert_eq!(memory(&first), limited);
        // A container sees its own group at the mount point, whatever path the host assigned.
        let container =
            [("proc/self/cgroup", "0::/kubepods/pod7\n"), ("sys/fs/cgroup/memory.max", "268435456\n")];
        assert_eq!(memory(&container), limited);
    }

    #[test]
    fn shares_leave_a_twentieth_for_rules_and_code() {
        let of_bytes =
            [MemoryShare::COUNTERS, MemoryShare::REQUESTS, MemoryShare::REPLIES, MemoryShare::QUOTAS];
        let of_connections = [ConnectionShare::GRPC, ConnectionShare::HTTP];
        let percents = of_bytes.iter().map(|share| share.percent);
        assert_eq!(percents.chain(of_connections.iter().map(|share| share.percent)).sum::<u64>(), 95);
    }
}
