//! The layers of modules in a package: a module uses only lower layers, never its own. The compiler holds the layers of packages.

use std::{fs, path::Path};

/// The layers of each package, from the lowest to the highest.
const PACKAGES: [(&str, &[&[&str]]); 3] = [
    (
        "counter/src",
        &[
            &["each_apart", "files", "lock", "named", "printable"],
            &["time", "descriptor", "metrics"],
            &["resilience", "algorithm"],
            &["packed_counter"],
        ],
    ),
    ("limiter/src", &[&["limiter"], &["shared_limiter"], &["tower"]]),
    ("src", &[&["persistence"], &["api"], &["settings"], &["server"], &["cli", "fuzz"]]),
];

/// The sources below a folder of the project, with their paths in it.
pub(crate) fn sources(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
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
    let mut wrong = Vec::new();
    for (folder, layers) in PACKAGES {
        let layer = |module: &str| layers.iter().position(|modules| modules.contains(&module));
        let found = sources(folder);
        assert!(found.len() > 2, "too few sources found in {folder}");
        for (file, source) in &found {
            let module = file.split(['/', '.']).next().unwrap();
            if ["lib", "main"].contains(&module) {
                continue;
            }
            let here = layer(module).unwrap_or_else(|| panic!("{module} is in no layer"));
            for name in named(source).into_iter().filter(|name| name != module) {
                let Some(there) = layer(&name) else { panic!("{file} uses {name}, which is in no layer") };
                if there >= here {
                    wrong.push(format!("{file} in layer {here} uses {name} in layer {there}"));
                }
            }
            if source.contains("super::super") {
                wrong.push(format!("{file} uses super::super"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn module_names_of_a_source_are_found() {
    let source = "use crate::{time::{Clock, Timestamp}, rules::Unit};\nlet a = crate::store::Check;";
    assert_eq!(named(source), ["time", "rules", "store"]);
}
