//! The house has floors: a module looks down only, and never at a neighbour.

use std::{fs, path::Path};

/// From the ground up.
const FLOORS: [&[&str]; 10] = [
    &["files"],
    &["time", "descriptor", "telemetry", "yaml"],
    &["algorithm", "certificates"],
    &["rules", "store"],
    &["cluster"],
    &["limiter"],
    &["api"],
    &["settings"],
    &["server"],
    &["cli"],
];

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|modules| modules.contains(&module))
}

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            let name = path.strip_prefix(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
            found.push((name.to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The modules that a source names as `crate::module` or in `use crate::{module, module::{..}}`.
fn named(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in source.match_indices("crate::") {
        let rest = &source[at + "crate::".len()..];
        if let Some(group) = rest.strip_prefix('{') {
            let (mut depth, mut name) = (0, String::new());
            for character in group.chars() {
                match character {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => names.push(std::mem::take(&mut name)),
                    _ if depth == 0 => name.push(character),
                    _ => {}
                }
            }
            names.push(name);
        } else {
            names.push(
                rest.split(|character: char| !(character == '_' || character.is_alphanumeric()))
                    .next()
                    .unwrap()
                    .to_owned(),
            );
        }
    }
    let first = |name: &String| name.trim().split("::").next().unwrap().to_owned();
    names.iter().map(first).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_module_looks_down_only() {
    let mut found = Vec::new();
    sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
    let mut wrong = Vec::new();
    for (file, source) in &found {
        let module = file.split(['/', '.']).next().unwrap();
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let here = floor(module).unwrap_or_else(|| panic!("{module} has no floor"));
        for name in named(source).into_iter().filter(|name| name != module) {
            let there = floor(&name).unwrap_or_else(|| panic!("{file} names {name}, which has no floor"));
            if here <= there {
                wrong.push(format!("{file} on floor {here} names {name} on floor {there}"));
            }
        }
        if source.contains("super::super") {
            wrong.push(format!("{file} looks up by super::super"));
        }
    }
    assert!(found.len() > 20, "the sources were found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_modules_that_a_source_names_are_found() {
    let source = "use crate::{time::{Clock, Timestamp}, rules::Unit};\nlet a = crate::store::Check;";
    assert_eq!(named(source), ["time", "rules", "store"]);
}
