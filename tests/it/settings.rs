//! The documentation of settings matches the catalog.

use std::{fs, path::Path};

use tollgate::settings::CATALOG;

#[test]
fn settings_page_has_the_table_of_the_catalog() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/settings.md");
    let rows = CATALOG.iter().map(|setting| {
        let (name, flag, variable) = (setting.name, setting.flag(), setting.variable());
        format!("| `{name}` | `--{flag}` | `{variable}` | `{}` | {} |\n", setting.default, setting.help)
    });
    let page = fs::read_to_string(PAGE).unwrap();
    let is_row = |line: &&str| line.starts_with("| `");
    let before = page.split_inclusive('\n').take_while(|line| !is_row(line)).map(str::to_owned);
    let after = page.split_inclusive('\n').skip_while(|line| !is_row(line)).filter(|line| !is_row(line));
    let expected: String = before.chain(rows).chain(after.map(str::to_owned)).collect();
    if page != expected {
        let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join("settings.md");
        fs::write(&written, expected).unwrap();
        panic!("{PAGE} differs; copy {} over it", written.display());
    }
}
