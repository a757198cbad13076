//! Circles of imports: no file uses another one that uses it back, directly or through others.
//!
//! A name that a module only re-exports counts as a use of the file that defines it. So what the files of a module share
//! is in a file of its own, and not in the module that is made of them. Test modules do not count.

use std::collections::{BTreeMap, BTreeSet};

use crate::{docs::PACKAGES, layers::sources};

/// What precedes an item that only tests have.
const FOR_TESTS: [&str; 3] =
    ["#[cfg(test)]", "#[cfg(any(test, fuzzing))]", "#[cfg(any(test, fuzzing, feature = \"testing\"))]"];

/// Modules that still define what their own files share: uses of them by these files do not count.
const SHARED_BY_THEIR_FILES: [&str; 5] =
    ["algorithm/laws", "divider/shares", "link", "memory", "memory/tables"];

type ModulePath = Vec<String>;

/// What one file says.
#[derive(Default)]
struct Module {
    uses: Vec<ModulePath>,
    /// Re-exported names, and their paths.
    exports: BTreeMap<String, ModulePath>,
    test_modules: BTreeSet<String>,
}

impl Module {
    /// Reads a source that is formatted by rustfmt.
    fn parse(source: &str) -> Self {
        let mut module = Self::default();
        let code = source.lines().map(|line| line.split("//").next().unwrap_or_default());
        let mut code = code.collect::<Vec<_>>().join("\n");
        let find = |code: &str| FOR_TESTS.iter().find_map(|mark| Some((code.find(mark)?, mark.len())));
        // `pub(in crate::module)` is no use.
        while let Some(start) = code.find("(in ") {
            let end = start + code[start..].find(')').expect("a visibility ends");
            code.replace_range(start..=end, "");
        }
        while let Some((start, length)) = find(&code) {
            let begin = start + length;
            let end = begin + end_of_item(&code[begin..]);
            module.test_modules.extend(declared_module(&code[begin..end]));
            code.replace_range(start..end, "");
        }
        let mut others = String::new();
        for statement in code.split_inclusive(';') {
            // A path or a block never contains the word, so that the last one begins the import.
            let words = |word: &str| statement.match_indices(word).last().map(|(at, _)| at);
            let start = words("\nuse ").max(words(" use ")).or(statement.starts_with("use ").then_some(0));
            let Some(start) = start else {
                others.push_str(statement);
                continue;
            };
            let (before, import) = statement.split_at(start);
            let tree = import.trim_start().trim_start_matches("use ").trim_end_matches(';');
            let tree = tree.split_whitespace().collect::<Vec<_>>().join(" ");
            let line = before.rsplit('\n').next().unwrap_or_default();
            module.add_use(&tree, !import.starts_with('\n') && line.trim_start().starts_with("pub"));
            others.push_str(before);
        }
        let paths = others.split(|character: char| !is_in_path(character)).filter(|path| path.contains("::"));
        module.uses.extend(paths.map(segments));
        module
    }

    fn add_use(&mut self, tree: &str, is_exported: bool) {
        for path in expand(tree) {
            let (path, name) = path.split_once(" as ").unwrap_or((&path, ""));
            let path = segments(path.trim_end_matches("::self"));
            let name =
                if name.is_empty() { path.last().cloned().unwrap_or_default() } else { name.to_owned() };
            if is_exported {
                self.exports.insert(name, path);
            } else {
                self.uses.push(path);
            }
        }
    }
}

fn is_in_path(character: char) -> bool {
    character == ':' || character == '_' || character.is_ascii_alphanumeric()
}

fn segments(path: &str) -> ModulePath {
    path.split("::").filter(|name| !name.is_empty()).map(|name| name.trim().to_owned()).collect()
}

/// The name of the module that this item declares and does not contain.
fn declared_module(item: &str) -> Option<String> {
    let declared = item.trim_end().strip_suffix(';')?.rsplit_once("mod ")?.1;
    declared.chars().all(is_in_path).then(|| declared.to_owned())
}

