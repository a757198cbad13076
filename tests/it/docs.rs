//! Checks of the documentation against the code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use tollgate::{
    server::all_metrics,
    settings::{CATALOG, Setting},
};

use crate::{layers::sources, markdown};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// README.md and the pages below `docs/`, with their texts. Those for gateways name variables of other programs.
fn pages() -> impl Iterator<Item = (String, String)> {
    let is_ours = |path: &str| path.starts_with("docs/") && !path.starts_with("docs/gateways/");
    markdown::pages().into_iter().filter(move |(path, _)| path == "README.md" || is_ours(path))
}

/// Every text between `open` and the next `close`.
fn between<'t>(text: &'t str, open: &'t str, close: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0))
}

/// The folders of the packages below the service.
pub const PACKAGES: [&str; 13] = [
    "cluster",
    "counter",
    "limiter",
    "net",
    "quota",
    "remote",
    "rules",
    "shared_store",
    "sources",
    "store",
    "telemetry",
    "tools",
    "wire",
];

/// The sources of all packages of the program, as one text.
pub fn production() -> String {
    text_of("src") + &PACKAGES.map(text_of).concat()
}

/// All sources under a directory of the project, as one text.
pub fn text_of(folder: &str) -> String {
    sources(folder).into_iter().map(|(_, source)| source).collect()
}

#[test]
fn rule_examples_of_pages_compile() {
    let mut found = 0;
    for (page, text) in pages() {
        for block in between(&text, "```yaml\n", "```").filter(|block| block.starts_with("domain:")) {
            found += 1;
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(&file, block).unwrap();
            let rules = tollgate_rules::load(file.path()).unwrap();
            assert_eq!((rules.warnings(), rules.is_empty()), (&[][..], false), "{page}: {block}");
        }
    }
    assert!(found > 30, "{found} examples were found");
}

#[test]
fn laws_named_by_algorithms_page_exist() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/algorithms.md")).unwrap();
    let sources = text_of("counter/src/algorithm");
    let laws: Vec<_> =
        page.lines().filter_map(|line| Some(line.strip_prefix("- `")?.split_once('`')?.0)).collect();
    assert!(laws.len() > 8, "too few laws found on the page");
    for law in laws {
        assert!(sources.contains(&format!("fn {law}(")), "no law is called {law}");
    }
}

/// The rows of the table of promises: each promise, and its tests.
fn promises(page: &str) -> Vec<(&str, Vec<&str>)> {
    let (_, page) = page.split_once("\n## Promises and their tests\n").unwrap();
    let rows = page.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_matches(['|', ' ']).rsplit_once(" | "));
    cells.map(|(promise, tests)| (promise, tests.split('`').skip(1).step_by(2).collect())).collect()
}

/// The tests from outside by name, and whether `tests/run` leaves them to `tests/run --all`.
fn tests_from_outside() -> BTreeMap<String, bool> {
    let mut tests = BTreeMap::new();
    for entry in fs::read_dir(Path::new(ROOT).join("tests/external")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "py") {
            continue;
        }
        let source = fs::read_to_string(path).unwrap();
        let module =
            source.split("\npytestmark = ").nth(1).map_or("", |marks| marks.split("\n\n").next().unwrap());
        for item in source.split("\n\n\n") {
            let Some((marks, test)) = item.split_once("def test_") else { continue };
            let name = format!("test_{}", test.split('(').next().unwrap());
            tests.insert(name, format!("{module}{marks}").contains("mark.extended"));
        }
    }
    tests
}

/// The names of the tests of a source, those in macros included.
pub fn names_of_tests(source: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    source.lines().map(str::trim).filter_map(move |line| {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))?;
        let name = function.split(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric()).next();
        std::mem::take(&mut is_test).then_some(name?)
    })
}

