use std::{borrow::Cow, io::Cursor};

use tollgate_counter::descriptor::escaped;

use super::*;
use tollgate_wire::descriptor_text;

/// Terms of any format.
fn terms(content: RecordContent) -> RecordedTerms {
    RecordedTerms {
        path: PathBuf::new(),
        format: None,
        columns: None,
        domain: Some("shop".into()),
        content,
        time_field: None,
        hits_field: None,
        is_strict: false,
    }
}

fn fields(template: &str) -> RecordContent {
    let entries = [descriptor_text::parse(template).unwrap()];
    RecordContent::Fields(DescriptorTemplate::new(entries.iter()).unwrap())
}

fn read_by(text: &str, terms: RecordedTerms) -> Result<(Vec<String>, Skipped), String> {
    let bytes = Box::new(Cursor::new(text.to_owned()));
    let mut recorded = Recorded::new(bytes, terms);
    let mut event = Event::default();
    let mut all = Vec::new();
    while recorded.next(&mut event)? {
        let entries: Vec<_> =
            event.entries().map(|entry| format!("{}={}", escaped(entry.key), escaped(entry.value))).collect();
        let text =
            |(range, hits): (std::ops::Range<usize>, u64)| format!("{hits} {}", entries[range].join(","));
        let descriptors: Vec<_> = event.descriptors().map(text).collect();
        let seconds = event.at.as_nanos() / tollgate_counter::time::SECOND;
        all.push(format!("{seconds} {} {}", event.domain(), descriptors.join(" ")));
    }
    Ok((all, recorded.skipped()))
}

fn read(text: &str, template: Option<&str>) -> (Vec<String>, Skipped) {
    read_by(text, terms(template.map_or(RecordContent::Requests, fields))).unwrap()
}

#[test]
fn json_lines_give_their_descriptors_or_those_of_the_template() {
    let own = r#"{"time": 5, "domain": "d", "hits": 3, "descriptors": [{"entries": [{"key": "a", "value": "b"}, {"key": "c"}]}]}"#;
    assert_eq!(read(own, None).0, ["5 d 3 a=b,c="]);
    let log = r#"{"start_time": "1970-01-01T00:00:07Z", "request": {"ip": "10.0.0.1"}, "path": "/a/b"}"#;
    assert_eq!(read(log, Some("ip={request.ip},p={path|first_segment}")).0, ["7 shop 1 ip=10.0.0.1,p=/a"]);
}

