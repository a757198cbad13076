//! The length of sources: a file is one topic.

use crate::layers::sources;

/// The most lines of a source, with its tests.
const LINES_MAX: usize = 400;

#[test]
fn sources_are_short() {
    let mut long = Vec::new();
    for folder in ["limiter/src", "src", "tests/it", "tests/redis", "clients/rust/src"] {
        let found = sources(folder);
        assert!(!found.is_empty(), "no sources in {folder}");
        for (file, source) in found {
            let lines = source.lines().count();
            if lines > LINES_MAX {
                long.push(format!("{folder}/{file} has {lines} lines"));
            }
        }
    }
    assert!(long.is_empty(), "at most {LINES_MAX} lines each: {long:#?}");
}
