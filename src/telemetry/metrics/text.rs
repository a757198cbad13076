//! The Prometheus text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use crate::telemetry::metrics::{Buckets, Metric};

/// The content type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics under construction.
#[derive(Debug, Default)]
pub struct Page(String);

/// One metric on a page.
#[derive(Debug)]
pub struct Family<'p> {
    page: &'p mut String,
    metric: Metric,
}

impl Page {
    /// Begins a metric. Each metric may occur only once on a page.
    pub fn family(&mut self, metric: Metric) -> Family<'_> {
        let Metric { name, kind, help, .. } = metric;
        write(&mut self.0, format_args!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.name()));
        Family { page: &mut self.0, metric }
    }

    /// Adds a metric with a single value.
    pub fn single(&mut self, metric: Metric, value: impl Display) {
        self.family(metric).sample(&[], value);
    }

    /// The text of the page.
    pub fn finish(self) -> String {
        self.0
    }
}

impl Family<'_> {
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
        let (name, Buckets { up_to, count, sum }) = (self.metric.name, buckets);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::{ALL, HITS, MetricKind, QUEUE_DELAY, RULES, cluster};

    #[test]
    fn page_is_in_text_format_with_escaped_label_values() {
        let mut page = Page::default();
        page.family(HITS).sample(&["a\"b\\c\nd", "µ.é=1,"], 7);
        page.single(RULES, 0.5);
        let buckets = Buckets { up_to: vec![(0.001, 1), (2.5, 3)], count: 4, sum: 12.25 };
        page.family(QUEUE_DELAY).buckets(&buckets);
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
    fn exactly_counters_end_with_total() {
        for metric in ALL.iter().chain(cluster::ALL) {
            assert_eq!(
                metric.kind == MetricKind::Counter,
                metric.name.ends_with("_total"),
                "{}",
                metric.name
            );
        }
    }
}
