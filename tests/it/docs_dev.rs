//! The pages for contributors name code that exists and commands that run tests, and failing cases are where they say.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use crate::{
    docs::{PACKAGES, inline_code, names_of_tests, production, text_of},
    layers::sources,
    markdown,
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// CONTRIBUTING.md and the pages below `docs/dev/`, with their texts.
fn pages() -> impl Iterator<Item = (String, String)> {
    let is_for_contributors = |path: &str| path == "CONTRIBUTING.md" || path.starts_with("docs/dev/");
    markdown::pages().into_iter().filter(move |(path, _)| is_for_contributors(path))
}

fn is_in_word(letter: char) -> bool {
    letter == '_' || letter.is_ascii_alphanumeric()
}

/// Whether this is a path or a name as Rust has them: with `::`, `_`, or capitals between small letters.
fn is_name(code: &str) -> bool {
    let is_path = code.split("::").all(|word| !word.is_empty() && word.chars().all(is_in_word));
    let is_type = |word: &str| {
        word.starts_with(|letter: char| letter.is_ascii_uppercase())
            && word.chars().any(|letter| letter.is_ascii_lowercase())
    };
    let is_snake = |word: &str| {
        word.trim_start_matches('_').contains('_') && word.chars().all(|letter| !letter.is_ascii_uppercase())
    };
    is_path && (code.contains("::") || is_type(code) || is_snake(code))
}

#[test]
fn code_named_by_pages_for_contributors_exists() {
    let mut code = production() + &["tests", "benches", "fuzz", "clients/rust"].map(text_of).concat();
    for file in ["Cargo.toml", "clippy.toml", "limiter/Cargo.toml", "rules/Cargo.toml"] {
        code += &fs::read_to_string(Path::new(ROOT).join(file)).unwrap();
    }
    for entry in fs::read_dir(Path::new(ROOT).join("tests/external")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "py") {
            code += &fs::read_to_string(path).unwrap();
        }
    }
    let words: BTreeSet<_> = code.split(|letter| !is_in_word(letter)).collect();
    // These two describe other projects, too.
    let others = ["docs/dev/dependencies.md", "docs/dev/cores.md"];
    let (mut named, mut unknown) = (0, Vec::new());
    for (page, text) in pages().filter(|(page, _)| !others.contains(&page.as_str())) {
        // The pattern of names of tests is no name.
        let is_named = |code: &&str| is_name(code) && *code != "subject_condition_result";
        for code in inline_code(&text).into_iter().filter(is_named) {
            named += 1;
            if !code.split("::").all(|word| words.contains(word)) {
                unknown.push(format!("{page}: {code}"));
            }
        }
    }
    assert!(named > 200, "too few names found: {named}");
    assert!(unknown.is_empty(), "no such code: {unknown:#?}");
}

/// Which tests a command runs.
#[derive(Debug, Default)]
struct Selection<'c> {
    packages: Vec<&'c str>,
    /// The target, if it is one: `lib`, or the name of an integration test.
    target: Option<&'c str>,
    filters: Vec<&'c str>,
}

impl<'c> Selection<'c> {
    /// The tests of `cargo test` with these arguments, up to those of the test program, a comment or another command.
    fn new(arguments: &'c str) -> Self {
        let mut selection = Self::default();
        let mut words =
            arguments.split_whitespace().take_while(|word| !["--", "#", "&&", "|"].contains(word));
        while let Some(word) = words.next() {
            match word {
                "-p" | "--package" => selection.packages.extend(words.next()),
                "--test" => selection.target = words.next(),
                "--lib" => selection.target = Some("lib"),
                "--features" | "--profile" => {
                    let _value = words.next();
                }
                flag if flag.starts_with('-') => {}
                filter => selection.filters.push(filter),
            }
        }
        selection
    }

    /// Whether it selects any of `tests`, by package and target.
    fn runs_any(&self, tests: &BTreeMap<(String, String), Vec<String>>, default: &[String]) -> bool {
        let is_of_package = |package: &String| {
            if self.packages.is_empty() {
                default.contains(package)
            } else {
                self.packages.contains(&package.as_str())
            }
        };
        let selected = tests.iter().filter(|((package, target), _)| {
            is_of_package(package) && self.target.is_none_or(|wanted| wanted == target)
        });
        let is_run = |test: &String| {
            self.filters.is_empty() || self.filters.iter().any(|filter| test.contains(filter))
        };
        selected.flat_map(|(_, tests)| tests).any(is_run)
    }
}

/// The name in a manifest, and its directory, of each package of the workspace.
fn packages() -> Vec<(String, &'static str)> {
    let name = |folder: &str| {
        let manifest = fs::read_to_string(Path::new(ROOT).join(folder).join("Cargo.toml")).unwrap();
        let line = manifest.lines().find_map(|line| line.strip_prefix("name = \""));
        line.unwrap().trim_end_matches('"').to_owned()
    };
    PACKAGES.into_iter().chain([".", "clients/rust"]).map(|folder| (name(folder), folder)).collect()
}

