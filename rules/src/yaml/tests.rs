use proptest::prelude::*;

use super::*;

fn problems(text: &str) -> Vec<String> {
    let problem = |problem: &Located<String>| {
        format!("{}:{}: {}", problem.mark.line, problem.mark.column, problem.value)
    };
    load(text.as_bytes()).problems.iter().map(problem).collect()
}

fn json(text: &str) -> serde_json::Value {
    let stream = load(text.as_bytes());
    assert_eq!(stream.problems, []);
    stream.documents[0].to_json(&mut Vec::new())
}

#[test]
fn nodes_keep_positions_and_scalars_keep_texts() {
    let stream = load("a: 010\nb:\n  - 'yes'\n  - ä: 1.50\n".as_bytes());
    let YamlValue::Mapping(pairs) = &stream.documents[0].value else { panic!("a mapping") };
    assert_eq!(pairs[0].value.value, YamlValue::Scalar(Scalar { text: "010".into(), quoted: false }));
    assert_eq!(
        (pairs[1].mark, pairs[1].value.mark),
        (Mark { line: 2, column: 1 }, Mark { line: 3, column: 3 })
    );
    let YamlValue::List(items) = &pairs[1].value.value else { panic!("a list") };
    assert_eq!(items[0].value, YamlValue::Scalar(Scalar { text: "yes".into(), quoted: true }));
    let YamlValue::Mapping(inner) = &items[1].value else { panic!("a mapping") };
    assert_eq!(inner[0].value.mark, Mark { line: 4, column: 8 });
}

#[test]
fn absent_value_is_null_at_the_position_of_its_key() {
    let stream = load(b"a:\nb: ~\n");
    let YamlValue::Mapping(pairs) = &stream.documents[0].value else { panic!("a mapping") };
    assert!(pairs[0].value.is_null() && pairs[1].value.is_null());
    assert_eq!(pairs[0].value.mark, Mark { line: 1, column: 1 });
    assert_eq!(pairs[1].value.mark, Mark { line: 2, column: 4 });
}

#[test]
fn empty_file_and_file_of_comments_have_no_document() {
    for text in ["", "\n\n", "# nothing\n"] {
        assert_eq!(load(text.as_bytes()).documents, [], "{text:?}");
    }
}

#[test]
fn duplicate_keys_and_non_text_keys_are_reported() {
    let text = "a: 1\nb: 2\na: 3\n0.25: x\ntrue: y\n~: z\n[1]: w\nb: 4\n'1': fine\n";
    assert_eq!(
        problems(text),
        [
            "4:1: a key must be text, but this is the number `0.25`; if it is meant as text, put it in quotes",
            "5:1: a key must be text, but this is the boolean `true`; if it is meant as text, put it in quotes",
            "6:1: a key must be text, but this is nothing; if it is meant as text, put it in quotes",
            "7:1: a key must be text, but this is a list",
            "3:1: `a` is given twice, first in line 1",
            "8:1: `b` is given twice, first in line 2",
        ]
    );
}

#[test]
fn syntax_error_ends_its_document_only() {
    let stream = load(b"a: [1, 2\n---\nb: 1\n---\nc: 'x\n");
    assert_eq!(stream.problems.iter().map(|problem| problem.mark.line).collect::<Vec<_>>(), [1, 6]);
    assert_eq!(stream.documents.len(), 1);
}

#[test]
fn anchors_aliases_and_merges_are_expanded() {
    let text =
        "base: &b {unit: day, n: 1}\none: *b\ntwo: {n: 2, <<: *b}\nthree: {<<: [{x: 1}, *b, {x: 2}]}\n";
    assert_eq!(
        json(text),
        serde_json::json!({
            "base": {"unit": "day", "n": 1},
            "one": {"unit": "day", "n": 1},
            "two": {"n": 2, "unit": "day"},
            "three": {"x": 1, "unit": "day", "n": 1},
        })
    );
}

