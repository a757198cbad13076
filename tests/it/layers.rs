//! The layers of modules: a module uses only lower layers, never its own.

use std::{fs, path::Path};

/// From the lowest to the highest layer.
const LAYERS: [&[&str]; 12] = [
    &["accept", "files", "file_watch", "named"],
    &["time", "descriptor", "metrics", "yaml"],
    &["resilience", "telemetry"],
    &["algorithm", "certificates"],
    &["rules", "store"],
    &["remote", "rule_source"],
    &["cluster", "limiter", "persistence", "shared_store"],
    &["shared_limiter"],
    &["api", "tower"],
    &["settings"],
    &["server"],
    &["cli", "fuzz"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

pub(crate) fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
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

/// The modules that a source uses as `crate::module` or in `use crate::{module, module::{..}}`.
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
fn modules_use_only_lower_layers() {
    let mut found = Vec::new();
    sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
    let mut wrong = Vec::new();
    for (file, source) in &found {
        let module = file.split(['/', '.']).next().unwrap();
        if ["lib", "main"].contains(&module) {
            continue;
        }
        let here = layer(module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for name in named(source).into_iter().filter(|name| name != module) {
            let there = layer(&name).unwrap_or_else(|| panic!("{file} uses {name}, which is in no layer"));
            if there >= here {
                wrong.push(format!("{file} in layer {here} uses {name} in layer {there}"));
            }
        }
        if source.contains("super::super") {
            wrong.push(format!("{file} uses super::super"));
        }
    }
    assert!(found.len() > 20, "too few sources found");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn module_names_of_a_source_are_found() {
    let source = "use crate::{time::{Clock, Timestamp}, rules::Unit};\nlet a = crate::store::Check;";
    assert_eq!(named(source), ["time", "rules", "store"]);
}
