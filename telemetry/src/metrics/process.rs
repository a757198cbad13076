//! Process stats from `/proc`.

use std::fs;

/// Clock ticks per second in `/proc` (`USER_HZ`), on all supported machines.
const TICKS: f64 = 100.0;

/// Resource usage of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessStats {
    /// CPU time, user and system, in seconds.
    pub cpu_seconds: f64,
    /// The start time, in seconds since the Unix epoch.
    pub started: f64,
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
}

impl ProcessStats {
    /// The current usage; `None` if `/proc` does not provide it.
    pub fn now() -> Option<Self> {
        let read = |path| fs::read_to_string(path).ok();
        parse(&read("/proc/self/stat")?, &read("/proc/self/status")?, &read("/proc/stat")?)
    }
}

fn parse(stat: &str, status: &str, machine: &str) -> Option<ProcessStats> {
    // The second field is the name of the program in brackets and may contain anything, so the fields are counted
    // from the last bracket.
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
    fn fields_are_found_for_any_program_name() {
        let stat =
            "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 3 0 1025 99 12 18446744073709551615";
        let status = "Name:\ta) b\nVmRSS:\t    2048 kB\n";
        let expected = ProcessStats { cpu_seconds: 3.0, started: 1_010.25, resident_bytes: 2_097_152 };
        assert_eq!(parse(stat, status, "cpu 1 2\nbtime 1000\n"), Some(expected));
    }
}
