//! The links of all Markdown pages, and the pages and files that texts name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Folders of what is built or installed.
const GENERATED: [&str; 5] = ["target", "node_modules", "build", "dist", "__pycache__"];
const BYTES_MAX: u64 = 1 << 20;
/// The most words of all pages together: what a page says already, another one links.
const WORDS_MAX: usize = 85_000;
/// The table of contents of the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// The text files of the project for which `wanted` is true, by their paths in it.
pub(crate) fn texts(wanted: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![PathBuf::from(ROOT)]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                let is_hidden = name.starts_with('.') && name != ".ci" && name != ".github";
                if !is_hidden && !GENERATED.contains(&&*name) {
                    folders.push(path);
                }
            } else if kind.is_file() && wanted(&name) && entry.metadata().unwrap().len() <= BYTES_MAX {
                // Other files are not text.
                let Ok(text) = fs::read_to_string(&path) else { continue };
                found.insert(path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned(), text);
            }
        }
    }
    found
}

/// All Markdown pages, by their paths in the project.
pub(crate) fn pages() -> BTreeMap<String, String> {
    texts(|name| name.ends_with(".md"))
}

/// The lines of a page outside fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// A line without the code between its backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Every text between `open` and the next `close`.
fn between<'t>(text: &'t str, open: &'t str, close: char) -> impl Iterator<Item = &'t str> {
    text.split(open).skip(1).filter_map(move |rest| Some(rest.split_once(close)?.0))
}

/// The targets of the links and images of a page.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(page).map(without_code) {
        let markdown = between(&line, "](", ')');
        let html = ["src=\"", "href=\"", "srcset=\""].into_iter().flat_map(|open| between(&line, open, '"'));
        found.extend(markdown.chain(html).map(str::to_owned));
    }
    found
}

/// The anchors of the headings of a page, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(page).filter_map(|line| line.trim_start_matches('#').strip_prefix(' ')) {
        // Of a link, only the text counts.
        let texts = heading.split("](").enumerate();
        let text: String = texts
            .map(
                |(nth, part)| if nth == 0 { part } else { part.split_once(')').map_or("", |(_, rest)| rest) },
            )
            .collect();
        let kept = text.trim().chars().filter(|&letter| letter.is_alphanumeric() || " -_".contains(letter));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// `path` as seen from the page `from`, without `..`.
fn resolved(from: &str, path: &str) -> String {
    let mut parts: Vec<_> = from.split('/').collect();
    if !path.is_empty() {
        parts.pop();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn links_of_pages_lead_to_files_and_headings() {
    let pages = pages();
    let anchors: BTreeMap<_, _> = pages.iter().map(|(path, page)| (path.as_str(), anchors(page))).collect();
    let (mut checked, mut broken) = (0, Vec::new());
    for (path, page) in &pages {
        for link in links(page).iter().filter(|link| !link.contains(':')) {
            checked += 1;
            let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(f, a)| (f, Some(a)));
            let file = resolved(path, file);
            let has_anchor = |anchor| anchors.get(file.as_str()).is_some_and(|known| known.contains(anchor));
            if !Path::new(ROOT).join(&file).exists() || !anchor.is_none_or(has_anchor) {
                broken.push(format!("{path}: {link}"));
            }
        }
    }
    assert!(checked > 300, "only {checked} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn all_pages_together_keep_their_bound_of_words() {
    let mut words: Vec<_> =
        pages().into_iter().map(|(path, page)| (page.split_whitespace().count(), path)).collect();
    words.sort();
    let total: usize = words.iter().map(|(words, _)| words).sum();
    let lines: String = words.iter().map(|(words, path)| format!("{words:6} {path}\n")).collect();
    println!("{lines}{total:6} in all, at most {WORDS_MAX}");
    assert!(total <= WORDS_MAX, "{total} words, by page:\n{lines}");
}

#[test]
fn index_of_docs_links_every_page() {
    let pages = pages();
    let mut linked = BTreeSet::new();
    for index in pages.keys().filter(|path| path.starts_with("docs/") && path.ends_with("/README.md")) {
        let files = links(&pages[index]).into_iter().map(|link| link.split('#').next().unwrap().to_owned());
        linked.extend(files.map(|file| resolved(index, &file)));
    }
    let mut missing: Vec<_> = pages.keys().filter(|path| path.starts_with("docs/")).collect();
    missing.retain(|path| ![SUMMARY, "docs/README.md"].contains(&path.as_str()) && !linked.contains(*path));
    assert!(missing.is_empty(), "neither docs/README.md nor the README.md of a folder links {missing:#?}");
}

#[test]
fn contents_of_the_site_list_every_page_once() {
    let pages = pages();
    let mut listed: Vec<_> = links(&pages[SUMMARY]).iter().map(|link| resolved(SUMMARY, link)).collect();
    listed.sort();
    let all = pages.keys().filter(|path| path.starts_with("docs/") && *path != SUMMARY);
    assert_eq!(listed.iter().collect::<Vec<_>>(), all.collect::<Vec<_>>());
}

/// The words of `text` that begin with `start`, which no letter and no `/` precedes, up to what is not part of a path.
fn paths<'t>(text: &'t str, start: &'t str) -> impl Iterator<Item = &'t str> {
    let in_path = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    text.match_indices(start).filter_map(move |(at, _)| {
        let is_start = !text[..at].ends_with(|before: char| in_path(before));
        let word = &text[at..];
        let path = word.find(|letter| !in_path(letter)).map_or(word, |end| &word[..end]);
        is_start.then(|| path.trim_end_matches(['.', '/']))
    })
}

#[test]
fn pages_named_in_files_exist() {
    // The changelog names pages of earlier versions.
    let files = texts(|name| name != "CHANGELOG.md");
    let (mut named, mut missing) = (0, Vec::new());
    for (file, text) in &files {
        for page in paths(text, "docs/").filter(|path| path.ends_with(".md")) {
            named += 1;
            if !Path::new(ROOT).join(page).exists() {
                missing.push(format!("{file}: {page}"));
            }
        }
    }
    assert!(named > 50, "only {named} names were found");
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn files_named_by_pages_for_contributors_exist() {
    let folders = [
        ".ci/",
        "src/",
        "tests/",
        "docs/",
        "proto/",
        "clients/",
        "deploy/",
        "fuzz/",
        "cluster/",
        "counter/",
        "limiter/",
        "net/",
        "quota/",
        "remote/",
        "rules/",
        "shared_store/",
        "sources/",
        "store/",
        "telemetry/",
        "wire/",
    ];
    let mut pages = pages();
    pages.retain(|path, _| path.starts_with("docs/dev/") || path == "CONTRIBUTING.md");
    let (mut named, mut missing) = (0, Vec::new());
    for (page, text) in &pages {
        let code: Vec<_> = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2)).collect();
        for path in code.iter().flat_map(|code| folders.iter().flat_map(|folder| paths(code, folder))) {
            named += 1;
            // NAME stands for any name.
            if !path.contains("NAME") && !Path::new(ROOT).join(path).exists() {
                missing.push(format!("{page}: {path}"));
            }
        }
    }
    assert!(named > 50, "only {named} names were found");
    assert!(missing.is_empty(), "{missing:#?}");
}