#[test]
fn only_functions_with_an_attribute_are_names_of_tests() {
    let source =
        "fn a() {}\n#[test]\n#[should_panic]\nfn b() {}\n    #[tokio::test(x)]\n    async fn c() {}\nfn d(\n";
    assert_eq!(names_of_tests(source).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn every_promise_is_proved_in_the_core_or_listed() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/dev/architecture.md")).unwrap();
    let contributing = fs::read_to_string(Path::new(ROOT).join("CONTRIBUTING.md")).unwrap();
    let (production, tests) = (production(), text_of("tests"));
    let rust: BTreeSet<_> = names_of_tests(&production).chain(names_of_tests(&tests)).collect();
    let outside = tests_from_outside();
    let promises = promises(&page);
    assert!(promises.len() > 20, "too few promises found in the table");
    for (promise, tests) in promises.into_iter().skip(1) {
        let mut is_in_core = false;
        for test in tests {
            let is_rust = rust.contains(test);
            assert!(is_rust || outside.contains_key(test), "no test is called {test}");
            // What a page says proves no behaviour.
            is_in_core |= if is_rust { !test.ends_with("_are_documented") } else { !outside[test] };
        }
        let is_listed = contributing.contains(&format!("| {} |", promise.split(" ([").next().unwrap()));
        assert!(is_in_core != is_listed, "CONTRIBUTING.md says the wrong tier of this promise: {promise}");
    }
}

/// An editor shows a doc without the item above.
#[test]
fn docs_stand_without_the_item_above() {
    const LEANING: [&str; 12] = [
        "As [`",
        "As of ",
        "It ",
        "Its ",
        "Like [`",
        "Likewise",
        "See [`",
        "The same",
        "Their ",
        "They ",
        "This one ",
        "Those ",
    ];
    let mut found = 0;
    let mut leaning = Vec::new();
    for folder in PACKAGES.map(|package| format!("{package}/src")).iter().map(String::as_str).chain(["src"]) {
        for (file, source) in sources(folder) {
            let mut is_first = true;
            for line in source.lines().map(str::trim) {
                let doc = line.strip_prefix("/// ");
                found += usize::from(doc.is_some());
                if let Some(doc) =
                    doc.filter(|doc| is_first && LEANING.iter().any(|start| doc.starts_with(start)))
                {
                    leaning.push(format!("{folder}/{file}: {doc}"));
                }
                is_first = !line.starts_with("///");
            }
        }
    }
    assert!(found > 5_000, "too few docs found: {found}");
    assert!(leaning.is_empty(), "{leaning:#?}");
}

#[test]
fn source_tree_of_architecture_page_is_complete() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/dev/architecture.md")).unwrap();
    for folder in ["src", "limiter/src"] {
        let (_, tree) = page.split_once(&format!("\n{folder}/ ")).unwrap();
        let tree = tree.split("\n\n").next().unwrap();
        for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
            let entry = entry.unwrap();
            let end = if entry.path().is_dir() { "/ " } else { " " };
            let line = format!("\n  {}{end}", entry.file_name().to_str().unwrap());
            assert!(tree.contains(&line), "the tree of {folder} on the page has no {line}");
        }
    }
}

#[test]
fn dependencies_page_lists_exactly_the_dependencies() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/dev/dependencies.md")).unwrap();
    let mut wanted = BTreeSet::new();
    for folder in PACKAGES.into_iter().chain(["."]) {
        let manifest = fs::read_to_string(Path::new(ROOT).join(folder).join("Cargo.toml")).unwrap();
        let lines = between(&manifest, "dependencies]\n", "\n\n").flat_map(str::lines);
        wanted.extend(lines.filter_map(|line| Some(line.split([' ', '.']).next()?.to_owned())));
    }
    wanted.retain(|name| !name.starts_with("tollgate-"));
    let rows = page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()));
    assert_eq!(rows.collect::<BTreeSet<_>>(), wanted);
}

/// The words of `text` that begin with `start` and continue with characters for which `goes_on` is true.
fn words<'t>(text: &'t str, start: &'t str, goes_on: impl Fn(char) -> bool) -> impl Iterator<Item = &'t str> {
    text.match_indices(start).map(move |(at, _)| {
        let word = &text[at..];
        word.find(|letter: char| !goes_on(letter)).map_or(word, |end| &word[..end])
    })
}