#[test]
fn invalid_aliases_merges_and_tags_are_reported() {
    let text = "a: *gone\nb: &b [*b]\nc: {<<: 1}\nd: !!str 5\n";
    assert_eq!(
        problems(text),
        [
            "1:4: no anchor `&gone` before this alias",
            "2:8: this alias refers to a node that contains it",
            "3:9: `<<` takes a mapping or a list of mappings",
            "4:10: tags (`!...`) are not supported; text is written in quotes, all else without a tag",
        ]
    );
}

#[test]
fn exponential_alias_expansion_is_refused() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let alias = format!("*a{}", level - 1);
        text += &format!("a{level}: &a{level} [{}]\n", vec![alias; 10].join(", "));
    }
    assert_eq!(load(text.as_bytes()).problems.len(), 1);
}

#[test]
fn nesting_depth_is_bounded_in_every_notation() {
    let deep = DEPTH_MAX + 1;
    let mut chain = String::from("a0: &a0 []\n");
    (1..deep).for_each(|level| chain += &format!("a{level}: &a{level} [*a{}]\n", level - 1));
    let mapping: String = (0..deep).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    let mixed = format!("{}{}", "- ".repeat(20), "[".repeat(20));
    for text in [
        "[".repeat(5_000),
        "- ".repeat(5_000),
        "{a: ".repeat(5_000),
        "? ".repeat(5_000),
        chain,
        mapping,
        mixed,
    ] {
        let stream = load(text.as_bytes());
        assert_eq!(stream.problems.len(), 1, "{}", &text[..40]);
    }
    let fits = format!("{}{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
    assert_eq!(load(fits.as_bytes()).problems, []);
}

#[test]
fn byte_order_mark_and_crlf_are_ignored() {
    assert_eq!(json("\u{feff}a: b\r\nc:\r\n  - d\r\n"), serde_json::json!({"a": "b", "c": ["d"]}));
}

#[test]
fn invalid_utf_8_is_reported_with_line_and_column() {
    let stream = load(b"a: 1\n\xc3\xa4b: \xff\n");
    assert_eq!(stream.problems[0].mark, Mark { line: 2, column: 5 });
}

#[test]
fn file_beyond_the_size_bound_is_refused() {
    let bytes = vec![b' '; BYTES_MAX + 1];
    let stream = load(&bytes);
    assert_eq!(stream.problems.len(), 1);
}

#[test]
fn number_of_problems_is_bounded() {
    let text = "a: 1\n".repeat(PROBLEMS_MAX + 10);
    let stream = load(text.as_bytes());
    assert_eq!(stream.problems.len(), PROBLEMS_MAX);
}

proptest! {
    #[test]
    fn load_does_not_panic_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        load(&bytes);
    }

    #[test]
    fn load_does_not_panic_on_yaml_like_text(text in "[-a:&*?!|>\\[\\]{},#'\" \n\t0<%~]{0,60}") {
        load(text.as_bytes());
    }
}

proptest! {
    #[test]
    fn duplicate_keys_are_reported_and_dropped_at_any_size(
        keys in prop::collection::vec("k[a-d]{1,2}", 0..40),
    ) {
        let text: String = keys.iter().map(|key| format!("{key}: v\n")).collect();
        let text = format!("{{}}\n---\n{text}");
        let stream = load(text.as_bytes());
        let (mut kept, mut duplicates) = (Vec::new(), Vec::new());
        for (index, key) in keys.iter().enumerate() {
            match keys[..index].iter().position(|before| before == key) {
                None => kept.push((key.clone(), index + 3)),
                Some(first) => {
                    duplicates.push(format!("{}: `{key}` is given twice, first in line {}", index + 3, first + 3));
                }
            }
        }
        let problems = stream.problems.iter().map(|problem| format!("{}: {}", problem.mark.line, problem.value));
        prop_assert_eq!(problems.collect::<Vec<_>>(), duplicates);
        if let Some(YamlNode { value: YamlValue::Mapping(pairs), .. }) = stream.documents.get(1) {
            let pairs = pairs.iter().map(|pair| (pair.key.to_string(), pair.mark.line as usize));
            prop_assert_eq!(pairs.collect::<Vec<_>>(), kept);
        } else {
            prop_assert!(kept.is_empty());
        }
    }
}