#[test]
fn descriptors_of_json_lines_may_have_their_own_hits() {
    let entries = |key: &str| format!(r#""entries": [{{"key": "{key}", "value": "1"}}]"#);
    let (own, text, none) = (entries("a"), entries("b"), entries("c"));
    let line = format!(
        r#"{{"time": 5, "hits": 3, "descriptors": [{{{own}, "hitsAddend": 2}}, {{{text}, "hitsAddend": "4"}}, {{{none}}}]}}"#
    );
    assert_eq!(read(&line, None).0, ["5 shop 2 a=1 4 b=1 3 c=1"]);
    let skipped = read(&line.replace("\"4\"", "0"), None).1;
    assert!(skipped.first_bad_lines[0].why.contains("`0` is no number of hits"), "{skipped:?}");
}

#[test]
fn end_of_a_recording_says_what_was_left_out() {
    let lines = [
        r#"{"time": 5, "descriptors": [{"entries": [{"key": "a", "value": "b"}]}]}"#,
        r#"{"recording": {"requests": 1, "left_out": 7, "values": "plain"}}"#,
    ];
    let (read, skipped) = read(&lines.join("\n"), None);
    assert_eq!((read, skipped.unrecorded, skipped.bad_lines), (vec!["5 shop 1 a=b".to_owned()], 7, 0));
}

#[test]
fn denials_of_a_log_are_read_and_other_events_are_not() {
    let denial = r#"{"timestamp":"1970-01-01T00:00:05Z","level":"INFO","message":"denied","domain":"edge","rule":"r","descriptor":"path=/a\\,b,user=ann","hits":2,"limit":5,"call_passes":false,"left_out":3,"target":"t"}"#;
    let lines = [
        r#"{"timestamp":"1970-01-01T00:00:04Z","level":"INFO","message":"listening","target":"t"}"#,
        denial,
        &denial.replace("\"hits\":2", "\"hits\":0"),
        &denial.replace("user=ann", "user=a…"),
    ];
    let (read, skipped) = read_by(&lines.join("\n"), terms(RecordContent::Denials)).unwrap();
    assert_eq!(read, ["5 edge 2 path=/a,b,user=ann"]);
    assert_eq!((skipped.unrecorded, skipped.bad_lines), (3, 1));
    assert!(skipped.first_bad_lines[0].why.contains("cut"), "{skipped:?}");
}

#[test]
fn csv_columns_are_named_by_header_or_by_flag() {
    let text = "user,timestamp,hits\nann,5,2\n\"b, \"\"c\"\"\",6,1\n";
    let expected = ["5 shop 2 u=ann", "6 shop 1 u=b, \"c\""];
    assert_eq!(read(text, Some("u={user}")).0, expected);
    let names = ["user", "time", "hits"].map(str::to_owned).to_vec();
    let text = text.split_once('\n').unwrap().1;
    let named = read_by(text, RecordedTerms { columns: Some(names), ..terms(fields("u={user}")) });
    assert_eq!(named.unwrap().0, expected);
}

#[test]
fn default_access_log_of_envoy_is_read() {
    let line = r#"[1970-01-01T00:00:09.000Z] "GET /a/b HTTP/2" 200 - 0 1 2 3 "10.0.0.7,10.0.0.8" "-" "id" "host" "-""#;
    assert_eq!(read(line, Some("ip={x_forwarded_for|first}")).0, ["9 shop 1 ip=10.0.0.7"]);
}

#[test]
fn combined_access_log_is_found_by_its_first_line() {
    let line = r#"10.0.0.7 - ann [01/Jan/1970:00:00:09 +0000] "GET /a/b HTTP/2.0" 200 1 "-" "curl""#;
    let template = Some("ip={remote_addr},p={path|first_segment}");
    let text = format!("{line}\n{}\n", line.replace("GET /a/b HTTP/2.0", "-"));
    let (read, skipped) = read(&text, template);
    assert_eq!(read, ["9 shop 1 ip=10.0.0.7,p=/a"]);
    assert_eq!((skipped.bad_lines, skipped.without_descriptor), (0, 1));
}

#[test]
fn bad_lines_are_counted_and_named_by_number() {
    let text = "user,time\nann,5\nbob\nann,soon\n\"ann,5\n,6\nbob,7\n";
    let (read, skipped) = read(text, Some("u={user}"));
    assert_eq!(read, ["5 shop 1 u=ann", "7 shop 1 u=bob"]);
    assert_eq!((skipped.bad_lines, skipped.without_descriptor), (3, 1));
    let lines: Vec<_> = skipped.first_bad_lines.iter().map(|bad| bad.line).collect();
    assert_eq!(lines, [3, 4, 5]);
    assert!(skipped.first_bad_lines[1].why.contains("`soon` is no time"), "{skipped:?}");
}

#[test]
fn strict_input_stops_at_the_first_bad_line() {
    let terms = RecordedTerms { format: Some(FormatName::Csv), is_strict: true, ..terms(fields("u={user}")) };
    let stopped = read_by("user,time\nann,5\nbob\n", terms);
    assert_eq!(stopped.unwrap_err(), "line 3: another number of columns than the header: 1, not 2");
}

#[test]
fn number_of_named_bad_lines_is_bounded() {
    let text = "{\n".repeat(NAMED_MAX + 3);
    let skipped = read(&text, None).1;
    assert_eq!(skipped.bad_lines as usize, NAMED_MAX + 3);
    assert_eq!(skipped.first_bad_lines.len(), NAMED_MAX);
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>, format in 0..=FormatName::ALL.len(), content in 0..3_usize) {
        let format = format.checked_sub(1).map(|index| FormatName::ALL[index]);
        let content = match content {
            0 => RecordContent::Requests,
            1 => RecordContent::Denials,
            _ => fields("u={a|first}"),
        };
        let terms = RecordedTerms { format, domain: None, ..terms(content) };
        let mut recorded = Recorded::new(Box::new(Cursor::new(bytes)), terms);
        let mut event = Event::default();
        while recorded.next(&mut event).unwrap() {}
    }

    #[test]
    fn any_csv_line_has_the_values_that_were_written(
        values in proptest::collection::vec("[ -~]{0,8}", 2..5),
    ) {
        let quoted: Vec<_> = values.iter().map(|value| format!("\"{}\"", value.replace('"', "\"\""))).collect();
        let names: Vec<_> = (0..values.len()).map(|index| format!("c{index}")).collect();
        let mut format = RecordFormat::new(Some(FormatName::Csv), Some(names));
        let line = quoted.join(",");
        let record = format.read(&line).unwrap().unwrap();
        for (index, value) in values.iter().enumerate() {
            let found = record.get(&format!("c{index}")).map(Cow::into_owned);
            proptest::prop_assert_eq!(found.unwrap_or_default(), value.as_bytes());
        }
    }
}