#[test]
fn variables_and_flags_of_migration_page_exist() {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/migrating.md")).unwrap();
    let variables: BTreeSet<_> = CATALOG.iter().map(Setting::variable).collect();
    let is_capital = |letter: char| letter == '_' || letter.is_ascii_uppercase() || letter.is_ascii_digit();
    let named: BTreeSet<_> = words(&page, "TOLLGATE_", is_capital)
        // A name with two underscores at its end stands for a section.
        .filter(|name| !name.ends_with("__"))
        .collect();
    assert!(named.len() > 20, "too few variables found");
    let unknown: Vec<_> = named.iter().filter(|name| !variables.contains(**name)).collect();
    assert!(unknown.is_empty(), "no such variables: {unknown:#?}");

    let mut flags: BTreeSet<_> = CATALOG.iter().map(|setting| format!("--{}", setting.flag())).collect();
    // The flags of `tollgate ask`, and those of `tollgate serve` that are no settings.
    flags.extend(
        [
            "--to",
            "--peek",
            "--refund",
            "--hits",
            "--json",
            "--tls-ca",
            "--tls-cert",
            "--tls-key",
            "--settings",
            "--compat",
        ]
        .map(str::to_owned),
    );
    let unknown: Vec<_> = words(&page, "--", |letter| letter == '-' || letter.is_ascii_lowercase())
        .filter(|flag| !flag.trim_matches('-').is_empty() && !flags.contains(*flag))
        .collect();
    assert!(unknown.is_empty(), "no such flags: {unknown:#?}");
}

/// The inline code of a page: what stands between single backticks outside fenced blocks.
pub fn inline_code(page: &str) -> Vec<&str> {
    let prose = page.split("```").step_by(2);
    prose.flat_map(str::lines).flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn api_page_has_every_reason_of_an_error() {
    let read = |file: &str| fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
    let page = read("docs/api.md") + &read("docs/own-limits.md");
    let shared = ["error", "http", "json", "reader"];
    let of_methods =
        ["decode", "own_limits", "reservations", "reset", "stream"].map(|file| format!("v1/{file}"));
    let files = shared.map(str::to_owned).into_iter().chain(of_methods);
    let sources: String = files.map(|file| read(&format!("src/api/{file}.rs"))).collect();
    let is_reason = |text: &&str| {
        text.len() > 2 && text.chars().all(|letter| letter == '_' || letter.is_ascii_uppercase())
    };
    let reasons: BTreeSet<_> = sources.split('"').filter(is_reason).collect();
    assert!(reasons.len() > 40, "too few reasons found");
    let missing: Vec<_> = reasons.iter().filter(|reason| !page.contains(&format!("`{reason}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn pages_name_only_metrics_that_exist() {
    let known: BTreeSet<_> = all_metrics().map(|metric| metric.name).collect();
    // Series of a histogram.
    let family = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .any(|end| name.strip_suffix(end).is_some_and(|n| known.contains(n)))
    };
    let in_name = |letter: char| letter == '_' || letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let (mut named, mut unknown) = (0, Vec::new());
    for (page, text) in pages() {
        for name in words(&text, "tollgate_", in_name) {
            named += 1;
            // `tollgate_cluster_*` names a group.
            let is_group =
                text.contains(&format!("{name}*")) && known.iter().any(|known| known.starts_with(name));
            let is_package =
                PACKAGES.iter().chain(&["client"]).any(|package| name == format!("tollgate_{package}"));
            if !known.contains(name) && !family(name) && !is_group && !is_package {
                unknown.push(format!("{}: {name}", page));
            }
        }
    }
    assert!(named > 100, "the metrics were found");
    assert!(unknown.is_empty(), "no such metrics: {unknown:#?}");
}

#[test]
fn pages_name_only_settings_that_exist() {
    let known: BTreeSet<_> = CATALOG.iter().map(|setting| setting.name).collect();
    let sections: BTreeSet<_> = known.iter().filter_map(|name| Some(name.split_once('.')?.0)).collect();
    let endings = ["md", "rs", "go", "js", "py", "java", "yaml", "proto"];
    let (mut named, mut unknown) = (0, Vec::new());
    for (page, text) in pages() {
        for code in inline_code(&text) {
            let in_name = |letter: char| letter == '_' || letter == '.' || letter.is_ascii_lowercase();
            for word in code.split(|letter| !in_name(letter)) {
                let Some((section, name)) = word.split_once('.') else { continue };
                // Names of files, of packages and of upstream statistics have other ends or more parts.
                if !sections.contains(section)
                    || name.is_empty()
                    || name.contains('.')
                    || endings.contains(&name)
                {
                    continue;
                }
                named += 1;
                if !known.contains(word) {
                    unknown.push(format!("{}: {word}", page));
                }
            }
        }
    }
    assert!(named > 80, "the settings were found");
    assert!(unknown.is_empty(), "no such settings: {unknown:#?}");
}
