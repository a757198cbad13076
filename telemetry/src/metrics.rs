//! Metrics as Prometheus reads them, and the stats of the process from `/proc`.

use std::{
    fmt::{Display, Write as _},
    fs,
};

use tollgate_counter::{metrics::Buckets, named};

/// The content type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, which ends with the unit, and with `_total` for counters.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The names of the labels. Label values come from the rules, and from requests only if a rule asks for it.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

named! {
    /// The kind of a metric, with its name in the text format.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MetricKind {
        /// The value only grows, from 0 at the start of the process.
        Counter = "counter",
        /// Goes up and down.
        Gauge = "gauge",
        /// Counts in buckets.
        Histogram = "histogram",
    }
}

/// A metric with the function that writes its series from a reading of type `R`.
#[derive(Debug)]
pub struct Row<R: 'static> {
    /// The metric.
    pub metric: Metric,
    /// Writes the series.
    pub series: fn(&R, &mut Family<'_>),
}

/// Defines a table of metrics: kind, name, labels, help, and how the series are written.
#[macro_export]
macro_rules! metrics {
    ($table:ident: $reading:ty; $($kind:ident $name:literal [$($label:literal),*] $help:literal => $series:expr;)*) => {
        /// All metrics, in the order of the page and of the documentation.
        pub const $table: &[$crate::metrics::Row<$reading>] = &[$($crate::metrics::Row {
            metric: $crate::metrics::Metric {
                name: $name,
                kind: $crate::metrics::MetricKind::$kind,
                labels: &[$($label),*],
                help: $help,
            },
            series: $series,
        }),*];
    };
}

pub use metrics;

/// A page of metrics under construction, with all metrics or `only` those with these names.
#[derive(Debug, Default)]
pub struct Page<'n> {
    text: String,
    only: Option<&'n [&'n str]>,
}

/// One metric on a page.
#[derive(Debug)]
pub struct Family<'p> {
    page: &'p mut String,
    metric: Metric,
}

impl<'n> Page<'n> {
    /// An empty page, which takes only metrics with these names.
    pub fn only(names: &'n [&'n str]) -> Self {
        Self { text: String::new(), only: Some(names) }
    }

    /// Adds the metrics of a table. Each metric may occur only once on a page.
    pub fn add<R>(&mut self, rows: &[Row<R>], reading: &R) {
        let only = self.only;
        let is_wanted = |row: &&Row<R>| only.is_none_or(|names| names.contains(&row.metric.name));
        for Row { metric, series } in rows.iter().filter(is_wanted) {
            let Metric { name, kind, help, .. } = *metric;
            write(&mut self.text, format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
            series(reading, &mut Family { page: &mut self.text, metric: *metric });
        }
    }

    /// Each series as the page names it, with its labels, and its value.
    pub fn series(&self) -> impl Iterator<Item = (&str, f64)> {
        let lines = self.text.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.rsplit_once(' '))
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
    }

    /// The text of the page.
    pub fn finish(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// Adds the value of a metric without labels.
    pub fn value(&mut self, value: impl Display) {
        self.sample(&[], value);
    }

    /// Adds a series with these label values, in the order of the metric's labels.
    pub fn sample(&mut self, values: &[&str], value: impl Display) {
        debug_assert_eq!(values.len(), self.metric.labels.len(), "one value per label");
        self.page.push_str(self.metric.name);
        for (index, (label, text)) in self.metric.labels.iter().zip(values).enumerate() {
            self.page.push(if index == 0 { '{' } else { ',' });
            self.page.push_str(label);
            self.page.push_str("=\"");
            escape(self.page, text);
            self.page.push('"');
        }
        let close = if values.is_empty() { "" } else { "}" };
        write(self.page, format_args!("{close} {value}\n"));
    }

    /// Adds the buckets of a histogram without labels.
    pub fn buckets(&mut self, buckets: &Buckets) {
        let name = self.metric.name;
        let Buckets { up_to, count, sum } = buckets;
        for (bound, number) in up_to {
            write(self.page, format_args!("{name}_bucket{{le=\"{bound}\"}} {number}\n"));
        }
        write(
            self.page,
            format_args!("{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}\n"),
        );
    }
}

fn write(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = page.write_fmt(text);
}

fn escape(page: &mut String, text: &str) {
    for character in text.chars() {
        match character {
            '\\' => page.push_str("\\\\"),
            '"' => page.push_str("\\\""),
            '\n' => page.push_str("\\n"),
            plain => page.push(plain),
        }
    }
}

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

    metrics! { ALL: Buckets;
        Counter "tollgate_hits_total" ["domain", "rule"]
            "Hits."
            => |_, family| family.sample(&["a\"b\\c\nd", "µ.é=1,"], 7);
        Gauge "tollgate_rules" []
            "Rules."
            => |_, family| family.value(0.5);
        Histogram "tollgate_queue_delay_seconds" []
            "Delays."
            => |all, family| family.buckets(all);
    }

    #[test]
    fn page_is_in_text_format_with_escaped_label_values() {
        let mut page = Page::default();
        page.add(ALL, &Buckets { up_to: vec![(0.001, 1), (2.5, 3)], count: 4, sum: 12.25 });
        let page = page.finish();
        let lines: Vec<_> = page.lines().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            lines,
            [
                "# TYPE tollgate_hits_total counter",
                r#"tollgate_hits_total{domain="a\"b\\c\nd",rule="µ.é=1,"} 7"#,
                "# TYPE tollgate_rules gauge",
                "tollgate_rules 0.5",
                "# TYPE tollgate_queue_delay_seconds histogram",
                r#"tollgate_queue_delay_seconds_bucket{le="0.001"} 1"#,
                r#"tollgate_queue_delay_seconds_bucket{le="2.5"} 3"#,
                r#"tollgate_queue_delay_seconds_bucket{le="+Inf"} 4"#,
                "tollgate_queue_delay_seconds_sum 12.25",
                "tollgate_queue_delay_seconds_count 4",
            ]
        );
    }

    #[test]
    fn series_of_named_metrics_are_read_back() {
        let mut page = Page::only(&["tollgate_rules", "tollgate_queue_delay_seconds"]);
        let buckets = Buckets { up_to: vec![(0.001, 1)], count: 4, sum: 12.25 };
        page.add(ALL, &buckets);
        let expected = [
            ("tollgate_rules", 0.5),
            ("tollgate_queue_delay_seconds_bucket{le=\"0.001\"}", 1.0),
            ("tollgate_queue_delay_seconds_bucket{le=\"+Inf\"}", 4.0),
            ("tollgate_queue_delay_seconds_sum", 12.25),
            ("tollgate_queue_delay_seconds_count", 4.0),
        ];
        assert_eq!(page.series().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn fields_are_found_for_any_program_name() {
        let stat =
            "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 3 0 1025 99 12 18446744073709551615";
        let status = "Name:\ta) b\nVmRSS:\t    2048 kB\n";
        let expected = ProcessStats { cpu_seconds: 3.0, started: 1_010.25, resident_bytes: 2_097_152 };
        assert_eq!(parse(stat, status, "cpu 1 2\nbtime 1000\n"), Some(expected));
    }
}