/// The paths of the tests in a folder, without the modules inside a file.
fn tests_of(folder: &Path) -> Vec<String> {
    let mut tests = Vec::new();
    for (file, source) in sources(folder.to_str().unwrap()) {
        let module = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        tests.extend(names_of_tests(&source).map(|name| format!("{module}::{name}")));
    }
    tests
}

/// The tests of the workspace, by package and target.
fn all_tests() -> BTreeMap<(String, String), Vec<String>> {
    let mut all = BTreeMap::new();
    for (package, folder) in packages() {
        let root = Path::new(ROOT).join(folder);
        all.insert((package.clone(), "lib".to_owned()), tests_of(&root.join("src")));
        for target in fs::read_dir(root.join("tests")).into_iter().flatten() {
            let target = target.unwrap();
            if target.path().join("main.rs").is_file() {
                let name = target.file_name().into_string().unwrap();
                all.insert((package.clone(), name), tests_of(&target.path()));
            }
        }
    }
    all
}

#[test]
fn test_commands_of_pages_for_contributors_run_tests() {
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let line = manifest.lines().find_map(|line| line.strip_prefix("default-members = ")).unwrap_or_default();
    let is_default = |folder: &str| line.contains(&format!("\"{folder}\""));
    let default: Vec<_> =
        packages().into_iter().filter(|(_, folder)| is_default(folder)).map(|(name, _)| name).collect();
    let (tests, mut found) = (all_tests(), 0);
    for (page, text) in pages() {
        for line in text.lines() {
            for command in line.split("cargo test").skip(1) {
                let first = command.split('`').next().unwrap_or_default();
                // Code behind the command such as `--lib memory::` stands for more of its arguments.
                let more = command.split('`').skip(2).step_by(2).filter(|code| is_selection(code));
                for arguments in more.map(|more| format!("{first} {more}")).chain([first.to_owned()]) {
                    found += 1;
                    let selection = Selection::new(&arguments);
                    assert!(selection.runs_any(&tests, &default), "{page}: no test: cargo test{arguments}");
                    // The limiter is a package of its own, which a command without a package must not leave out.
                    assert!(
                        !selection.packages.is_empty() || default.len() == packages().len(),
                        "{page}: {line}"
                    );
                }
            }
        }
    }
    assert!(found > 7, "too few commands found: {found}");
}

/// Whether this code is arguments of `cargo test` alone.
fn is_selection(code: &str) -> bool {
    ["--lib", "--test"].contains(&code.split(' ').next().unwrap_or_default())
}

#[test]
fn files_and_scripts_of_pages_for_contributors_exist() {
    let (mut found, mut wrong) = (0, Vec::new());
    for (page, text) in pages() {
        let words = text.split(|letter: char| letter.is_whitespace() || "`()[]|\"'".contains(letter));
        for word in words.map(|word| word.trim_end_matches(['.', ',', ':', ';', '\\'])) {
            if !word.starts_with("tests/") && !word.starts_with(".ci/") {
                continue;
            }
            found += 1;
            let path = Path::new(ROOT).join(word);
            // Scripts have no extension.
            let is_good = match fs::metadata(&path) {
                Ok(kind) => {
                    kind.is_dir() || path.extension().is_some() || kind.permissions().mode() & 0o111 != 0
                }
                Err(_) => false,
            };
            if !is_good {
                wrong.push(format!("{page}: {word}"));
            }
        }
    }
    assert!(found > 40, "too few paths found: {found}");
    assert!(wrong.is_empty(), "these do not exist, or cannot be executed: {wrong:#?}");
}

/// proptest looks for the failing cases of `src/a/b.rs` in `proptest-regressions/a/b.txt` beside `src`.
#[test]
fn failing_cases_of_proptest_are_where_it_looks_for_them() {
    let texts = markdown::texts(|name| name.ends_with(".txt"));
    let files: Vec<_> = texts.keys().filter_map(|path| path.split_once("proptest-regressions/")).collect();
    assert!(files.len() > 4, "too few files found: {files:?}");
    for (package, file) in files {
        let source = Path::new(ROOT).join(package).join("src").join(file).with_extension("rs");
        let source = fs::read_to_string(&source).unwrap_or_else(|error| panic!("{source:?}: {error}"));
        // `algorithms!` makes the laws of each algorithm with `proptest!`.
        let is_generated = source.contains("proptest! {") || source.contains("algorithms! {");
        assert!(is_generated, "{package}src/{file}: no generated tests");
    }
}

#[test]
fn commands_of_the_weekly_table_are_in_a_workflow() {
    let read = |path: &str| fs::read_to_string(Path::new(ROOT).join(path)).unwrap();
    let page = read("docs/dev/contributing.md");
    let table =
        page.split("## What runs each week").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let workflows = read(".github/workflows/scheduled.yml") + &read(".github/workflows/release.yml");
    let commands: Vec<_> =
        table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(commands.len() > 4, "too few commands found: {commands:?}");
    for command in commands {
        // cargo-deny is a program below `target` there.
        let text = command.replace("cargo deny", "cargo-deny");
        assert!(workflows.contains(&text), "no workflow runs `{command}`");
    }
}
