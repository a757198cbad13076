//! What Linux tells of this process.

use std::fs;

/// In how many parts Linux divides a second in `/proc`, on all machines that we run on.
const TICKS: f64 = 100.0;

/// What this process uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessStats {
    /// CPU time, user and system, in seconds.
    pub cpu_seconds: f64,
    /// When it started, in seconds since the Unix epoch.
    pub started: f64,
    /// Memory in RAM, in bytes.
    pub resident_bytes: u64,
}

impl ProcessStats {
    /// What it uses now; `None` where `/proc` does not tell.
    pub fn now() -> Option<Self> {
        let read = |path| fs::read_to_string(path).ok();
        parse(&read("/proc/self/stat")?, &read("/proc/self/status")?, &read("/proc/stat")?)
    }
}

fn parse(stat: &str, status: &str, machine: &str) -> Option<ProcessStats> {
    // The second field is a name in brackets, which may hold anything; the third follows the last bracket.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
    let number = |text: &str, label: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(label))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some(ProcessStats {
        cpu_seconds: (ticks(14)? + ticks(15)?) / TICKS,
        started: number(machine, "btime ")? as f64 + ticks(22)? / TICKS,
        resident_bytes: number(status, "VmRSS:")?.checked_mul(1024)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_found_whatever_the_program_is_called() {
        let stat =
            "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 3 0 1025 99 12 18446744073709551615";
        let status = "Name:\ta) b\nVmRSS:\t    2048 kB\n";
        let expected = ProcessStats { cpu_seconds: 3.0, started: 1_010.25, resident_bytes: 2_097_152 };
        assert_eq!(parse(stat, status, "cpu 1 2\nbtime 1000\n"), Some(expected));
    }
}
