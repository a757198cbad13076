//! The door of each package: the names that others may use, in its `lib.rs` and in the modules that this makes public.
//! `doors.txt` lists them, so that a change of a door is seen in a review.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use crate::{docs::PACKAGES, layers::sources};

/// The modules and items that a source makes public.
fn door(source: &str) -> BTreeSet<String> {
    let code: String = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut names = BTreeSet::new();
    for item in code.split(';') {
        if let Some((_, module)) = item.split_once("pub mod ") {
            names.insert(module.trim().to_owned());
        } else if let Some((_, path)) = item.split_once("pub use ") {
            let last = path.rsplit("::").next().unwrap();
            let last = path.split_once('{').map_or(last, |(_, group)| group.trim_end_matches('}'));
            let named = last.split(',').map(|name| name.rsplit(" as ").next().unwrap().trim());
            names.extend(named.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    let source = source.replace("pub const fn ", "pub fn ").replace("pub async fn ", "pub fn ");
    for line in source.lines() {
        // A macro may make an enum.
        let made = || line.strip_prefix("    pub ").filter(|item| item.starts_with("enum "));
        let item = line.strip_prefix("pub ").or_else(made).and_then(|item| item.split_once(' '));
        if let Some(("fn" | "struct" | "enum" | "const" | "trait" | "type" | "static", rest)) = item {
            let name = rest.split(|letter: char| letter != '_' && !letter.is_alphanumeric()).next().unwrap();
            names.insert(name.to_owned());
        }
    }
    names
}

/// Adds a line for the module in the file at `path`, without its extension, and for each module that it makes public.
fn add_door(path: &Path, name: &str, doors: &mut String) {
    let file = [path.with_extension("rs"), path.join("mod.rs"), path.join("lib.rs")]
        .into_iter()
        .find(|file| file.is_file());
    // A module inside another file.
    let Some(file) = file else { return };
    let names = door(&fs::read_to_string(file).unwrap());
    writeln!(doors, "{name}: {}", names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")).unwrap();
    for module in names.iter().filter(|name| name.starts_with(|letter: char| letter.is_ascii_lowercase())) {
        add_door(&path.join(module), &format!("{name}::{module}"), doors);
    }
}

#[test]
fn doors_of_packages_are_those_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut doors = String::new();
    for package in PACKAGES {
        let folder = format!("{package}/src");
        add_door(&root.join(&folder), package, &mut doors);
        let exported = |(_, source): (String, String)| -> Vec<String> {
            let names = source.split("#[macro_export]").skip(1);
            names.map(|rest| rest.split(' ').nth(1).unwrap().to_owned()).collect()
        };
        for name in sources(&folder).into_iter().flat_map(exported).collect::<BTreeSet<_>>() {
            writeln!(doors, "{package}: macro {name}").unwrap();
        }
    }
    let listed = fs::read_to_string(root.join("tests/it/doors.txt")).unwrap();
    let differ: Vec<_> = doors.lines().filter(|line| !listed.lines().any(|other| other == *line)).collect();
    assert!(
        doors == listed,
        "tests/it/doors.txt should have these lines, of {} in all: {differ:#?}\n{doors}",
        doors.lines().count()
    );
}

#[test]
fn modules_and_items_of_a_door_are_found() {
    let source = "mod a;\n/// B.\npub mod b;\nuse a::No;\n#[cfg(x)]\npub use a::{One,\n    Two as Three};\npub use a::Four;\npub fn five() {\n    pub fn no() {}\n}\nnamed! {\n    pub enum Six {}\n}\n";
    assert_eq!(door(source), ["Four", "One", "Six", "Three", "b", "five"].map(str::to_owned).into());
}