/// Where the item ends: after its block, or after its semicolon if none comes before.
fn end_of_item(item: &str) -> usize {
    let is_use = item.trim_start().trim_start_matches("pub").trim_start().starts_with("use ");
    let mut depth = 0;
    for (at, character) in item.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 && !is_use {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

/// The paths of the tree of a `use`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, group)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start, mut paths) = (0, 0, Vec::new());
    for (at, character) in group.char_indices().chain([(group.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = group[start..at].trim();
                paths.extend(
                    expand(part)
                        .iter()
                        .filter(|path| !path.is_empty())
                        .map(|path| format!("{}{path}", prefix.trim())),
                );
                start = at + 1;
            }
            _ => {}
        }
    }
    paths
}

fn with(prefix: &[String], name: &str) -> ModulePath {
    [prefix, &[name.to_owned()]].concat()
}

/// The modules of the crate.
struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    fn parse(sources: &[(String, String)]) -> Self {
        let parse = |(file, source): &(String, String)| {
            let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let path = path.split('/').filter(|name| *name != "lib").map(str::to_owned).collect();
            (path, Module::parse(source))
        };
        let mut modules: BTreeMap<ModulePath, Module> = sources.iter().map(parse).collect();
        let tests = |(path, module): (&ModulePath, &Module)| -> Vec<ModulePath> {
            module.test_modules.iter().map(|name| with(path, name)).collect()
        };
        let tests: Vec<ModulePath> = modules.iter().flat_map(tests).collect();
        modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        Self(modules)
    }

    /// The path from the root of the crate; `None` if the path leads out of the crate.
    fn absolute(&self, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" => Some([&module[..module.len().saturating_sub(1)], rest].concat()),
            _ if self.0.contains_key(&with(module, first)) => Some([module, path].concat()),
            _ => {
                let is_imported = |used: &&ModulePath| used.len() > 1 && used.last() == Some(first);
                let imported = self.0[module].uses.iter().find(is_imported)?;
                let is_local = ["crate", "self", "super"].contains(&imported[0].as_str());
                is_local.then(|| self.absolute(module, imported)).flatten().map(|path| [&path, rest].concat())
            }
        }
    }

    /// The module that defines what this path names.
    fn definer(&self, path: &[String]) -> Option<ModulePath> {
        let depth = (0..=path.len()).rev().find(|depth| self.0.contains_key(&path[..*depth]))?;
        let (module, rest) = (path[..depth].to_vec(), &path[depth..]);
        let export = rest.first().and_then(|name| self.0[&module].exports.get(name));
        match export.and_then(|export| self.absolute(&module, export)) {
            Some(export) if export != path => self.definer(&[&export, &rest[1..]].concat()),
            Some(_) | None => Some(module),
        }
    }

    /// The modules that a module uses, without itself and the root of the crate.
    fn used(&self, module: &ModulePath) -> BTreeSet<ModulePath> {
        let paths = self.0[module].uses.iter().filter_map(|path| self.absolute(module, path));
        let used = paths.filter_map(|path| self.definer(&path));
        let is_shared =
            |used: &ModulePath| module.starts_with(used) && SHARED_BY_THEIR_FILES.contains(&&*used.join("/"));
        used.filter(|used| used != module && !used.is_empty() && !is_shared(used)).collect()
    }

    /// The uses that are part of a circle, between files.
    fn circular_uses(&self) -> Vec<String> {
        circular(&self.0.keys().map(|module| (module.clone(), self.used(module))).collect())
    }

    /// The same between the parts of each module: a part uses what any of its files uses.
    fn circular_uses_of_parts(&self) -> Vec<String> {
        let mut used: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
        for module in self.0.keys() {
            for other in self.used(module) {
                // Below the module that contains both.
                let common = module.iter().zip(&other).take_while(|(one, other)| one == other).count();
                if common < module.len() && common < other.len() {
                    let (from, to) = (&module[..=common], &other[..=common]);
                    used.entry(to.to_vec()).or_default();
                    used.entry(from.to_vec()).or_default().insert(to.to_vec());
                }
            }
        }
        circular(&used)
    }
}

/// The uses that are part of a circle.
fn circular(used: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<String> {
    let leads_to = |from: &ModulePath, to: &ModulePath| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            if module == to {
                return true;
            }
            open.extend(used[module].iter().filter(|next| reached.insert(*next)));
        }
        false
    };
    let edges = used.iter().flat_map(|(module, used)| used.iter().map(move |used| (module, used)));
    let circular = edges.filter(|(module, used)| leads_to(used, module));
    circular.map(|(module, used)| format!("{} uses {}", module.join("/"), used.join("/"))).collect()
}

fn circular_uses(sources: &[(&str, &str)]) -> Vec<String> {
    let owned = |(file, source): &(&str, &str)| ((*file).to_owned(), (*source).to_owned());
    Modules::parse(&sources.iter().map(owned).collect::<Vec<_>>()).circular_uses()
}

#[test]
fn files_form_no_circles() {
    let folders = PACKAGES.map(|package| format!("{package}/src"));
    let (mut all_modules, mut all_uses, mut circles) = (0, 0, Vec::new());
    for folder in folders.iter().map(String::as_str).chain(["src"]) {
        let mut found = sources(folder);
        found.retain(|(file, _)| file != "main.rs");
        let modules = Modules::parse(&found);
        all_modules += modules.0.len();
        all_uses += modules.0.keys().map(|module| modules.used(module).len()).sum::<usize>();
        let circular = [modules.circular_uses(), modules.circular_uses_of_parts()].concat();
        circles.extend(circular.iter().map(|used| format!("{folder}: {used}")));
    }
    assert!(circles.is_empty(), "{circles:#?}");
    assert!(all_modules > 400, "too few modules found: {all_modules}");
    assert!(all_uses > 800, "too few uses found: {all_uses}");
}

#[test]
fn circle_through_other_files_and_reexports_is_found() {
    let sources = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::Name;"),
        ("b/mod.rs", "mod inner; pub use inner::Name;"),
        ("b/inner.rs", "pub struct Name; fn make() { crate::c::make(); }"),
        ("c.rs", "use crate::{a, b::Name}; fn make() { a::make(); }"),
    ];
    assert_eq!(circular_uses(&sources), ["a uses b/inner", "b/inner uses c", "c uses a", "c uses b/inner"]);
}

#[test]
fn circle_with_the_module_above_is_found_unless_it_only_reexports() {
    let middle = "mod inner; use inner::call; pub struct Shared; fn run() { call() }";
    let above = "mod inner; mod shared; pub use shared::Shared; use inner::call; fn run() { call() }";
    let sources = |above| {
        [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", above),
            ("a/inner.rs", "use crate::a::Shared; pub(in crate::a) fn call() {}"),
            ("a/shared.rs", "pub struct Shared;"),
        ]
    };
    assert_eq!(circular_uses(&sources(middle)), ["a uses a/inner", "a/inner uses a"]);
    assert_eq!(circular_uses(&sources(above)), [""; 0]);
}

#[test]
fn uses_in_tests_form_no_circle() {
    let sources = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "#[cfg(test)] mod tests { use crate::a::A; } #[cfg(test)] mod laws;"),
        ("b/laws.rs", "use crate::a::A;"),
    ];
    assert_eq!(circular_uses(&sources), [""; 0]);
}
